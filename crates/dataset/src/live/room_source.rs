//! Asking for space: those who find none ask whoever reclaims it for the whole pool ([`RoomSource`]), who stands above them.
//!
//! Invariant: who asks holds no lock that a commit needs.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicU64, Ordering},
};

use terrace_store::{Reservation, Store};

use super::dataset_state::DatasetState;
use crate::{quota::set_aside_of, settings::DatasetError};

/// Between two works in time, nanoseconds; unless so large a part of the working room was taken since the last one.
const IN_TIME_REST: u64 = 200_000_000;
const IN_TIME_PART: u64 = 8;

/// Reclaims space, of all datasets of a pool.
pub(crate) trait RoomSource: Send + Sync {
    /// Sees to it that what is dirty finds room where it lands, for a commit of about so many bytes.
    fn clear_landing(&self, bytes: u64);

    /// Works until there is `enough`, or nothing more can be had; for `dataset` first, if room is promised to it.
    fn make_room(
        &self,
        dataset: Option<u32>,
        is_promised: bool,
        bytes: u64,
        enough: &mut dyn FnMut() -> bool,
    );
}

/// Whom to ask, and how often. Until there is somebody nothing is reclaimed.
#[derive(Default)]
pub struct RoomRequests {
    source: OnceLock<Weak<dyn RoomSource>>,
    /// When somebody last had space reclaimed in time.
    in_time: AtomicU64,
    /// What was asked for since then by who is short of working room, bytes.
    asked_bytes: AtomicU64,
    /// What changes took of the reserve since there was room for them, in all datasets, bytes.
    of_reserve_bytes: AtomicU64,
}

impl RoomRequests {
    /// From now on this one is asked.
    pub(crate) fn set_source(&self, source: Weak<dyn RoomSource>) {
        let _ = self.source.set(source);
    }

    /// Whether it is time to reclaim before it must be, for one who asks for so many bytes and shares so much working room. It may be
    /// in vain, so it is once in a while only; but who writes quickly has taken all that is left long before that.
    pub(crate) fn is_time(&self, now: u64, bytes: u64, working_bytes: u64) -> bool {
        let asked = self.asked_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let last = self.in_time.load(Ordering::Relaxed);
        let is_time =
            last == 0 || now >= last.saturating_add(IN_TIME_REST) || asked >= working_bytes / IN_TIME_PART;
        let is_first = is_time
            && self
                .in_time
                .compare_exchange(last, now.max(last + 1), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_first {
            self.asked_bytes.store(0, Ordering::Relaxed);
        }
        is_first
    }

    /// Before a commit of about so many bytes: see [`RoomSource::clear_landing`].
    pub(crate) fn clear_landing(&self, bytes: u64) {
        if let Some(source) = self.source.get().and_then(Weak::upgrade) {
            source.clear_landing(bytes);
        }
    }

    /// Has space reclaimed until there is `enough`, or nothing more can be had.
    pub(crate) fn make_room(&self, asking: &DatasetState, bytes: u64, enough: &mut dyn FnMut() -> bool) {
        if let Some(source) = self.source.get().and_then(Weak::upgrade) {
            let promised = asking.usage().has_promise();
            source.make_room(promised.then_some(asking.number()), promised, bytes, enough);
        }
    }

    /// Sets so much aside, or tells what is missing: for what an administrator asks for.
    pub(super) fn set_aside(&self, store: &Arc<dyn Store>, bytes: u64) -> Result<Reservation, DatasetError> {
        let mut result = set_aside_of(store, bytes);
        if let Err(DatasetError::NoRoom { .. }) = result
            && let Some(source) = self.source.get().and_then(Weak::upgrade)
        {
            source.make_room(None, true, bytes, &mut || {
                result = set_aside_of(store, bytes);
                result.is_ok()
            });
        }
        result
    }

    /// A change takes so many bytes of the reserve; how many all of them have taken since there was room.
    pub(crate) fn take_of_reserve(&self, bytes: u64) -> u64 {
        self.of_reserve_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// It does not.
    pub(crate) fn give_back_of_reserve(&self, bytes: u64) {
        self.of_reserve_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// There is room again.
    pub(crate) fn reserve_is_spared(&self) {
        self.of_reserve_bytes.store(0, Ordering::Relaxed);
    }
}
