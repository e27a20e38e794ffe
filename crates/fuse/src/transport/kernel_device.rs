//! `/dev/fuse`: one open connection to the kernel, and further handles to it.
//!
//! Invariants: every reply goes to the handle that its request came from (the kernel looks for it only there); a
//! connection that is gone shows as [`Received::Ended`], never as an error loop.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::protocol::{IN_HEADER_BYTES, TransferBuffer, WRITE_IN_BYTES};

/// Where the kernel is talked to.
pub const DEVICE_PATH: &str = "/dev/fuse";
/// `_IOR(229, 0, uint32_t)`.
const IOCTL_CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
const PAGE_BYTES: usize = 4096;
/// After so long without a request the memory of long ones is given back.
pub const REST: Duration = Duration::from_secs(1);

/// What a read of the device gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// A request, in the buffer.
    Request,
    /// Nothing there (handles that do not wait), or the request was taken back; try again.
    Nothing,
    /// The filesystem was unmounted, or the connection aborted.
    Ended,
}

/// Where a request begins in its buffer, so that the data of a WRITE starts on a page boundary.
const REQUEST_AT: usize = PAGE_BYTES - IN_HEADER_BYTES - WRITE_IN_BYTES;

/// Room for the largest request.
pub struct RequestBuffer {
    storage: TransferBuffer,
    length: usize,
}

impl RequestBuffer {
    /// For requests with up to `data_bytes` of data; what is in use counts in `bytes`.
    pub fn new(data_bytes: usize, bytes: &Arc<AtomicU64>) -> Self {
        Self {
            storage: TransferBuffer::new(data_bytes + 2 * PAGE_BYTES, bytes),
            length: 0,
        }
    }

    /// Whether a mount at rest should have it [give memory back](Self::give_back).
    pub fn is_grown(&self) -> bool {
        self.storage.is_grown()
    }

    /// Gives memory back to the system, and forgets the request.
    pub fn give_back(&mut self) {
        self.length = 0;
        self.storage.give_back(PAGE_BYTES);
    }

    /// The request that was read last.
    pub fn request(&self) -> &[u8] {
        &self.storage[REQUEST_AT..REQUEST_AT + self.length]
    }
}

/// A handle to a FUSE connection.
#[derive(Debug)]
pub struct Connection {
    file: OwnedFd,
}

impl Connection {
    /// Opens the device: a connection that is not mounted yet.
    pub fn open() -> io::Result<Self> {
        let file = open_device(false)?;
        // In a container something else may lie there, which mount(2) would refuse without a word of it.
        if !is_fuse_device(&file.metadata()?) {
            return Err(io::Error::other(
                "this is not the FUSE device (character device 10, 229)",
            ));
        }
        Ok(Self { file: file.into() })
    }

    /// A connection whose descriptor came from `fusermount3`.
    pub fn from_descriptor(file: OwnedFd) -> Self {
        Self { file }
    }

    /// Another handle to the same mounted connection, with its own queue of requests being served. `waits`: whether
    /// reading waits for a request.
    pub fn duplicate(&self, waits: bool) -> io::Result<Self> {
        let clone = open_device(!waits)?;
        let mut of: u32 = self.file.as_raw_fd() as u32;
        // SAFETY: the ioctl reads one u32, a descriptor that `self` keeps open.
        let result = unsafe { libc::ioctl(clone.as_raw_fd(), IOCTL_CLONE, &raw mut of) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file: clone.into() })
    }

    /// Reads one request.
    pub fn receive(&self, buffer: &mut RequestBuffer) -> io::Result<Received> {
        buffer.length = 0;
        let room = &mut buffer.storage[REQUEST_AT..];
        match rustix::io::read(&self.file, room) {
            Ok(0) => Ok(Received::Ended),
            Ok(length) => {
                buffer.length = length;
                buffer.storage.note_use(REQUEST_AT + length);
                Ok(Received::Request)
            }
            // ENOENT: the request was interrupted before we got it.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {
                Ok(Received::Nothing)
            }
            Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED | rustix::io::Errno::NOTCONN) => {
                Ok(Received::Ended)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until a request can be read, at most for `limit`; whether one may be there.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut handles = [PollFd::new(&self.file, PollFlags::IN)];
        let limit = Timespec::try_from(limit).ok();
        !matches!(poll(&mut handles, limit.as_ref()), Ok(0))
    }

    /// Sends a whole message. That the kernel no longer waits for it (ENOENT) or has unmounted is no error.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        match rustix::io::write(&self.file, message) {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a notification; unlike replies these can fail for reasons that the caller wants to know.
    pub fn notify(&self, message: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.file, message)
            .map(|_| ())
            .map_err(Into::into)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn is_fuse_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_char_device() && metadata.rdev() == rustix::fs::makedev(10, 229)
}

fn open_device(non_blocking: bool) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | if non_blocking { libc::O_NONBLOCK } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(DEVICE_PATH)
}
