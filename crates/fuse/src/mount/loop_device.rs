//! `LoopDevice`: a kernel block device over a file, as the local face of a volume.
//!
//! The file is one that we serve over FUSE, so direct I/O is asked for: requests then reach us as they are, flushes
//! as FSYNC, discards as FALLOCATE. Invariant: a device that this module set up is auto-cleared, so that it goes away
//! with its last opener once detached.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd, RawFd},
    path::{Path, PathBuf},
};

/// Where the kernel is asked for a free one.
const CONTROL_PATH: &str = "/dev/loop-control";
const LOOP_CLEAR: libc::c_ulong = 0x4C01;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_GET_FREE: libc::c_ulong = 0x4C82;
/// `_IO(0x12, 93)` of linux/fs.h: sets whether a block device is for reading alone.
const BLKROSET: libc::c_ulong = 0x125d;

const FLAG_READ_ONLY: u32 = 1;
/// Partitions become devices of their own, as those of any disk do: /dev/loopNpM.
const FLAG_PARTITIONS: u32 = 8;
const FLAG_DIRECT_IO: u32 = 16;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInformation {
    device: u64,
    inode: u64,
    backing_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: u32,
    key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfiguration {
    file: u32,
    block_bytes: u32,
    information: LoopInformation,
    reserved: [u64; 8],
}

/// Why there is no loop device.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot {doing} {path}: {cause}; 'terrace doctor' says what this machine lacks, and 'terrace serve' needs no loop device"
)]
pub struct LoopError {
    doing: &'static str,
    path: String,
    cause: io::Error,
}

fn failed(doing: &'static str, path: &Path, cause: io::Error) -> LoopError {
    LoopError {
        doing,
        path: path.display().to_string(),
        cause,
    }
}

/// Calls an ioctl whose argument is a plain number.
fn control(file: &File, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the requests passed here take a number, or none, and touch no memory of ours.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, argument) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn open_control() -> Result<File, LoopError> {
    let path = Path::new(CONTROL_PATH);
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|cause| failed("open", path, cause))
}

