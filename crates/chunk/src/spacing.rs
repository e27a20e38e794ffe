//! `Spacing`: the time that compaction leaves between two reads of a device on which users wait.
//!
//! Invariants: it never rests where the store has no threads of its own (whoever drives the steps decides about time), nor
//! when users would soon wait for the room that it makes; no rest is longer than what was last asked for.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{store::ChunkStore, tier_room::TierRoom};

/// Tiers that are told apart; those behind share the last.
const TIERS: usize = 8;

/// By tier, nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Spacing([AtomicU64; TIERS]);

impl Spacing {
    fn of(&self, tier: u8) -> &AtomicU64 {
        &self.0[usize::from(tier).min(TIERS - 1)]
    }
}

impl ChunkStore {
    /// From now on compaction leaves this many nanoseconds between two reads of a device of the tier; 0: none.
    pub fn set_spacing(&self, tier: u8, nanoseconds: u64) {
        self.spacing.of(tier).store(nanoseconds, Relaxed);
    }

    /// How long that is now.
    pub(crate) fn spacing_of(&self, tier: u8) -> Duration {
        let rooms = self.tier_rooms();
        let presses = rooms.get(usize::from(tier)).is_some_and(TierRoom::is_pressed);
        match self.options.threads == 0 || self.need.is_felt() || presses || self.courtesy_of_pool() == 0.0 {
            true => Duration::ZERO,
            false => Duration::from_nanos(self.spacing.of(tier).load(Relaxed)),
        }
    }

    /// Rests for it.
    pub(crate) fn rest_beside_users(&self, tier: u8) {
        let rest = self.spacing_of(tier);
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
}
