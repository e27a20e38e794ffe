//! A disk that holds one block back, or what it says of itself.

use std::{sync::Arc, thread, time::Duration};

use parking_lot::{Condvar, Mutex};
use terrace_dataset::{BlockDevice, BlockRead, BlockStatus, FsError};

use super::Disk;

/// Its first block takes a while, its second one waits until it is let go.
pub const SLOW: u64 = 0;
pub const HELD: u64 = 4096;
pub const QUICK: u64 = 8192;

/// A disk that holds something back.
pub struct Holding {
    disk: Arc<Disk>,
    /// It is not a block, but the size of all of them.
    is_about_itself: bool,
    /// Whether somebody waits, and whether nobody has to any more.
    held: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Holding {
    /// Holds a block back.
    pub fn new(bytes: usize) -> Arc<Self> {
        Self::with(bytes, false)
    }

    /// Holds back how large its blocks are, which a client is told of an export last.
    pub fn about_itself(bytes: usize) -> Arc<Self> {
        Self::with(bytes, true)
    }

    fn with(bytes: usize, is_about_itself: bool) -> Arc<Self> {
        Arc::new(Self {
            disk: Disk::new(bytes),
            is_about_itself,
            held: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn hold(&self) {
        let mut held = self.held.lock();
        held.0 = true;
        self.changed.notify_all();
        while !held.1 {
            self.changed.wait(&mut held);
        }
    }

    /// Until somebody waits for what is held back.
    pub fn wait_for_reader(&self) {
        let mut held = self.held.lock();
        while !held.0 {
            self.changed.wait(&mut held);
        }
    }

    pub fn release(&self) {
        self.held.lock().1 = true;
        self.changed.notify_all();
    }
}

/// Lets go, however the test ends.
pub struct Release<'a>(pub &'a Holding);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl BlockDevice for Holding {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        if self.is_about_itself {
            self.hold();
        }
        4096
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        match offset {
            SLOW => thread::sleep(Duration::from_millis(1)),
            HELD if !self.is_about_itself => self.hold(),
            _ => {}
        }
        self.disk.read(offset, buffer)
    }
    fn read_many(&self, reads: &mut [BlockRead<'_>]) {
        for read in reads {
            read.outcome = self.read(read.offset, read.buffer);
        }
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        self.disk.write(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.disk.write_zeroes(offset, length)
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.disk.discard(offset, length)
    }
    fn flush(&self) -> Result<(), FsError> {
        self.disk.flush()
    }
    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError> {
        self.disk.block_status(offset, length, limit)
    }
}