fn configure(device: &File, backing: RawFd, block_bytes: u32, read_only: bool, name: &str) -> io::Result<()> {
    let mut file_name = [0; 64];
    let length = name.len().min(63);
    file_name[..length].copy_from_slice(&name.as_bytes()[..length]);
    let information = LoopInformation {
        device: 0,
        inode: 0,
        backing_device: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encryption: 0,
        key_size: 0,
        flags: FLAG_DIRECT_IO | FLAG_PARTITIONS | if read_only { FLAG_READ_ONLY } else { 0 },
        file_name,
        crypt_name: [0; 64],
        key: [0; 32],
        init: [0; 2],
    };
    let configuration = LoopConfiguration {
        file: backing as u32,
        block_bytes,
        information,
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads one `loop_config`, which outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &configuration) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Tells the kernel whether a block device, of whatever kind, is for reading alone from now on. It holds until it is told
/// otherwise: a loop device keeps it over its detaching, for whoever takes that device next.
pub fn tell_read_only(device: &File, read_only: bool) -> io::Result<()> {
    let read_only = libc::c_int::from(read_only);
    // SAFETY: BLKROSET reads one int, which lives as long as the call; the descriptor is open.
    match unsafe { libc::ioctl(device.as_raw_fd(), BLKROSET as _, &raw const read_only) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The N of `/dev/loopN`.
fn number_of(path: &Path) -> Option<u32> {
    path.to_str()?.strip_prefix("/dev/loop")?.parse().ok()
}

/// A loop device over a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Whether loop devices can be asked for here at all.
    pub fn check_available() -> Result<(), LoopError> {
        open_control().map(drop)
    }

    /// Takes a free loop device for `backing`. Must not be called by a thread that serves the file.
    pub fn attach(backing: &Path, block_bytes: u32, read_only: bool) -> Result<Self, LoopError> {
        Self::attach_as(backing, block_bytes, read_only, None)
    }

    /// Like [`attach`](Self::attach); takes `wanted` (`/dev/loopN`) if that is free.
    pub fn attach_as(
        backing: &Path,
        block_bytes: u32,
        read_only: bool,
        wanted: Option<&Path>,
    ) -> Result<Self, LoopError> {
        let file = OpenOptions::new().read(true).write(!read_only).open(backing);
        let file = file.map_err(|cause| failed("open", backing, cause))?;
        let loops = open_control()?;
        let set_up = |path: &Path| {
            let device = OpenOptions::new().read(true).write(!read_only).open(path);
            let device = device.map_err(|cause| failed("open", path, cause))?;
            let name = backing.display().to_string();
            match configure(&device, file.as_raw_fd(), block_bytes, read_only, &name) {
                // Who had the device before may have left it for reading alone.
                Ok(()) if !read_only => match tell_read_only(&device, false) {
                    Ok(()) => Ok(true),
                    Err(cause) => {
                        let _ = control(&device, LOOP_CLEAR, 0);
                        Err(failed("make writable", path, cause))
                    }
                },
                Ok(()) => Ok(true),
                Err(cause) if cause.raw_os_error() == Some(libc::EBUSY) => Ok(false),
                Err(cause) => Err(failed("set up", path, cause)),
            }
        };
        // A device that cannot be had again is no reason to have none.
        if let Some(wanted) = wanted.filter(|path| number_of(path).is_some())
            && matches!(set_up(wanted), Ok(true))
        {
            return Ok(Self::at(wanted));
        }
        // Another process may take the free device first; then the next one is asked for.
        for _ in 0..64 {
            let number = control(&loops, LOOP_GET_FREE, 0)
                .map_err(|cause| failed("find a free device with", Path::new(CONTROL_PATH), cause))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            if set_up(&path)? {
                return Ok(Self { path });
            }
        }
        Err(failed(
            "find a free device with",
            Path::new(CONTROL_PATH),
            io::ErrorKind::ResourceBusy.into(),
        ))
    }

    /// The device of that path, set up earlier.
    pub fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// The device that shows `backing`, if there is one.
    pub fn find(backing: &Path) -> Option<Self> {
        let entries = std::fs::read_dir("/sys/block").ok()?;
        entries.flatten().find_map(|entry| {
            let name = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            (Path::new(name.trim_end()) == backing).then(|| Self {
                path: Path::new("/dev").join(entry.file_name()),
            })
        })
    }

    /// Whether the device shows `backing` (and nobody has detached it, or taken it for something else). Where the filesystem
    /// that had the file was taken out of the tree, the kernel knows the file by its path in that filesystem: by its name alone,
    /// as it lies at the top.
    pub fn shows(&self, backing: &Path) -> bool {
        let Some(name) = self.path.file_name().filter(|_| number_of(&self.path).is_some()) else {
            return false;
        };
        let place = Path::new("/sys/block").join(name).join("loop/backing_file");
        let Ok(shown) = std::fs::read_to_string(place) else {
            return false;
        };
        let shown = Path::new(shown.trim_end());
        let is_at_the_top = || {
            backing
                .file_name()
                .is_some_and(|name| shown == Path::new("/").join(name))
        };
        shown == backing || is_at_the_top() && !backing.exists()
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the kernel to look at the file's size again.
    pub fn refresh_size(&self) -> Result<(), LoopError> {
        let device = File::open(&self.path).map_err(|cause| failed("open", &self.path, cause))?;
        control(&device, LOOP_SET_CAPACITY, 0)
            .map(drop)
            .map_err(|cause| failed("resize", &self.path, cause))
    }

    /// Lets go of the file; while something still uses the device, it goes with its last user. What the kernel was told of
    /// reading alone does not stay behind.
    pub fn detach(&self) -> Result<(), LoopError> {
        let device = File::open(&self.path).map_err(|cause| failed("open", &self.path, cause))?;
        // Refused to none who may detach; and who takes the device next would be told of it by a refused write only.
        let _ = tell_read_only(&device, false);
        control(&device, LOOP_CLEAR, 0)
            .map(drop)
            .map_err(|cause| failed("detach", &self.path, cause))
    }
}
