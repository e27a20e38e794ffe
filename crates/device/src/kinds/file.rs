//! Regular files and block devices.
//!
//! Invariants: direct I/O where the filesystem has it, else buffered; held exclusively while open (`O_EXCL` on block
//! devices, an advisory `flock` of the whole file on regular files), except by [`FileDevice::peek`]; the size is
//! taken at open and grows only by [`Device::refresh_size`]. Reads by sectors only where the kernel says that it does
//! these directly: some filesystems take them and go through the page cache.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, FileTypeExt},
        },
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{FallocateFlags, FlockOperation};

use crate::{
    AlignedBuffer, DEVICE_BLOCK_BYTES, DEVICE_SECTOR_BYTES, Device, ReadRequest, Stray, WriteRequest,
    error::{Cause, DeviceError, Operation},
    io::{FlushGate, LoneReads, Memory, RingTransfer, SMALL_BYTES_MAX, batched_transfer},
};

/// A regular file or block device.
pub struct FileDevice {
    path: PathBuf,
    file: File,
    size_bytes: AtomicU64,
    direct: bool,
    read_unit_bytes: usize,
    block_device: bool,
    read_only: bool,
    flushing: FlushGate,
    lone_reads: LoneReads,
}

/// Unaligned transfers are copied through a buffer of at most this many bytes.
const BOUNCE_BYTES: usize = 1024 * 1024;
/// `f_type` of a filesystem in memory.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Parts per `pwritev`: the kernel takes no more than 1024.
const PARTS_MAX: usize = 1024;

