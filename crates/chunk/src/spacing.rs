//! `Spacing`: how work of the store's own gives way on a device on which users wait: compaction rests between two reads, and
//! what is moved to a quick device is written in small pieces.
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

/// Where a user's read takes no longer than half of this a large write would hold it up for several times as long.
const QUICK: Duration = Duration::from_millis(2);
/// What is written there at once then.
const PIECE_BYTES: usize = 128 << 10;

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

    /// Bytes of moved content that are written to a device of the tier at once, at most.
    pub(crate) fn piece_bytes(&self, tier: u8) -> usize {
        let spacing = self.spacing_of(tier);
        match !spacing.is_zero() && spacing <= QUICK {
            true => PIECE_BYTES,
            false => usize::MAX,
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
