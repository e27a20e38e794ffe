//! What a read found before it asks the store, and what is to be fetched for it.

use std::ops::Range;

use terrace_cache::Waiting;
use terrace_store::{BLOCK_BYTES, ChunkId, StoreError};

use crate::{posix::FsError, records::REGION_BLOCKS};

pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

pub(crate) const PER_REGION: u64 = REGION_BLOCKS as u64;

/// A piece to copy out of a chunk: `at..at + length` of the buffer from `from` of the chunk on.
pub(crate) struct Fetch {
    pub(crate) chunk: ChunkId,
    pub(crate) from: usize,
    pub(crate) at: usize,
    pub(crate) length: usize,
    /// About how long the chunk is.
    pub(crate) chunk_bytes: usize,
    /// How it is fetched, if not through the cache.
    pub(crate) past: Past,
}

/// What a read found before it asks the store: what RAM knows is in its buffer already.
#[derive(Default)]
pub(crate) struct Lookup {
    /// Bytes up to the end of the file.
    pub(crate) length: usize,
    pub(crate) sequential: bool,
    /// From where, and up to where, to read ahead, bytes.
    pub(crate) ahead: Option<Range<u64>>,
    pub(crate) object: u64,
    pub(crate) body: u64,
    /// Where it begins, bytes.
    pub(crate) offset: u64,
    /// Its chunks are used, not only passed by a scan.
    pub(crate) is_use: bool,
    /// Who uses them, if that may be taken back.
    pub(crate) noted_for: Option<u32>,
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) waiting: Option<Waiting>,
}

pub(crate) enum ReadError {
    Moved,
    Failed(FsError),
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoChunk(_) => ReadError::Moved,
            other => ReadError::Failed(other.into()),
        }
    }
}

impl From<FsError> for ReadError {
    fn from(error: FsError) -> Self {
        ReadError::Failed(error)
    }
}

/// How a piece is fetched past the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Past {
    /// Not at all, or that has failed.
    No,
    /// It is about to be.
    Coming,
    /// It is in its buffer, so many bytes up to the chunk's end.
    Filled(usize),
}

impl Past {
    pub(crate) fn is_filled(self) -> bool {
        matches!(self, Self::Filled(_))
    }
}
