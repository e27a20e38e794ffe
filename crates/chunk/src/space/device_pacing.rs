//! `Spacing`: how work of the store's own gives way on a device on which users wait: compaction rests between two reads, and
//! what is moved to a quick device is written in small pieces.
//!
//! Invariants: it never rests where the store has no threads of its own (whoever drives the steps decides about time), nor
//! when users would soon wait for the room that it makes; no rest is longer than what was last asked for.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{accounting::SpaceView, tier_room::TierRoom};
use crate::buffers::BUFFER_BYTES;

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

    fn asked(&self, tier: u8) -> Duration {
        Duration::from_nanos(self.of(tier).load(Relaxed))
    }
}

impl SpaceView {
    /// From now on compaction leaves this many nanoseconds between two reads of a device of the tier; 0: none.
    pub(crate) fn set_spacing(&self, tier: u8, nanoseconds: u64) {
        self.spacing.of(tier).store(nanoseconds, Relaxed);
    }

    /// How long that is now.
    pub(crate) fn spacing_of(&self, tier: u8) -> Duration {
        let rooms = self.tier_rooms();
        let presses = rooms.get(usize::from(tier)).is_some_and(TierRoom::is_pressed);
        match presses || !self.has_time() {
            true => Duration::ZERO,
            false => self.spacing.asked(tier),
        }
    }

    /// Whether users read from any device.
    pub(crate) fn is_beside_readers(&self) -> bool {
        let is_read = |tier| !self.spacing.asked(tier).is_zero();
        (0..TIERS as u8).any(is_read)
    }

    /// Bytes of moved content that are read or written on a device of the tier at once, at most: also where there is no time, since
    /// it takes hardly longer in pieces.
    pub(crate) fn piece_bytes(&self, tier: u8) -> usize {
        let asked = self.spacing.asked(tier);
        match !asked.is_zero() && asked <= QUICK {
            true => PIECE_BYTES,
            false => BUFFER_BYTES,
        }
    }

    /// Rests for it.
    pub(crate) fn rest_beside_users(&self, tier: u8) {
        let rest = self.spacing_of(tier);
        if !rest.is_zero() {
            self.options.clock.rest(rest);
        }
    }
}
