//! `WriteAheadQueue`: slots of streams that wait to be written ahead of their commit, and what was written ahead since the last freeze.
//!
//! Invariant: who writes ahead holds `writing` in common, so that a freeze can wait for what is under way.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use terrace_sync::{Clock, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};

use terrace_store::Written;

use super::dataset_state::ANSWERS_LOOK;
use crate::objects::{Layer, Object};

/// Slots that may wait before the stream itself has to help: what a commit finds left to do at most.
const SLOTS_WAITING_MAX: usize = 128;

/// What a chunk that was written ahead takes in RAM until its commit, about: record, hash and guard.
const CHUNK_MEMORY_BYTES: u64 = 1024;

/// What all datasets have waiting and written ahead, kept by differences: the flusher asks all the time.
#[derive(Debug, Default)]
pub struct AheadTotals {
    /// Slots that wait.
    slots: AtomicUsize,
    /// Written ahead since the last freeze of their dataset.
    bytes: AtomicU64,
}

impl AheadTotals {
    /// Whether anything waits to be written ahead.
    pub(crate) fn any_waits(&self) -> bool {
        self.slots.load(Relaxed) > 0
    }

    /// Bytes that were written ahead and wait for a commit.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// What waits to be written ahead. A total is added to before its part, and taken from after it: it is never too low.
pub(crate) struct WriteAheadQueue {
    queue: Mutex<VecDeque<(Arc<Object>, u64)>, rank::Leaf>,
    /// Held in common by those who write.
    writing: RwLock<(), rank::dataset::WriteAhead>,
    bytes: AtomicU64,
    totals: Arc<AheadTotals>,
}

/// Runs of blocks: the first, how many, and the chunk that holds them; without one they are zero.
pub(crate) type Stored = Vec<(u64, u32, Option<Written>)>;

/// Nothing is written ahead as long as it lives.
pub(crate) type StoodStill<'a> = RwLockWriteGuard<'a, (), rank::dataset::WriteAhead>;

impl WriteAheadQueue {
    /// Of one dataset of those that have these totals.
    pub(crate) fn new(totals: Arc<AheadTotals>) -> Self {
        Self {
            queue: Mutex::default(),
            writing: RwLock::default(),
            bytes: AtomicU64::default(),
            totals,
        }
    }

    /// A slot waits.
    pub(crate) fn push(&self, object: Arc<Object>, slot: u64) {
        self.totals.slots.fetch_add(1, Relaxed);
        self.queue.lock().push_back((object, slot));
    }

    /// The one that waits longest.
    pub(crate) fn pop(&self) -> Option<(Arc<Object>, u64)> {
        let next = self.queue.lock().pop_front()?;
        self.totals.slots.fetch_sub(1, Relaxed);
        Some(next)
    }

    /// So many bytes were written ahead.
    pub(crate) fn add(&self, bytes: u64) {
        self.totals.bytes.fetch_add(bytes, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Written ahead since the last freeze, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// To be held by who writes ahead.
    pub(crate) fn write(&self) -> RwLockReadGuard<'_, (), rank::dataset::WriteAhead> {
        self.writing.read()
    }

    /// Waits for writes ahead that are under way; now and then asks whether to give up.
    pub(crate) fn stand_still<E>(
        &self,
        clock: &dyn Clock,
        mut goes_on: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<StoodStill<'_>, E> {
        let since = clock.monotonic_nanoseconds();
        loop {
            match self.writing.write_within(clock, ANSWERS_LOOK) {
                Some(still) => return Ok(still),
                None => goes_on(since)?,
            }
        }
    }

    /// Forgets what waits: it is about to be frozen.
    pub(crate) fn clear(&self) {
        let slots = std::mem::take(&mut *self.queue.lock()).len();
        self.totals.slots.fetch_sub(slots, Relaxed);
        self.totals.bytes.fetch_sub(self.bytes.swap(0, Relaxed), Relaxed);
    }

    /// Whether so much waits that streams must help.
    pub(crate) fn is_long(&self) -> bool {
        self.queue.lock().len() > SLOTS_WAITING_MAX
    }
}

impl Drop for WriteAheadQueue {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What the chunks that a layer holds take in RAM, bytes.
pub(crate) fn ahead_memory_bytes(layer: &Layer) -> u64 {
    layer.ahead().len() as u64 * CHUNK_MEMORY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_are_those_of_all_datasets_that_there_are() {
        let totals = Arc::new(AheadTotals::default());
        let [one, other] = [(); 2].map(|()| WriteAheadQueue::new(totals.clone()));
        one.add(100);
        other.add(20);
        other.add(3);
        assert_eq!(totals.bytes(), 123);
        one.clear();
        assert_eq!(totals.bytes(), 23);
        one.add(1);
        drop(other);
        assert_eq!(totals.bytes(), 1);
        assert!(!totals.any_waits());
    }
}
