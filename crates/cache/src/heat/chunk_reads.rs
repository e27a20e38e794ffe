//! Reads of chunks, as those who count them see them: which blocks of which chunk, for which object.
//!
//! Invariant: no block beyond the longest chunk is named, whatever is asked for.

use std::num::NonZeroU8;

use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId};

/// A chunk of so many blocks is long: one hot block of it need not take the others along.
pub const LONG_BLOCKS: u32 = 4;
pub(crate) const BLOCKS_MAX: u32 = (CHUNK_BYTES_MAX / BLOCK_BYTES) as u32;

/// Blocks of a chunk that a read wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRead {
    /// The chunk.
    pub id: ChunkId,
    /// The first block of it, and how many.
    pub index: u8,
    /// See `index`.
    pub blocks: u8,
    /// How many blocks the chunk has, as far as the reader knows.
    pub chunk_blocks: u8,
}

impl ChunkRead {
    /// `length` bytes from `from` on, of a chunk of `chunk_bytes`.
    pub fn of(id: ChunkId, from: usize, length: usize, chunk_bytes: usize) -> Self {
        let block = |bytes: usize| (bytes / BLOCK_BYTES).min(BLOCKS_MAX as usize - 1);
        let (first, last) = (block(from), block(from + length.max(1) - 1));
        Self {
            id,
            index: first as u8,
            blocks: (last - first + 1) as u8,
            chunk_blocks: (block(chunk_bytes.max(1) - 1) + 1) as u8,
        }
    }

    pub(crate) fn is_long(&self) -> bool {
        u32::from(self.chunk_blocks) >= LONG_BLOCKS
    }
}

/// Where an object maps the first of the blocks that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAt {
    /// Dataset of the object.
    pub dataset: u32,
    /// Its body.
    pub body: u64,
    /// The object.
    pub object: u64,
    /// Region of the block.
    pub region: u32,
}

/// A chunk that may be worth a better place, or some blocks of it, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotChunk {
    /// Reads of late: of the chunk, or of the most read of the blocks that were asked for.
    pub reads: NonZeroU8,
    /// The chunk.
    pub id: ChunkId,
    /// Dataset of the object that was read.
    pub dataset: u32,
    /// Its body.
    pub body: u64,
    /// The object.
    pub object: u64,
    /// And its region.
    pub region: u32,
}
