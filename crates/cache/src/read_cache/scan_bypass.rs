//! `Passing`: what large reads lately took past the cache, so that what they come back to is kept.
//!
//! A cache that is full has no use for what goes through once, and a large read uses up what it fetches: keeping each piece
//! in memory of its own only to drop it soon after was most of the work of reads of 1 MiB. What is read again before as much
//! as the cache holds has passed is worth keeping.
//!
//! Invariants: bounded, whatever is read: two chunks may share a slot, and then the later one is remembered; nothing that is
//! remembered is older than twice what the cache holds, unless the counter of such rounds has come round (65,536 of them): then
//! a chunk is kept that need not be.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use terrace_store::ChunkId;

const SLOTS_BITS: u32 = 16;

pub(crate) struct Passing {
    /// Of each: some bits of which chunk, and in which round it passed.
    slots: Box<[AtomicU32]>,
    /// The round in the upper sixteen bits, and the bytes that have passed in it: so it goes on where the cache's size changes.
    passed: AtomicU64,
}

const ROUND_SHIFT: u32 = 48;

impl Passing {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..1 << SLOTS_BITS).map(|_| AtomicU32::new(0)).collect(),
            // From 1 on: an empty slot is of no round.
            passed: AtomicU64::new(1 << ROUND_SHIFT),
        }
    }

    /// `bytes` of a chunk pass a cache of `capacity_bytes`; whether some of it did lately.
    pub(crate) fn note(&self, id: ChunkId, bytes: usize, capacity_bytes: u64) -> bool {
        let pass = |passed: u64| {
            let (round, before) = (passed >> ROUND_SHIFT, passed & ((1 << ROUND_SHIFT) - 1));
            let after = before + bytes as u64;
            if after < capacity_bytes.min(1 << 40) {
                return Some(round << ROUND_SHIFT | after);
            }
            Some(u64::from((round as u16).wrapping_add(1).max(1)) << ROUND_SHIFT)
        };
        let passed = self.passed.fetch_update(Relaxed, Relaxed, pass);
        let round = (passed.unwrap_or_else(|passed| passed) >> ROUND_SHIFT) as u16;
        let mixed = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = &self.slots[(mixed >> (64 - SLOTS_BITS)) as usize];
        let name = (mixed >> 16) as u16;
        let before = slot.swap(u32::from(name) << 16 | u32::from(round), Relaxed);
        before >> 16 == u32::from(name) && matches!(round.wrapping_sub(before as u16), 0 | 1) && before != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_soon_is_known_and_what_comes_late_is_not() {
        let passing = Passing::new();
        let pass = |from: u64, count: u64| -> usize {
            let ids = (from..from + count).map(ChunkId);
            ids.filter(|id| passing.note(*id, 1024, 1 << 20)).count()
        };
        assert_eq!(pass(0, 512), 0);
        assert_eq!(pass(0, 512), 512, "half of what there is room for");
        // In order, again and again, much more than there is room for.
        for round in 0..5 {
            assert_eq!(pass(10_000, 4096), 0, "round {round}");
        }
        assert_eq!(pass(0, 512), 0);
    }
}
