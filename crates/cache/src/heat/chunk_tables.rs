//! `Tables`: what of `ChunkHeat` takes the memory: the counts, and what is known to lie on the fastest tier.
//!
//! Invariants: their size never changes: others take their place when there is to be more or less of it, and know no less of any
//! chunk; who counts meanwhile may count in the old ones, which go with the last of those. Nothing takes a lock.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use terrace_codec::mix;
use terrace_store::ChunkId;

use super::{chunk_reads::ChunkRead, count_min::Sketch};

/// See the module.
pub(crate) struct Tables {
    /// Counts of blocks, and of long chunks.
    pub(crate) blocks: Sketch,
    pub(crate) chunks: Sketch,
    /// What lies on the fastest tier, as far as the mover has seen: need not be wanted. Hashes, 0: none.
    raised: Box<[AtomicU32]>,
}

/// The hash of a block of a chunk; of the first it is the chunk's.
pub(crate) fn hash_of(id: ChunkId, block: u32) -> u64 {
    mix(id.0 ^ u64::from(block).rotate_right(8))
}

impl Tables {
    /// Of this power of two, with those before, if there are any, as the start; what was raised is looked at again.
    pub(crate) fn new(bytes: u64, before: Option<&Self>) -> Self {
        let sketch = |before: Option<&Sketch>, bytes: u64| match before {
            Some(before) => before.resized(bytes),
            None => Sketch::new(bytes),
        };
        Self {
            blocks: sketch(before.map(|tables| &tables.blocks), bytes),
            chunks: sketch(before.map(|tables| &tables.chunks), bytes / 4),
            raised: (0..(bytes / 8).max(16)).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.blocks.memory_bytes() + self.chunks.memory_bytes() + size_of_val(&*self.raised) as u64
    }

    fn slot_of(&self, hash: u64) -> (&AtomicU32, u32) {
        let slot = &self.raised[hash as usize & (self.raised.len() - 1)];
        (slot, ((hash >> 32) as u32).max(1))
    }

    pub(crate) fn is_raised(&self, hash: u64) -> bool {
        let (slot, tag) = self.slot_of(hash);
        slot.load(Relaxed) == tag
    }

    /// It lies on the fastest tier.
    pub(crate) fn rose(&self, hash: u64) {
        let (slot, tag) = self.slot_of(hash);
        slot.store(tag, Relaxed);
    }

    /// It does not lie there any more.
    pub(crate) fn sank(&self, hash: u64) {
        let (slot, tag) = self.slot_of(hash);
        if slot.load(Relaxed) == tag {
            slot.store(0, Relaxed);
        }
    }

    pub(crate) fn forget_raised(&self) {
        for slot in &self.raised {
            slot.store(0, Relaxed);
        }
    }

    pub(crate) fn reads_of_block(&self, id: ChunkId, block: u32) -> u8 {
        self.blocks.reads(hash_of(id, block))
    }

    /// One more read of each of these blocks; how many there are of the most read of them.
    pub(crate) fn note(&self, read: ChunkRead) -> u8 {
        let blocks = u32::from(read.index)..u32::from(read.index) + u32::from(read.blocks);
        let counts = blocks.map(|block| self.blocks.add(hash_of(read.id, block)));
        counts.max().unwrap_or(0)
    }
}
