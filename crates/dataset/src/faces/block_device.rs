//! `BlockDevice`: what the front-ends serve: a live volume, a snapshot of one, or either for reading alone.
//!
//! Invariant: what is only to be read says so, and refuses changes even from a client that asks for them.

use super::{snapshot_view::View, volume::Volume};
use crate::{
    posix::{BlockStatus, FsError, ROOT, Tree},
    reading::BlockRead,
    settings::Durability,
};
use std::sync::Arc;

/// A block device to be served. Offsets and lengths are bytes and need no alignment; outside the device they are
/// `Invalid`.
pub trait BlockDevice: Send + Sync {
    /// Size now; it may change when the volume is resized.
    fn size_bytes(&self) -> u64;
    /// Logical block that clients are told, bytes.
    fn block_bytes(&self) -> u32;
    /// Whether writes are refused.
    fn read_only(&self) -> bool;
    /// Whether that can never be set otherwise: what is told of the device once and for all goes by this.
    fn stays_read_only(&self) -> bool {
        self.read_only()
    }
    /// What a write, or a flush, that has returned is worth; it may be set otherwise at any time.
    fn durability(&self) -> Durability {
        Durability::Barrier
    }
    /// Fills `buffer` from `offset`.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError>;
    /// Does several reads, each as [`read`](Self::read); what they want of the storage may be asked for at once.
    fn read_many(&self, reads: &mut [BlockRead<'_>]) {
        for read in reads {
            read.outcome = self.read(read.offset, read.buffer);
        }
    }
    /// Writes `data` at `offset`.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError>;
    /// Makes the range read as zeroes. What is set aside for a volume stays so.
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError>;
    /// Frees the range; it reads as zeroes afterwards.
    fn discard(&self, offset: u64, length: u64) -> Result<(), FsError>;
    /// Makes every write that returned before the call durable (as far as `durability` wants a flush to).
    fn flush(&self) -> Result<(), FsError>;
    /// What is stored in the range: consecutive stretches from `offset`, at most `limit` of them, at least one. They may end
    /// before the range does: what is behind is asked for then.
    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError>;
}

impl BlockDevice for Volume {
    fn size_bytes(&self) -> u64 {
        Self::size_bytes(self)
    }

    fn block_bytes(&self) -> u32 {
        self.dataset().settings().block_bytes
    }

    fn read_only(&self) -> bool {
        self.dataset().settings().readonly
    }

    fn stays_read_only(&self) -> bool {
        false
    }

    fn durability(&self) -> Durability {
        self.dataset().settings().durability
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        Self::read(self, offset, buffer)
    }

    fn read_many(&self, reads: &mut [BlockRead<'_>]) {
        Self::read_many(self, reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        Self::write(self, offset, data)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        Self::write_zeroes(self, offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        Self::discard(self, offset, length)
    }

    fn flush(&self) -> Result<(), FsError> {
        Self::flush(self)
    }

    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError> {
        Self::block_status(self, offset, length, limit)
    }
}

/// A device whose clients may only read.
pub struct ReadOnly(pub Arc<dyn BlockDevice>);

impl BlockDevice for ReadOnly {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn durability(&self) -> Durability {
        self.0.durability()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        self.0.read(offset, buffer)
    }

    fn read_many(&self, reads: &mut [BlockRead<'_>]) {
        self.0.read_many(reads);
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), FsError> {
        Err(FsError::ReadOnly)
    }

    fn write_zeroes(&self, _: u64, _: u64) -> Result<(), FsError> {
        Err(FsError::ReadOnly)
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), FsError> {
        Err(FsError::ReadOnly)
    }

    fn flush(&self) -> Result<(), FsError> {
        self.0.flush()
    }

    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError> {
        self.0.block_status(offset, length, limit)
    }
}

/// A volume as it was.
pub struct PastVolume {
    view: Arc<View>,
    size_bytes: u64,
}

impl PastVolume {
    /// Of a view of a volume.
    pub fn new(view: Arc<View>) -> Result<Self, FsError> {
        let size_bytes = view.attributes(ROOT)?.size;
        Ok(Self { view, size_bytes })
    }
}

impl BlockDevice for PastVolume {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_bytes(&self) -> u32 {
        self.view.dataset().settings().block_bytes
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        if self.view.read(ROOT, offset, buffer)? == buffer.len() {
            Ok(())
        } else {
            Err(FsError::Invalid)
        }
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), FsError> {
        Err(FsError::ReadOnly)
    }

    fn write_zeroes(&self, _: u64, _: u64) -> Result<(), FsError> {
        Err(FsError::ReadOnly)
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), FsError> {
        Err(FsError::ReadOnly)
    }

    fn flush(&self) -> Result<(), FsError> {
        Ok(())
    }

    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError> {
        let end = offset.checked_add(length).filter(|end| *end <= self.size_bytes);
        self.view
            .block_status(ROOT, offset, end.ok_or(FsError::Invalid)?, limit)
    }
}
