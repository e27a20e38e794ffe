//! Checks: the questions of a dataset whether there is enough of something, and the thresholds that they go by.
//!
//! | threshold | part of | for |
//! |---|---|---|
//! | `ADVANCE_BYTES`, `PLENTY_BYTES` | what the pool can give | room is taken in advance, so that most writes need not ask |
//! | `AT_HAND_BYTES` | what the pool can give | room for changes that must work on a full pool, while nobody waits for it |
//! | `LOG_BYTES_AT_ONCE`, `LOG_PART` | what the pool can give | what is let go of between two commits |
//! | [`OfReserve`], `FEW_PART` | the pool's reserve | changes for which there is no room (0082) |
//! | those of `working_room.rs` | a reservation | room to write over it (0023) |
//!
//! Invariant: an answer is true of one moment and sets nothing aside. What a write needs is looked at and taken in one, of quotas and
//! pool together: [`Usage::reserve`].

use super::usage::Usage;

/// Taken at once when there is plenty, bytes.
pub(super) const ADVANCE_BYTES: u64 = 4 << 20;
/// With more than that left for writers there is plenty.
const PLENTY_BYTES: u64 = 8 * ADVANCE_BYTES;
/// With so much room left for writers a little of it can be had without waiting, bytes.
const AT_HAND_BYTES: u64 = 1 << 20;
/// Of the log, what is let go of between two commits may take so much in any case, bytes.
pub(crate) const LOG_BYTES_AT_ONCE: u64 = 1 << 20;
/// Of the room that writers have, the part that the log may take for it.
const LOG_PART: u64 = 8;
/// Of the reserve, what a few changes may use however little is left, since there was room.
const FEW_PART: u64 = 64;

/// How far changes for which there is no room may use the pool's reserve. What destroys snapshots and datasets may use all of it:
/// where nothing else gives room back it must work. (OpenZFS divides its slop space so, `spa_slop_shift`.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfReserve {
    /// Changes that take no room, or next to none, and give none back.
    Changes,
    /// What gives room back, unless something older holds it.
    Removals,
}

impl OfReserve {
    /// Eighths of the reserve that stay free but for a few changes.
    pub(crate) fn eighths_left(self) -> u64 {
        match self {
            Self::Changes => 5,
            Self::Removals => 3,
        }
    }
}

impl Usage {
    /// How much is taken beyond what is asked for, bytes: nobody waits for room in advance that is hard to get, nor takes it of a quota.
    pub(super) fn advance_bytes(&self) -> u64 {
        match !self.has_quota() && self.store.available_bytes() > PLENTY_BYTES {
            true => ADVANCE_BYTES,
            false => 0,
        }
    }

    /// Whether the pool has some room for which nobody waits.
    pub(crate) fn has_room_at_hand(&self) -> bool {
        self.store.available_bytes() > AT_HAND_BYTES
    }

    /// Whether a commit takes what was let go of beside more: so many bytes of the log.
    pub(crate) fn has_log_for_frees(&self, log_bytes: u64) -> bool {
        log_bytes < LOG_BYTES_AT_ONCE || log_bytes * LOG_PART < self.store.available_bytes()
    }

    /// Whether changes that have used so many bytes of the reserve are but a few.
    pub(crate) fn are_few(&self, bytes: u64) -> bool {
        bytes <= self.store.space().reserve_bytes / FEW_PART
    }

    /// Whether less than half of the working room that it shares is left of the store's room.
    pub(crate) fn is_short_of_working_room(&self) -> bool {
        if !self.has_promise() || self.store.available_bytes() > 0 {
            return false;
        }
        let space = self.store.space();
        let half = self.working_bytes() / 2;
        space.room_bytes.saturating_add(half) < space.set_aside_bytes
    }

    /// Lets the store bring garbage back until half of the working room is there; whether it is.
    pub(crate) fn brings_working_room_back(&self) -> bool {
        let half = self.working_bytes() / 2;
        // Beside what is set aside but for that half.
        self.store.reserve_beside(1, &|| 1 + half).is_ok()
    }
}
