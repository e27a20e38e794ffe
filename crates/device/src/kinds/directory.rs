//! A directory of slot files: for space inside a filesystem that should be taken only as it is used, or where one
//! large file cannot be.
//!
//! `DIR/terrace-device` is a text that states size and slot size; `DIR/slot-NNNNNNNN` holds the bytes of one slot and
//! is made at the first write to it. What was never written reads as zeroes.
//!
//! Invariants: the directory is held by a `flock` on itself; a flush makes durable every slot written before it and
//! the entries of new slots in the directory; a slot enters the set of unflushed ones only after its write is done,
//! so that no flush can pass over it.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::fs::{FallocateFlags, FlockOperation};
use terrace_sync::{Mutex, rank};

use super::file::check_range;
use crate::{
    DEVICE_BLOCK_BYTES, DEVICE_SECTOR_BYTES, Device,
    error::{Cause, DeviceError, Operation},
    io::FlushGate,
};

const DESCRIPTION: &str = "terrace-device";
const TITLE: &str = "terrace directory device 1";
/// Slot size of new directories, bytes: that of a segment by default.
const SLOT_BYTES: u64 = 16 * 1024 * 1024;
const SLOT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Entries of a directory of others that are named.
const ENTRIES_NAMED: usize = 3;
/// Open slot files kept at hand.
const HANDLES_MAX: usize = 128;
/// Of the free space, the part (in percent) that a directory without a stated size may grow to.
const DEFAULT_PERCENT: u64 = 90;

/// A directory used as a device.
pub struct DirectoryDevice {
    path: PathBuf,
    /// Holds the lock; synced for new slots.
    directory: File,
    size_bytes: AtomicU64,
    slot_bytes: u64,
    read_only: bool,
    handles: Mutex<HashMap<u64, Arc<File>>, rank::device::Files>,
    unflushed: Mutex<Unflushed, rank::device::Unflushed>,
    /// One flush at a time: one that finds nothing to do must not return before the one that took the work.
    flushing: FlushGate,
}

#[derive(Default)]
struct Unflushed {
    slots: HashMap<u64, Arc<File>>,
    entries: bool,
}

/// What is at a path, and the size that it is to have, bytes.
pub(crate) enum Found {
    Device(DirectoryDevice, u64),
    /// No directory, or one that is no device; other things may be in it.
    Nothing(u64),
}

impl Found {
    /// Opens what is there, exclusively. Fails where a device cannot be made of it, or not of that size.
    pub(crate) fn at(path: &Path, size_bytes: Option<u64>) -> Result<Self, DeviceError> {
        let fail = |cause| DeviceError::whole(path.display().to_string(), Operation::Create, cause);
        let wanted = size_bytes.map(|size| size / DEVICE_BLOCK_BYTES as u64 * DEVICE_BLOCK_BYTES as u64);
        if path.join(DESCRIPTION).exists() {
            let device = DirectoryDevice::open(path)?;
            let has = device.size_bytes();
            let wanted = wanted.unwrap_or(has);
            if wanted < has {
                return Err(fail(Cause::Other(format!(
                    "it has {has} bytes already, more than the {wanted} asked for; leave the size away"
                ))));
            }
            return Ok(Self::Device(device, wanted));
        }
        match fs::read_dir(path) {
            Ok(mut entries) => {
                // They would be read as what the device holds.
                let is_slot =
                    |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| slot_of(&entry).is_some());
                if entries.any(is_slot) {
                    return Err(fail(Cause::Other(
                        "it holds slots of a device without their description 'terrace-device'; remove them, or give another \
                         directory"
                            .into(),
                    )));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fail(Cause::from(&error))),
        }
        let size = match wanted {
            Some(size) => size,
            None => {
                // Where it is not there yet it will lie on the filesystem of what is.
                let there = path.ancestors().find(|path| path.exists());
                let there = there.unwrap_or(Path::new("."));
                let free =
                    rustix::fs::statvfs(there).map_err(|error| fail(Cause::System(error.raw_os_error())))?;
                let bytes = free.f_bavail.saturating_mul(free.f_frsize) / 100 * DEFAULT_PERCENT;
                bytes / SLOT_BYTES * SLOT_BYTES
            }
        };
        if size == 0 {
            return Err(fail(Cause::Other("there is no room for it".into())));
        }
        Ok(Self::Nothing(size))
    }
}

impl DirectoryDevice {
    /// Makes the directory and its description where absent and opens it exclusively. Without a size a new one may
    /// take 90 % of what is free now; an existing one is grown to a larger size, never shrunk. A directory with other
    /// things in it is refused.
    pub fn create(path: &Path, size_bytes: Option<u64>) -> Result<Self, DeviceError> {
        let found = Found::at(path, size_bytes)?;
        if matches!(found, Found::Nothing(_))
            && let Some(entries) = foreign_entries(path)?
        {
            let words = format!("the directory is not empty ({entries}); give an empty or a new one");
            let cause = Cause::Other(words);
            return Err(DeviceError::whole(
                path.display().to_string(),
                Operation::Create,
                cause,
            ));
        }
        Self::of_found(found, path)
    }

