//! `Volume`: a dataset as a block device. One object with the same pages, regions and commits as a file.

use std::sync::Arc;

use crate::{error::FsError, state::DatasetState};

/// Data or hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockStatus {
    /// Where it starts, bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Whether anything is mapped there; otherwise it reads as zero.
    pub data: bool,
}

/// A live volume. All methods may be called from any thread; offsets and lengths need no alignment.
pub struct Volume {}

#[allow(unused_variables)]
impl Volume {
    /// Opens a dataset that exists.
    pub fn open(state: Arc<DatasetState>) -> Result<Arc<Self>, FsError> {
        todo!()
    }

    /// Bytes.
    pub fn size_bytes(&self) -> u64 {
        todo!()
    }

    /// Fills `buffer`; `Invalid` beyond the end.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        todo!()
    }

    /// Writes; `NoSpace` beyond the end or when the pool is full.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        todo!()
    }

    /// Makes the range read as zero and gives its room back.
    pub fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        todo!()
    }

    /// Makes the range read as zero.
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        todo!()
    }

    /// Makes everything done so far durable.
    pub fn flush(&self) -> Result<(), FsError> {
        todo!()
    }

    /// Hands everything done so far to the store, without flushing.
    pub fn commit(&self) -> Result<(), FsError> {
        todo!()
    }

    /// Changes the size; shrinking drops what is behind it.
    pub fn resize(&self, size_bytes: u64) -> Result<(), FsError> {
        todo!()
    }

    /// Data and holes of a range, at most `limit` pieces, from its start.
    pub fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError> {
        todo!()
    }
}
