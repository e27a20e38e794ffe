//! `Sinking`: writers wait while what is colder sinks for what they write, rather than let that land on a slower tier.
//!
//! What lands below because the fast tier is full of what nobody uses is read from there later, one slow request each; who waits
//! until the mover has made room pays a fraction of that, and is slowed down to what the slower tier takes in large requests.
//!
//! Invariants: nobody waits but where garbage alone would not give enough room and content may land; nor for longer than
//! [`WAIT_MAX`] for a segment, nor unless whoever moves content down said after it was asked that it does so; after a refusal it is
//! asked again ever more seldom. Nobody waits in a store without threads of its own. Nothing is held meanwhile that moving needs.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use terrace_sync::{Clock, Condvar, Mutex, rank};

/// After a refusal nobody asks for so long, and after many at most.
const REFUSED: Duration = Duration::from_secs(1);
const REFUSED_MAX: Duration = Duration::from_secs(16);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sinking {
    /// Questions so far, and the newest that was answered.
    pub(super) asked: AtomicU64,
    pub(super) answered: AtomicU64,
    /// Tiers that content sinks from, as bits.
    pub(super) tiers: AtomicU64,
    /// Who waits.
    pub(super) waiting: AtomicUsize,
    pub(super) refused: Mutex<Option<(u64, Duration)>, rank::Leaf>,
    pub(super) changed: Condvar,
}

impl Sinking {
    pub(super) fn may_ask(&self, clock: &dyn Clock) -> bool {
        self.refused
            .lock()
            .is_none_or(|(at, pause)| clock.since(at) >= pause)
    }

    pub(super) fn refuse(&self, clock: &dyn Clock) {
        let mut refused = self.refused.lock();
        let pause = refused.map_or(REFUSED, |(_, pause)| (pause * 2).min(REFUSED_MAX));
        *refused = Some((clock.monotonic_nanoseconds(), pause));
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    pub(super) fn answer(&self, question: u64, tier: usize) -> Option<bool> {
        let is_answered = self.answered.load(Ordering::Acquire) >= question;
        is_answered.then(|| self.tiers.load(Ordering::Acquire) >> tier.min(63) & 1 == 1)
    }
}