    /// Makes what is absent and grows what is smaller.
    pub(crate) fn of_found(found: Found, path: &Path) -> Result<Self, DeviceError> {
        let io = |error: io::Error| {
            DeviceError::whole(path.display().to_string(), Operation::Create, Cause::from(&error))
        };
        match found {
            Found::Device(device, size) => {
                if size > device.size_bytes() {
                    write_description(path, size, device.slot_bytes).map_err(io)?;
                    device.size_bytes.store(size, Ordering::Release);
                }
                Ok(device)
            }
            Found::Nothing(size) => {
                fs::create_dir_all(path).map_err(io)?;
                write_description(path, size, SLOT_BYTES).map_err(io)?;
                if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                    File::open(parent)
                        .and_then(|parent| parent.sync_all())
                        .map_err(io)?;
                }
                Self::open(path)
            }
        }
    }

    /// Opens an existing one exclusively.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        Self::open_with(path, false)
    }

    /// Opens for reading only and holds nothing; works while another process has it in use.
    pub fn peek(path: &Path) -> Result<Self, DeviceError> {
        Self::open_with(path, true)
    }

    fn open_with(path: &Path, read_only: bool) -> Result<Self, DeviceError> {
        let fail = |cause| DeviceError::whole(path.display().to_string(), Operation::Open, cause);
        let directory = File::open(path).map_err(|error| fail(Cause::from(&error)))?;
        if !read_only {
            match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(fail(Cause::InUse)),
                Err(error) => return Err(fail(Cause::System(error.raw_os_error()))),
            }
        }
        let (size_bytes, slot_bytes) = read_description(path).map_err(fail)?;
        Ok(Self {
            path: path.to_path_buf(),
            directory,
            size_bytes: AtomicU64::new(size_bytes),
            slot_bytes,
            read_only,
            handles: Mutex::default(),
            unflushed: Mutex::default(),
            flushing: FlushGate::default(),
        })
    }

    /// The file of a slot; `None` if it was never written and is not to be made.
    fn slot(&self, slot: u64, make: bool) -> io::Result<Option<Arc<File>>> {
        let mut handles = self.handles.lock();
        if let Some(file) = handles.get(&slot) {
            return Ok(Some(file.clone()));
        }
        let path = self.path.join(format!("slot-{slot:08}"));
        let mut options = OpenOptions::new();
        options.read(true).write(!self.read_only).mode(0o600);
        let file = match options.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !make {
                    return Ok(None);
                }
                let file = options.create_new(true).open(&path)?;
                self.unflushed.lock().entries = true;
                file
            }
            Err(error) => return Err(error),
        };
        if handles.len() >= HANDLES_MAX {
            // Unflushed slots are held by their own set as well, so closing here loses no error report.
            handles.clear();
        }
        let file = Arc::new(file);
        handles.insert(slot, file.clone());
        Ok(Some(file))
    }

    /// Calls `each` with slot, offset in the slot and the range of the transfer that lies in it.
    fn split(
        &self,
        offset: u64,
        length: u64,
        mut each: impl FnMut(u64, u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let at = offset + done;
            let inside = at % self.slot_bytes;
            let part = (self.slot_bytes - inside).min(length - done);
            each(
                at / self.slot_bytes,
                inside,
                done as usize..(done + part) as usize,
            )?;
            done += part;
        }
        Ok(())
    }

    fn range_error(&self, operation: Operation, offset: u64, length: u64, cause: Cause) -> DeviceError {
        DeviceError::range(self.path(), operation, offset, length, cause)
    }

    fn sync_unflushed(&self) -> io::Result<()> {
        let taken = std::mem::take(&mut *self.unflushed.lock());
        for file in taken.slots.values() {
            file.sync_data()?;
        }
        if taken.entries {
            self.directory.sync_all()?;
        }
        Ok(())
    }
}

