//! `Lent`: what the read cache has of the memory that others have a right to and do not use, until they want it back.
//!
//! Shares that are fixed leave most of the memory empty wherever one kind of work prevails: who only reads had a quarter of it.
//! The caches of other systems (the ARC of ZFS, the page cache) take what is left in the same way, and give way.
//!
//! Invariants: a writer finds the whole of its share, at once: what is let in and does not fit beside what is lent is taken back
//! before the write goes on. What writers needed at most lately, and a fourth more, is not lent, so that what comes and goes with each
//! commit is not lent and taken back in turns. Of what the store does not use half is lent, as nobody asks before it uses more:
//! that is looked at again each time. Lent and taken back in steps, so that no writer waits for much to be evicted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Budget;

/// Bounds of a step, bytes, and its part of the whole.
const STEP_BYTES: (u64, u64) = (1 << 20, 8 << 20);
const STEP_PART: u64 = 32;
/// By this part of itself what writers needed at most is forgotten with every look: half of it in eleven.
const FORGOTTEN_PART: u64 = 16;

/// What is lent, and how much writers needed at most lately; bytes.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    by_writers: AtomicU64,
    by_store: AtomicU64,
    peak: AtomicU64,
}

impl Lent {
    pub(crate) fn bytes(&self) -> u64 {
        self.by_writers.load(Relaxed) + self.by_store.load(Relaxed)
    }

    /// All of it belongs to who it was lent by.
    pub(crate) fn end(&self) {
        self.by_writers.store(0, Relaxed);
        self.by_store.store(0, Relaxed);
    }
}

impl Budget {
    fn step_bytes(&self) -> u64 {
        (self.limit_bytes() / STEP_PART).clamp(STEP_BYTES.0, STEP_BYTES.1)
    }

    /// Lends the read cache what others leave, of whom the store uses `store_bytes` now, and ends what is no longer to be lent.
    /// To be called about once a second. True if [`read_cache_bytes`](Self::read_cache_bytes) has changed: then the caller
    /// resizes the cache.
    pub fn lend(&self, store_bytes: u64) -> bool {
        let step = self.step_bytes();
        let taken = self.taken_bytes();
        let forget = |peak: u64| Some((peak - peak / FORGOTTEN_PART).max(taken));
        let peak = match self.lent.peak.fetch_update(Relaxed, Relaxed, forget) {
            Ok(before) => forget(before).unwrap_or(before),
            Err(before) => before,
        };
        let kept = peak + peak / 4 + 2 * step;
        let by_writers = self.dirty_limit_bytes().saturating_sub(kept);
        let by_store = self.store_bytes().saturating_sub(store_bytes) / 2;
        let writers = follow(&self.lent.by_writers, by_writers, step);
        let store = follow(&self.lent.by_store, by_store, step);
        writers || store
    }

    /// Takes back what a writer that was let in needs of what is lent. True if it did: then the caller resizes the cache before it
    /// goes on.
    pub fn take_back(&self) -> bool {
        let taken = self.taken_bytes();
        if taken > self.lent.peak.load(Relaxed) {
            self.lent.peak.fetch_max(taken, Relaxed);
        }
        let left = self.dirty_limit_bytes().saturating_sub(taken);
        if self.lent.by_writers.load(Relaxed) <= left {
            return false;
        }
        // A step more than is wanted now: the next writers are not long in coming.
        let step = self.step_bytes();
        let least = left.saturating_sub(step) / step * step;
        let less = |lent: u64| (lent > least).then_some(least);
        self.lent.by_writers.fetch_update(Relaxed, Relaxed, less).is_ok()
    }
}

/// Brings `lent` to `wanted` in whole steps; not for less than two of them, unless that ends it. True if it changed.
fn follow(lent: &AtomicU64, wanted: u64, step: u64) -> bool {
    let wanted = wanted / step * step;
    let change = |lent: u64| (lent.abs_diff(wanted) >= 2 * step || wanted == 0 && lent > 0).then_some(wanted);
    lent.fetch_update(Relaxed, Relaxed, change).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn idle() -> Budget {
        let budget = Budget::new(256 * MIB);
        assert_eq!(budget.read_cache_bytes(), 64 * MIB);
        assert!(budget.lend(0));
        budget
    }

    /// All shares as they are in use add up to the whole at most.
    fn fits(budget: &Budget, store_bytes: u64) -> bool {
        let used = budget.taken_bytes() + budget.read_cache_bytes() + budget.object_bytes() + store_bytes;
        used <= budget.limit_bytes()
    }

    #[test]
    fn readers_have_what_nobody_else_uses() {
        let budget = idle();
        // Two steps of eight are kept for writers, and half of the store's share.
        assert_eq!(budget.read_cache_bytes(), (64 + 96 - 16 + 32) * MIB);
        assert!(fits(&budget, 32 * MIB) && !budget.lend(0) && !budget.take_back());
        budget.set_limit(128 * MIB);
        assert_eq!(budget.read_cache_bytes(), 32 * MIB);
    }

    #[test]
    fn a_writer_has_all_of_its_share_and_what_is_lent_gives_way() {
        let budget = idle();
        let mut resized = 0;
        for _ in 0..96 {
            let admitted = budget.admit(MIB).expect("its share is free");
            resized += u64::from(budget.take_back());
            budget.add_dirty(MIB);
            drop(admitted);
            assert!(fits(&budget, 0), "{} dirty", budget.dirty_bytes());
        }
        assert!(budget.admit(1).is_none());
        assert!((5..=12).contains(&resized), "{resized} times, in steps");
        assert_eq!(budget.read_cache_bytes(), (64 + 32) * MIB);
    }

    #[test]
    fn what_comes_and_goes_with_commits_is_not_lent() {
        let budget = idle();
        let mut changes = 0;
        for round in 0..120 {
            let admitted = budget.admit_always(40 * MIB);
            changes += u64::from(budget.take_back()) * u64::from(round > 0);
            drop(admitted);
            changes += u64::from(budget.lend(0)) * u64::from(round > 0);
        }
        assert_eq!(changes, 0);
        // Once they are gone it is, bit by bit.
        let before = budget.read_cache_bytes();
        for _ in 0..60 {
            budget.lend(0);
        }
        assert_eq!(budget.read_cache_bytes(), before + 32 * MIB);
    }

    #[test]
    fn a_store_that_uses_its_share_has_it_back_at_the_next_look() {
        let budget = idle();
        let before = budget.read_cache_bytes();
        assert!(budget.lend(budget.store_bytes()));
        assert_eq!(budget.read_cache_bytes(), before - 32 * MIB);
        assert!(fits(&budget, budget.store_bytes()));
        // What the store takes beyond its share, as with little memory, is not lent twice.
        budget.lend(2 * budget.store_bytes());
        assert_eq!(budget.read_cache_bytes(), before - 32 * MIB);
    }
}