/// Whether the path names a device, so that no file belongs there. What is meant to lie in memory has a place of its own.
fn is_for_devices(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// What is at a path, and the size that it is to have, bytes.
pub(crate) enum Found {
    Device(FileDevice, u64),
    Nothing(u64),
}

impl Found {
    /// Opens what is there, exclusively. Fails where a device cannot be made of it, or not of that size.
    pub(crate) fn at(path: &Path, size_bytes: Option<u64>) -> Result<Self, DeviceError> {
        let fail = |cause| DeviceError::whole(path.display().to_string(), Operation::Create, cause);
        let wanted = size_bytes.map(|size| size / DEVICE_BLOCK_BYTES as u64 * DEVICE_BLOCK_BYTES as u64);
        if wanted.is_some_and(|size| size == 0) {
            return Err(fail(Cause::Other(
                "a device needs some MiB at least: give it a larger size (as 'PATH:1G')".into(),
            )));
        }
        match std::fs::metadata(path) {
            Ok(_) => {
                let device = FileDevice::open(path)?;
                let has = device.size_bytes();
                let wanted = wanted.unwrap_or(has);
                if has > wanted && !device.block_device {
                    return Err(fail(Cause::Other(format!(
                        "the file has {has} bytes already, more than the {wanted} asked for; leave the size away to \
                         use all of it, or remove the file"
                    ))));
                }
                if has < wanted && device.block_device {
                    return Err(fail(Cause::Other(format!(
                        "the block device has only {has} bytes"
                    ))));
                }
                Ok(Self::Device(device, wanted))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_for_devices(path) => {
                Err(fail(Cause::Other(
                    "there is no such device; a file of that name would lie in memory, and be gone after a restart: check the name \
                     ('lsblk' lists disks)"
                        .into(),
                )))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => match wanted {
                Some(wanted) => Ok(Self::Nothing(wanted)),
                None => Err(fail(Cause::Other(format!(
                    "it does not exist; give a size to have it made, for example {}:10G",
                    path.display()
                )))),
            },
            Err(error) => Err(fail(Cause::from(&error))),
        }
    }
}

impl FileDevice {
    /// Opens `path` exclusively. An absent file is made with `size_bytes` (an error if that is `None`), its space
    /// allocated where the filesystem can. An existing smaller file is grown to `size_bytes`, a larger one refused:
    /// nothing is cut off. On a block device the size must not exceed its own.
    pub fn create(path: &Path, size_bytes: Option<u64>) -> Result<Self, DeviceError> {
        Self::of_found(Found::at(path, size_bytes)?, path)
    }

    /// Makes what is absent and grows what is smaller.
    pub(crate) fn of_found(found: Found, path: &Path) -> Result<Self, DeviceError> {
        let fail = |cause| DeviceError::whole(path.display().to_string(), Operation::Create, cause);
        match found {
            Found::Device(device, wanted) => {
                if device.size_bytes() < wanted {
                    device
                        .allocate(wanted)
                        .map_err(|error| fail(Cause::from(&error)))?;
                }
                device.size_bytes.store(wanted, Ordering::Release);
                Ok(device)
            }
            Found::Nothing(wanted) => {
                let device = Self::open_with(path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, false)
                    .map_err(|error| DeviceError {
                        operation: Operation::Create,
                        ..error
                    })?;
                let made = device.allocate(wanted).and_then(|()| {
                    // The name must be durable too, or the pool's only copy could vanish in a power cut.
                    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
                });
                if let Err(error) = made {
                    // Made a moment ago and by us: nothing of the user's is lost.
                    let _ = std::fs::remove_file(path);
                    return Err(fail(Cause::from(&error)));
                }
                device.size_bytes.store(wanted, Ordering::Release);
                Ok(device)
            }
        }
    }

    /// Length of the file or block device to the byte: a file may have more than the device counts.
    pub(crate) fn backing_bytes(&self) -> u64 {
        let length = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0));
        length.unwrap_or_else(|_| self.size_bytes())
    }

    /// Reads over the end of what the device counts; how many bytes there were.
    pub(crate) fn read_backing(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DeviceError> {
        let length = buffer.len() as u64;
        let mut done = 0;
        // What is no whole block is the end of a file, and no place to read on from directly.
        while done < buffer.len() && done.is_multiple_of(DEVICE_BLOCK_BYTES) {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(self.range_error(Operation::Read, offset, length, Cause::from(&error)));
                }
            }
        }
        Ok(done)
    }

    /// Opens an existing file or block device for reading and writing, exclusively.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        Self::open_with(path, libc::O_RDWR, false)
    }

    /// Opens for reading only and holds nothing; works while another process has the device in use.
    pub fn peek(path: &Path) -> Result<Self, DeviceError> {
        Self::open_with(path, libc::O_RDONLY, true)
    }

    /// Whether transfers go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether this is a block device, not a regular file.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    fn open_with(path: &Path, flags: i32, read_only: bool) -> Result<Self, DeviceError> {
        let fail = |cause| DeviceError::whole(path.display().to_string(), Operation::Open, cause);
        let mut flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        let block_device = match std::fs::metadata(path) {
            Ok(metadata) if metadata.file_type().is_block_device() => true,
            Ok(metadata) if metadata.is_file() => false,
            Ok(_) => {
                return Err(fail(Cause::Other(
                    "it is neither a regular file nor a block device".into(),
                )));
            }
            Err(_) => false,
        };
        if block_device && !read_only {
            flags |= libc::O_EXCL;
        }
        let (file, direct) = match open_raw(path, flags | libc::O_DIRECT) {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // With O_CREAT|O_EXCL the refused attempt may have made the file already.
                let retry = if path.exists() && !block_device {
                    flags & !(libc::O_CREAT | libc::O_EXCL)
                } else {
                    flags
                };
                (
                    open_raw(path, retry).map_err(|error| fail(Cause::from(&error)))?,
                    false,
                )
            }
            Err(error) if block_device && error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(fail(Cause::InUse));
            }
            Err(error) => return Err(fail(Cause::from(&error))),
        };
        if !read_only && !block_device {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(fail(Cause::InUse)),
                Err(error) => return Err(fail(Cause::System(error.raw_os_error()))),
            }
        }
        let size = measure(&file).map_err(|error| fail(Cause::from(&error)))?;
        // Some filesystems take O_DIRECT at open and refuse it at the first transfer: find out now.
        let direct = direct && (size < DEVICE_BLOCK_BYTES as u64 || probe_direct(&file));
        if !direct {
            let _ = rustix::fs::fcntl_getfl(&file)
                .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::DIRECT));
        }
        let read_unit_bytes = match direct {
            true => direct_read_unit(&file).unwrap_or(DEVICE_BLOCK_BYTES),
            false => DEVICE_SECTOR_BYTES,
        };
        Ok(Self {
            path: path.to_path_buf(),
            file,
            size_bytes: AtomicU64::new(size),
            direct,
            read_unit_bytes,
            block_device,
            read_only,
            flushing: FlushGate::default(),
            lone_reads: LoneReads::default(),
        })
    }

    /// Gives the file its size, with the blocks behind it where the filesystem can: then a later flush need not
    /// change the host's own metadata. Sparse where that would take (nearly) all the room that the host has left, or
    /// memory (tmpfs): the user may count on compression, and a full host serves nobody. Whoever makes it is told
    /// ([`HostShortage`](crate::HostShortage)).
    fn allocate(&self, size_bytes: u64) -> io::Result<()> {
        let has = self.file.metadata()?.len();
        if self.may_preallocate(size_bytes.saturating_sub(has)) {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, size_bytes) {
                Ok(()) => return self.file.sync_all(),
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
                Err(rustix::io::Errno::NOSPC) => {
                    // What was taken until then goes back.
                    self.file.set_len(has)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.file.set_len(size_bytes)?;
        self.file.sync_all()
    }

    fn may_preallocate(&self, bytes: u64) -> bool {
        let on_tmpfs = rustix::fs::fstatfs(&self.file).is_ok_and(|stat| stat.f_type == TMPFS_MAGIC);
        let room =
            rustix::fs::fstatvfs(&self.file).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        !on_tmpfs && bytes < room / 10 * 9
    }

    fn range_error(&self, operation: Operation, offset: u64, length: u64, cause: Cause) -> DeviceError {
        DeviceError::range(self.path(), operation, offset, length, cause)
    }

    /// Does these at once where there is a ring; which of them are done to the end, empty if there is none.
    fn transfer(&self, transfers: &mut [RingTransfer<'_>]) -> Vec<bool> {
        if transfers.is_empty() || !batched_transfer::transfer_all(self.file.as_fd(), transfers) {
            return Vec::new();
        }
        let whole = |transfer: &RingTransfer<'_>| {
            let length = match &transfer.memory {
                Memory::Read(buffer) => buffer.len(),
                Memory::Write(data) => data.len(),
            };
            matches!(transfer.outcome, Ok(done) if done == length)
        };
        transfers.iter().map(whole).collect()
    }

    fn write_all(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if !self.direct || is_aligned(data.as_ptr()) {
            return self.file.write_all_at(data, offset);
        }
        let mut bounce = AlignedBuffer::with_capacity(data.len().min(BOUNCE_BYTES));
        for (index, part) in data.chunks(BOUNCE_BYTES).enumerate() {
            bounce.reuse(part.len()).copy_from_slice(part);
            self.file
                .write_all_at(&bounce, offset + (index * BOUNCE_BYTES) as u64)?;
        }
        Ok(())
    }

    fn read_all(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if !self.direct {
            return self.file.read_exact_at(buffer, offset);
        }
        if is_multiple(buffer.as_ptr(), self.read_unit_bytes) {
            return match buffer.len() {
                ..=SMALL_BYTES_MAX => self.lone_reads.read(&self.file, offset, buffer),
                _ => self.file.read_exact_at(buffer, offset),
            };
        }
        let mut bounce = AlignedBuffer::with_capacity(buffer.len().min(BOUNCE_BYTES));
        for (index, part) in buffer.chunks_mut(BOUNCE_BYTES).enumerate() {
            let bytes = bounce.reuse(part.len());
            self.file
                .read_exact_at(bytes, offset + (index * BOUNCE_BYTES) as u64)?;
            part.copy_from_slice(bytes);
        }
        Ok(())
    }
}

impl Device for FileDevice {
    fn path(&self) -> String {
        self.path.display().to_string()
    }

    fn stray(&self) -> Option<Stray> {
        Stray::of(&self.file, &self.path)
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    fn read_unit_bytes(&self) -> usize {
        self.read_unit_bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let length = buffer.len() as u64;
        check_range(self, Operation::Read, offset, length)?;
        self.read_all(offset, buffer).map_err(|error| {
            let short = error.kind() == io::ErrorKind::UnexpectedEof;
            let cause = if short { Cause::Short } else { Cause::from(&error) };
            self.range_error(Operation::Read, offset, length, cause)
        })
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) {
        let suits = |read: &ReadRequest<'_>| {
            is_multiple(read.buffer.as_ptr(), self.read_unit_bytes)
                && check_range(self, Operation::Read, read.offset, read.buffer.len() as u64).is_ok()
        };
        // Buffered reads would be done one after the other by the ring as well.
        let at_once = self.direct && reads.len() > 1 && reads.iter().all(suits);
        let mut transfers: Vec<RingTransfer<'_>> = Vec::new();
        if at_once {
            transfers.extend(reads.iter_mut().map(|read| RingTransfer {
                offset: read.offset,
                memory: Memory::Read(&mut *read.buffer),
                outcome: Ok(0),
            }));
        }
        let outcomes = self.transfer(&mut transfers);
        // What failed or came short is read by itself, which says why.
        for (at, read) in reads.iter_mut().enumerate() {
            read.outcome = match outcomes.get(at) {
                Some(true) => Ok(()),
                _ => self.read_at(read.offset, read.buffer),
            };
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let length = data.len() as u64;
        check_range(self, Operation::Write, offset, length)?;
        if self.read_only {
            return Err(self.range_error(Operation::Write, offset, length, Cause::ReadOnly));
        }
        self.write_all(offset, data)
            .map_err(|error| self.range_error(Operation::Write, offset, length, Cause::from(&error)))
    }

    fn write_many(&self, writes: &mut [WriteRequest<'_>]) {
        let suits = |write: &WriteRequest<'_>| {
            is_aligned(write.data.as_ptr())
                && check_range(self, Operation::Write, write.offset, write.data.len() as u64).is_ok()
        };
        let at_once = self.direct && !self.read_only && writes.len() > 1 && writes.iter().all(suits);
        let mut transfers: Vec<RingTransfer<'_>> = Vec::new();
        if at_once {
            transfers.extend(writes.iter().map(|write| RingTransfer {
                offset: write.offset,
                memory: Memory::Write(write.data),
                outcome: Ok(0),
            }));
        }
        let outcomes = self.transfer(&mut transfers);
        // What failed or came short is written by itself, which says why.
        for (at, write) in writes.iter_mut().enumerate() {
            write.outcome = match outcomes.get(at) {
                Some(true) => Ok(()),
                _ => self.write_at(write.offset, write.data),
            };
        }
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<(), DeviceError> {
        let whole = parts.iter().map(|part| part.len() as u64).sum();
        check_range(self, Operation::Write, offset, whole)?;
        let suits = |part: &&[u8]| {
            part.len().is_multiple_of(DEVICE_BLOCK_BYTES) && (!self.direct || is_aligned(part.as_ptr()))
        };
        if self.read_only || parts.len() < 2 || parts.len() > PARTS_MAX || !parts.iter().all(suits) {
            let mut at = offset;
            for part in parts {
                self.write_at(at, part)?;
                at += part.len() as u64;
            }
            return Ok(());
        }
        let slices: Vec<io::IoSlice<'_>> = parts.iter().map(|part| io::IoSlice::new(part)).collect();
        let written = loop {
            match rustix::io::pwritev(&self.file, &slices, offset) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    let cause = Cause::System(error.raw_os_error());
                    return Err(self.range_error(Operation::Write, offset, whole, cause));
                }
                Ok(written) => break written as u64,
            }
        };
        // A short write is rare: finish it part by part from the block it reached.
        let reached = offset + written / DEVICE_BLOCK_BYTES as u64 * DEVICE_BLOCK_BYTES as u64;
        let mut at = offset;
        for part in parts {
            let end = at + part.len() as u64;
            if end > reached {
                let skip = reached.saturating_sub(at) as usize;
                self.write_at(at + skip as u64, &part[skip..])?;
            }
            at = end;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.read_only {
            return Ok(());
        }
        self.flushing
            .pass(|| self.file.sync_data())
            .map_err(|cause| DeviceError::whole(self.path(), Operation::Flush, cause))
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        check_range(self, Operation::Discard, offset, length)?;
        if self.read_only || length == 0 {
            return Ok(());
        }
        // On a regular file a hole would have to be allocated again by later writes, which then change the host's
        // metadata at every flush; the space was given to the pool for good.
        if !self.block_device {
            return Ok(());
        }
        let range: [u64; 2] = [offset, length];
        // SAFETY: BLKDISCARD (0x1277) reads two u64 from the pointer, which lives through the call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), 0x1277, range.as_ptr()) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL) => Ok(()),
            _ => Err(self.range_error(Operation::Discard, offset, length, Cause::from(&error))),
        }
    }

    fn truncate(&self, size_bytes: u64) -> Result<bool, DeviceError> {
        if self.read_only || self.block_device {
            return Ok(false);
        }
        let fail = |error: io::Error| DeviceError::whole(self.path(), Operation::Resize, Cause::from(&error));
        let has = self.file.metadata().map_err(fail)?.len();
        if size_bytes < has {
            self.file.set_len(size_bytes).map_err(fail)?;
            self.file.sync_all().map_err(fail)?;
        }
        self.size_bytes.fetch_min(size_bytes, Ordering::AcqRel);
        Ok(true)
    }

    fn refresh_size(&self) -> Result<u64, DeviceError> {
        let size = measure(&self.file)
            .map_err(|error| DeviceError::whole(self.path(), Operation::Resize, Cause::from(&error)))?;
        self.size_bytes.fetch_max(size, Ordering::AcqRel);
        Ok(self.size_bytes())
    }
}

/// Checks a transfer against the size and the alignment of `device`.
pub(crate) fn check_range(
    device: &dyn Device,
    operation: Operation,
    offset: u64,
    length: u64,
) -> Result<(), DeviceError> {
    let unit = match operation {
        Operation::Read => device.read_unit_bytes() as u64,
        _ => u64::from(device.block_bytes()),
    };
    if !offset.is_multiple_of(unit) || !length.is_multiple_of(unit) {
        return Err(DeviceError::range(
            device.path(),
            operation,
            offset,
            length,
            Cause::Misaligned,
        ));
    }
    let size_bytes = device.size_bytes();
    if offset.checked_add(length).is_none_or(|end| end > size_bytes) {
        return Err(DeviceError::range(
            device.path(),
            operation,
            offset,
            length,
            Cause::OutOfRange { size_bytes },
        ));
    }
    Ok(())
}

fn is_aligned(pointer: *const u8) -> bool {
    is_multiple(pointer, DEVICE_BLOCK_BYTES)
}

fn is_multiple(pointer: *const u8, unit: usize) -> bool {
    pointer.addr().is_multiple_of(unit)
}

fn open_raw(path: &Path, flags: i32) -> io::Result<File> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path contains a zero byte"))?;
    // SAFETY: `name` is a zero-terminated string that lives through the call.
    let descriptor = unsafe { libc::open(name.as_ptr(), flags, 0o600) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that `open` just returned is owned by nobody else.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

/// Size in bytes, rounded down to 4096; works for block devices too, whose metadata says 0.
fn measure(file: &File) -> io::Result<u64> {
    let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?;
    Ok(size / DEVICE_BLOCK_BYTES as u64 * DEVICE_BLOCK_BYTES as u64)
}

/// What direct reads must be multiples of in offset, length and address, if the kernel says so (since Linux 6.1) and keeps
/// its word.
fn direct_read_unit(file: &File) -> Option<usize> {
    let asked = rustix::fs::StatxFlags::DIOALIGN;
    let stat = rustix::fs::statx(file, c"", rustix::fs::AtFlags::EMPTY_PATH, asked).ok()?;
    let told = stat.stx_mask & asked.bits() != 0 && stat.stx_dio_offset_align > 0;
    let unit = stat.stx_dio_offset_align.max(stat.stx_dio_mem_align) as usize;
    let unit = told.then_some(unit.max(DEVICE_SECTOR_BYTES))?;
    if !unit.is_power_of_two() || unit >= DEVICE_BLOCK_BYTES {
        return None;
    }
    let mut block = AlignedBuffer::zeroed(2 * unit);
    file.read_at(&mut block[unit..], unit as u64).ok()?;
    Some(unit)
}

fn probe_direct(file: &File) -> bool {
    let mut block = AlignedBuffer::zeroed(DEVICE_BLOCK_BYTES);
    match file.read_at(&mut block, 0) {
        Err(error) => error.raw_os_error() != Some(libc::EINVAL),
        Ok(_) => true,
    }
}
