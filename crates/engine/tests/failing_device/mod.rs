//! A device whose next writes fail, as many as it is told; everything else is done by the device below.
#![allow(dead_code, missing_docs)]

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::SeqCst},
};

use terrace_device::{Cause, Device, DeviceError, Operation};

/// Labels and roots lie before this, and one more label at the end.
const FRONT_BYTES: u64 = 1 << 20;
const LABEL_BYTES: u64 = 64 << 10;

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

    /// So many writes fail from now on, but for those of labels and roots.
    pub fn fail_next(&self, writes: u32) {
        self.left.store(writes, SeqCst);
    }

    /// All writes fail until [`work`](Self::work).
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
        // Of single writes not those of labels and roots: it is the log that is to lack something.
        let end = self.size_bytes() - LABEL_BYTES;
        let counts = (FRONT_BYTES..end).contains(&offset) || self.left() > u32::MAX / 2;
        let take = |left: u32| left.checked_sub(1);
        if counts && self.left.fetch_update(SeqCst, SeqCst, take).is_ok() {
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
