//! A device whose next writes fail, as many as it is told; everything else is done by the device below.
#![allow(dead_code, missing_docs)]

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::SeqCst},
};

use terrace_device::{Cause, Device, DeviceError, Operation};

pub struct FailingDevice {
    pub below: Arc<dyn Device>,
    left: AtomicU32,
}

impl FailingDevice {
    pub fn new(below: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self {
            below,
            left: AtomicU32::new(0),
        })
    }

    /// So many writes fail from now on.
    pub fn fail_next(&self, writes: u32) {
        self.left.store(writes, SeqCst);
    }

    /// Writes fail until [`work`](Self::work).
    pub fn fail(&self) {
        self.fail_next(u32::MAX);
    }

    pub fn work(&self) {
        self.fail_next(0);
    }

    /// Writes that are still to fail.
    pub fn left(&self) -> u32 {
        self.left.load(SeqCst)
    }
}

impl Device for FailingDevice {
    fn path(&self) -> String {
        self.below.path()
    }
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let fails = self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        if fails.is_ok() {
            return Err(DeviceError::whole(self.path(), Operation::Write, Cause::Gone));
        }
        self.below.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below.discard(offset, length)
    }
    fn truncate(&self, size_bytes: u64) -> Result<bool, DeviceError> {
        self.below.truncate(size_bytes)
    }
}
