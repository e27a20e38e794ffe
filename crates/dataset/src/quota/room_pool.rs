//! `RoomPool`: room for dirty data, taken from the store in advance so that a write does not have to ask each time.
//!
//! Invariants: what is held = what is free here + what dirty data has taken; who waits for the store to make room keeps
//! only those waiting who want more room as well: what gives it back (writing ahead, a commit) goes on meanwhile.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering::Relaxed},
};

use terrace_sync::{Mutex, rank};

use super::{
    checks::ADVANCE_BYTES,
    usage::{Room, Terms, Usage},
};
use crate::posix::FsError;

#[derive(Default)]
pub(crate) struct RoomPool {
    free: AtomicI64,
    /// Of whoever asks the store for more; before `held`.
    taking: Mutex<(), rank::dataset::RoomTaking>,
    held: Mutex<Option<Room>, rank::dataset::PooledRoom>,
}

impl RoomPool {
    /// Takes `bytes` of what is free here; whether that is so much.
    pub(crate) fn take_at_hand(&self, bytes: u64) -> bool {
        let bytes = bytes as i64;
        let take = |free: i64| (free >= bytes).then(|| free - bytes);
        self.free.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    /// Takes `bytes` on these terms; `NoSpace` or `QuotaExceeded`. The store may make room first.
    pub(crate) fn take_on(&self, usage: &Arc<Usage>, bytes: u64, terms: Terms) -> Result<(), FsError> {
        if bytes == 0 || self.free.fetch_sub(bytes as i64, Relaxed) >= bytes as i64 {
            return Ok(());
        }
        let result = self.more(usage, bytes, terms);
        if result.is_err() {
            self.free.fetch_add(bytes as i64, Relaxed);
        }
        result
    }

    fn more(&self, usage: &Arc<Usage>, bytes: u64, terms: Terms) -> Result<(), FsError> {
        let _taking = self.taking.lock();
        let free = self.free.load(Relaxed);
        if free >= 0 {
            return Ok(());
        }
        let need = (free.unsigned_abs()).max(1);
        // Others who are just taking, and what was forced, are in it too: that they get nothing is not our affair.
        let least = need.min(bytes);
        let advance = usage.advance_bytes();
        let room = match Usage::reserve(usage, need + advance, terms) {
            Err(FsError::NoSpace | FsError::QuotaExceeded) if need + advance > least => {
                Usage::reserve(usage, least, terms)
            }
            other => other,
        }?;
        let mut held = self.held.lock();
        self.free.fetch_add(room.bytes() as i64, Relaxed);
        match &mut *held {
            Some(all) => all.join(room),
            none => *none = Some(room),
        }
        Ok(())
    }

    /// Gives back what was taken and not needed.
    pub(crate) fn give(&self, bytes: u64) {
        let free = self.free.fetch_add(bytes as i64, Relaxed) + bytes as i64;
        if free > 2 * ADVANCE_BYTES as i64 {
            self.trim();
        }
    }

    /// Counts what nothing could be taken for (changes that free space): the next takers make up for it.
    pub(crate) fn force(&self, bytes: u64) {
        self.free.fetch_sub(bytes as i64, Relaxed);
    }

    /// What was taken is written ahead: the store counts it as used from now on, the quotas only from the commit on.
    pub(crate) fn written_ahead(&self, bytes: u64) {
        if let Some(room) = &mut *self.held.lock() {
            room.shrink_reservation_by(bytes);
        }
    }

    /// What was taken is committed, or dropped after it was written ahead: the store and the quotas count it by
    /// themselves. `ahead_bytes` of it were written ahead.
    pub(crate) fn spend(&self, bytes: u64, ahead_bytes: u64) {
        let mut held = self.held.lock();
        let had = held.as_ref().map_or(0, Room::charged_bytes);
        if let Some(room) = &mut *held {
            room.shrink_charge_by(bytes);
            room.shrink_reservation_by(bytes.saturating_sub(ahead_bytes));
        }
        // What was forced and nobody made up for: nothing was held for it, and nothing need be any more.
        self.free.fetch_add(bytes.saturating_sub(had) as i64, Relaxed);
    }

    /// Room that is held and not free, bytes. While nothing is dirty it is lost.
    pub(crate) fn taken_bytes(&self) -> u64 {
        let held = self.held.lock();
        let free = self.free.load(Relaxed).max(0) as u64;
        held.as_ref()
            .map_or(0, |room| room.held_bytes().saturating_sub(free))
    }

    /// What dirty data has taken, bytes.
    pub(crate) fn charged_bytes(&self) -> u64 {
        let held = self.held.lock();
        let free = self.free.load(Relaxed);
        let charged = held.as_ref().map_or(0, Room::charged_bytes) as i64;
        (charged - free).max(0) as u64
    }

    /// Gives all free room back to the store.
    pub(crate) fn trim(&self) {
        let mut held = self.held.lock();
        let Some(room) = &mut *held else { return };
        let free = self.free.load(Relaxed);
        // Somebody may take meanwhile: only what this exchange got is given back.
        if free > 0 && self.free.compare_exchange(free, 0, Relaxed, Relaxed).is_ok() {
            room.shrink_by(free as u64);
        }
    }
}
