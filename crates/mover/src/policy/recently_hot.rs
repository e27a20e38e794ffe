//! `Grace`: chunks that were seen in hot regions lately, so that a cold region that shares them (by deduplication, or
//! in a snapshot) does not drag them down, only for the next promotion to bring them up again. Where all is hot they are
//! spared only from what moves colder content.
//!
//! Invariants: bounded memory, whatever the size of the pool; forgetting an entry costs a move, never content.

use terrace_store::ChunkId;

const SLOTS: usize = 1 << 16;
/// Minutes for which a chunk counts as hot.
const MINUTES: u32 = 30;

/// See the module.
#[derive(Default)]
pub(crate) struct Grace {
    /// Chunk, minute + 1, and reads of the hottest region that had it; a later chunk of the same slot takes its place.
    /// Empty until something is hot.
    slots: Vec<(u64, u32, f32)>,
}

impl Grace {
    fn slot(id: ChunkId) -> usize {
        (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % SLOTS
    }

    pub(crate) fn note(&mut self, id: ChunkId, minutes: u32, reads: f32) {
        if self.slots.is_empty() {
            self.slots = vec![(0, 0, 0.0); SLOTS];
        }
        let hottest = match self.slots[Self::slot(id)] {
            (chunk, at, before) if chunk == id.0 && minutes < at.saturating_add(MINUTES) => before.max(reads),
            _ => reads,
        };
        self.slots[Self::slot(id)] = (id.0, minutes.saturating_add(1), hottest);
    }

    /// Whether a region that is hotter than `reads` had it.
    pub(crate) fn is_hotter(&self, id: ChunkId, minutes: u32, reads: f32) -> bool {
        let noted = self.slots.get(Self::slot(id));
        noted.is_some_and(|(chunk, at, hottest)| {
            *chunk == id.0 && *at > 0 && minutes < at.saturating_add(MINUTES) && *hottest > reads
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_hot_for_a_while() {
        let mut grace = Grace::default();
        assert!(!grace.is_hotter(ChunkId(7), 0, 0.0));
        grace.note(ChunkId(7), 100, 5.0);
        assert!(grace.is_hotter(ChunkId(7), 100, 0.0) && grace.is_hotter(ChunkId(7), 100 + MINUTES, 4.0));
        assert!(!grace.is_hotter(ChunkId(7), 101 + MINUTES, 0.0) && !grace.is_hotter(ChunkId(8), 100, 0.0));
        assert!(
            !grace.is_hotter(ChunkId(7), 100, 5.0),
            "what is as hot may take it along"
        );
        (0..1 << 20).for_each(|id| grace.note(ChunkId(id), 200, 1.0));
        assert_eq!(grace.slots.len(), SLOTS);
    }
}