impl Device for DirectoryDevice {
    fn path(&self) -> String {
        self.path.display().to_string()
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    fn read_unit_bytes(&self) -> usize {
        DEVICE_SECTOR_BYTES
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let length = buffer.len() as u64;
        check_range(self, Operation::Read, offset, length)?;
        let read = self.split(offset, length, |slot, inside, range| {
            let part = &mut buffer[range];
            let mut filled = 0;
            if let Some(file) = self.slot(slot, false)? {
                while filled < part.len() {
                    match file.read_at(&mut part[filled..], inside + filled as u64) {
                        Ok(0) => break,
                        Ok(bytes) => filled += bytes,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            part[filled..].fill(0);
            Ok(())
        });
        read.map_err(|error| self.range_error(Operation::Read, offset, length, Cause::from(&error)))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let length = data.len() as u64;
        check_range(self, Operation::Write, offset, length)?;
        if self.read_only {
            return Err(self.range_error(Operation::Write, offset, length, Cause::ReadOnly));
        }
        let written = self.split(offset, length, |slot, inside, range| {
            let Some(file) = self.slot(slot, true)? else {
                return Ok(());
            };
            let result = file.write_all_at(&data[range], inside);
            self.unflushed.lock().slots.insert(slot, file);
            result
        });
        written.map_err(|error| self.range_error(Operation::Write, offset, length, Cause::from(&error)))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.flushing
            .pass(|| self.sync_unflushed())
            .map_err(|cause| DeviceError::whole(self.path(), Operation::Flush, cause))
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        check_range(self, Operation::Discard, offset, length)?;
        if self.read_only {
            return Ok(());
        }
        let punched = self.split(offset, length, |slot, inside, range| {
            let Some(file) = self.slot(slot, false)? else {
                return Ok(());
            };
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(&*file, flags, inside, range.len() as u64) {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
                Err(error) => Err(error.into()),
            }
        });
        punched.map_err(|error| self.range_error(Operation::Discard, offset, length, Cause::from(&error)))
    }

    fn truncate(&self, size_bytes: u64) -> Result<bool, DeviceError> {
        if self.read_only {
            return Ok(false);
        }
        let cut = || -> io::Result<()> {
            if size_bytes < self.size_bytes() {
                write_description(&self.path, size_bytes, self.slot_bytes)?;
                self.size_bytes.store(size_bytes, Ordering::Release);
            }
            // Also what an earlier call that was interrupted left behind.
            let kept = size_bytes.div_ceil(self.slot_bytes);
            for entry in fs::read_dir(&self.path)? {
                let entry = entry?;
                if slot_of(&entry).is_some_and(|slot| slot >= kept) {
                    fs::remove_file(entry.path())?;
                }
            }
            self.handles.lock().retain(|slot, _| *slot < kept);
            self.unflushed.lock().slots.retain(|slot, _| *slot < kept);
            self.directory.sync_all()
        };
        let cut = cut();
        cut.map_err(|error| DeviceError::whole(self.path(), Operation::Resize, Cause::from(&error)))?;
        Ok(true)
    }

    fn refresh_size(&self) -> Result<u64, DeviceError> {
        let (size, _) = read_description(&self.path)
            .map_err(|cause| DeviceError::whole(self.path(), Operation::Resize, cause))?;
        self.size_bytes.fetch_max(size, Ordering::AcqRel);
        Ok(self.size_bytes())
    }
}

/// What is in a directory, in words; `None` if that is nothing but the empty `lost+found` of a filesystem just made.
pub(crate) fn foreign_entries(path: &Path) -> Result<Option<String>, DeviceError> {
    let fail = |error: &io::Error| {
        DeviceError::whole(path.display().to_string(), Operation::Open, Cause::from(error))
    };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(&error)),
    };
    let is_empty = |path: PathBuf| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    let (mut names, mut more) = (Vec::new(), 0usize);
    for entry in entries {
        let entry = entry.map_err(|error| fail(&error))?;
        let name = entry.file_name();
        if name == "lost+found" && is_empty(entry.path()) {
            continue;
        }
        match names.len() {
            ..ENTRIES_NAMED => names.push(format!(
                "'{}'",
                name.to_string_lossy().replace(char::is_control, "?")
            )),
            _ => more += 1,
        }
    }
    names.sort();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    Ok((!names.is_empty()).then(|| names.join(", ")))
}

/// The number of the slot that a file is.
fn slot_of(entry: &fs::DirEntry) -> Option<u64> {
    let name = entry.file_name();
    name.to_str()?.strip_prefix("slot-")?.parse().ok()
}

/// Removes the description and the slots of a device, and nothing else that is in the directory.
pub(crate) fn remove_own(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == DESCRIPTION || slot_of(&entry).is_some() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn write_description(path: &Path, size_bytes: u64, slot_bytes: u64) -> io::Result<()> {
    let new = path.join("terrace-device.new");
    let mut file = File::create(&new)?;
    write!(
        file,
        "{TITLE}\nsize_bytes={size_bytes}\nslot_bytes={slot_bytes}\n"
    )?;
    file.sync_all()?;
    fs::rename(&new, path.join(DESCRIPTION))?;
    File::open(path)?.sync_all()
}

fn read_description(path: &Path) -> Result<(u64, u64), Cause> {
    let file = path.join(DESCRIPTION);
    let metadata = fs::metadata(&file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Cause::Other("the directory is not a Terrace device".into()),
        _ => Cause::from(&error),
    })?;
    let wrong = || {
        Cause::Other(format!(
            "{} is not a description that this program knows",
            file.display()
        ))
    };
    if metadata.len() > 4096 {
        return Err(wrong());
    }
    let text = fs::read_to_string(&file).map_err(|error| Cause::from(&error))?;
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return Err(wrong());
    }
    let mut number = |name: &str| {
        let line = lines
            .next()
            .and_then(|line| line.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok());
        line.filter(|number| *number > 0 && number.is_multiple_of(DEVICE_BLOCK_BYTES as u64))
            .ok_or_else(wrong)
    };
    let (size_bytes, slot_bytes) = (number("size_bytes")?, number("slot_bytes")?);
    if slot_bytes > SLOT_BYTES_MAX {
        return Err(wrong());
    }
    Ok((size_bytes, slot_bytes))
}
