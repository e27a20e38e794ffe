//! `Grace`: chunks that were seen in hot regions lately, so that a cold region that shares them (by deduplication, or
//! in a snapshot) does not drag them down, only for the next promotion to bring them up again.
//!
//! Invariants: bounded memory, whatever the size of the pool; forgetting an entry costs a move, never content.

use terrace_store::ChunkId;

const SLOTS: usize = 1 << 16;
/// Minutes for which a chunk counts as hot.
const MINUTES: u32 = 30;

/// See the module.
#[derive(Default)]
pub(crate) struct Grace {
    /// Chunk and minute + 1; a later chunk of the same slot takes its place. Empty until something is hot.
    slots: Vec<(u64, u32)>,
}

impl Grace {
    fn slot(id: ChunkId) -> usize {
        (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % SLOTS
    }

    pub(crate) fn note(&mut self, id: ChunkId, minutes: u32) {
        if self.slots.is_empty() {
            self.slots = vec![(0, 0); SLOTS];
        }
        self.slots[Self::slot(id)] = (id.0, minutes.saturating_add(1));
    }

    pub(crate) fn is_hot(&self, id: ChunkId, minutes: u32) -> bool {
        let noted = self.slots.get(Self::slot(id));
        noted.is_some_and(|(chunk, at)| *chunk == id.0 && *at > 0 && minutes < at.saturating_add(MINUTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_hot_for_a_while() {
        let mut grace = Grace::default();
        assert!(!grace.is_hot(ChunkId(7), 0));
        grace.note(ChunkId(7), 100);
        assert!(grace.is_hot(ChunkId(7), 100) && grace.is_hot(ChunkId(7), 100 + MINUTES));
        assert!(!grace.is_hot(ChunkId(7), 101 + MINUTES) && !grace.is_hot(ChunkId(8), 100));
        (0..1 << 20).for_each(|id| grace.note(ChunkId(id), 200));
        assert_eq!(grace.slots.len(), SLOTS);
    }
}
