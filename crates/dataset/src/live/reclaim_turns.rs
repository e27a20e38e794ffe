//! Turns of those who reclaim space, and what each leaves to the next: one at a time works for room, one clears the landing tier.
//!
//! Invariant: these locks are taken first of all, and no other lock is held by who waits for one.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use terrace_store::Sequence;
use terrace_sync::{Mutex, MutexGuard, rank};

/// See the module.
#[derive(Default)]
pub(crate) struct ReclaimTurns {
    room: Mutex<RoomTurn, rank::dataset::RoomTurn>,
    /// What was brought back on the landing tier beyond what the commits so far were to have, bytes.
    landing: Mutex<u64, rank::dataset::LandingTurn>,
    /// Until when nothing is looked at there.
    landing_rests_until: AtomicU64,
}

/// What one who works for room leaves to the next.
#[derive(Default)]
pub(crate) struct RoomTurn {
    /// Where looks through a dataset, or (`None`) the pool, go on.
    cursors: BTreeMap<Option<u32>, Vec<u8>>,
    /// The newest batch, and the time, when a look through the pool won nothing.
    pub(crate) barren: Option<(Sequence, u64)>,
}

impl RoomTurn {
    /// Where looks through a dataset, or the pool, go on.
    pub(crate) fn cursor(&self, dataset: Option<u32>) -> Option<Vec<u8>> {
        self.cursors.get(&dataset).cloned()
    }

    pub(crate) fn set_cursor(&mut self, dataset: Option<u32>, cursor: Vec<u8>) {
        self.cursors.insert(dataset, cursor);
    }
}

impl ReclaimTurns {
    /// Of who works for room.
    pub(crate) fn room(&self) -> MutexGuard<'_, RoomTurn, rank::dataset::RoomTurn> {
        self.room.lock()
    }

    /// Of who clears the landing tier.
    pub(crate) fn landing(&self) -> MutexGuard<'_, u64, rank::dataset::LandingTurn> {
        self.landing.lock()
    }

    /// Whether nothing is looked at on the landing tier now.
    pub(crate) fn landing_rests(&self, now: u64) -> bool {
        now < self.landing_rests_until.load(Relaxed)
    }

    /// Nothing is looked at there until then.
    pub(crate) fn rest_landing(&self, until: u64) {
        self.landing_rests_until.store(until, Relaxed);
    }
}
