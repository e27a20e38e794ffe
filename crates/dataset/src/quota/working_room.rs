//! `WorkingRoom`: what the datasets of a pool share of the room that is set aside: how much of it is working room, and the one for
//! preallocated files.
//!
//! A range of 4 KiB needs as much room to work in as a large one: tables, the log and segments that are not full yet take it. So there
//! is one such room for the files of all datasets, rather than one for each.
//!
//! Invariants: while any file has a preallocated range the room for that is set aside, and counted as working room, which stands in
//! the way of nobody to whom room was promised.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use terrace_store::{Reservation, Store};
use terrace_sync::{Mutex, MutexGuard, rank};

/// Working room beside a reservation, as a part of it.
const WORKING_PART: u64 = 32;
/// Least working room, as a part of the pool's reserve.
const WORKING_RESERVE_PART: u64 = 2;
/// Segments of it for each tier, and of all: what is written there, moved there and written anew there fills one each, and what is
/// left in them, and in the tables and the log of either device, is no room for anybody else.
const WORKING_SEGMENTS: (u64, u64) = (2, 2);

/// Working room beside a reservation of so many bytes.
pub(crate) fn working_bytes_of(store: &Arc<dyn Store>, reservation_bytes: u64) -> u64 {
    match reservation_bytes {
        0 => 0,
        bytes => {
            let space = store.space();
            let (of_tier, of_all) = WORKING_SEGMENTS;
            let segments = space.segment_bytes * (of_tier * space.tiers.len() as u64 + of_all);
            (bytes / WORKING_PART + segments).max(space.reserve_bytes / WORKING_RESERVE_PART)
        }
    }
}

/// What was counted of one dataset's preallocated ranges, bytes.
#[derive(Debug, Default)]
pub(crate) struct OfFiles(u64);

/// See the module.
#[derive(Debug)]
pub(crate) struct WorkingRoom {
    /// Working room beside all reservations, and of files, bytes.
    working_bytes: AtomicU64,
    /// Of whoever looks what a quota leaves and takes of it.
    quotas: Mutex<(), rank::dataset::Quotas>,
    files: Mutex<Files, rank::usage::Files>,
}

#[derive(Debug)]
struct Files {
    /// What files of all datasets have preallocated.
    bytes: u64,
    room: Reservation,
}

impl Default for WorkingRoom {
    fn default() -> Self {
        Self {
            working_bytes: AtomicU64::new(0),
            quotas: Mutex::new(()),
            files: Mutex::new(Files {
                bytes: 0,
                room: Reservation::none(),
            }),
        }
    }
}

impl WorkingRoom {
    pub(crate) fn working_bytes(&self) -> u64 {
        self.working_bytes.load(Relaxed)
    }

    pub(crate) fn change_working(&self, before: u64, now: u64) {
        self.working_bytes.fetch_add(now, Relaxed);
        self.working_bytes.fetch_sub(before, Relaxed);
    }

    pub(crate) fn count_quotas(&self) -> MutexGuard<'_, (), rank::dataset::Quotas> {
        self.quotas.lock()
    }

    pub(crate) fn working_bytes_of_files(&self) -> u64 {
        self.files.lock().room.bytes()
    }

    /// What working room lacks if so much more is preallocated.
    pub(crate) fn lacking_for_files(&self, store: &Arc<dyn Store>, more_bytes: u64) -> u64 {
        let (bytes, have) = {
            let files = self.files.lock();
            (files.bytes, files.room.bytes())
        };
        working_bytes_of(store, bytes.saturating_add(more_bytes)).saturating_sub(have)
    }

    /// A dataset's files have preallocated so much now, where `of` was counted before.
    pub(crate) fn files_are(&self, store: &Arc<dyn Store>, of: &mut OfFiles, bytes: u64) {
        let before = std::mem::replace(&mut of.0, bytes);
        if before == bytes {
            return;
        }
        let mut files = self.files.lock();
        files.bytes = files.bytes.saturating_sub(before).saturating_add(bytes);
        let want = working_bytes_of(store, files.bytes);
        let have = files.room.bytes();
        if want > have {
            files.room.join(store.reserve_always(want - have));
        }
        self.change_working(have, want);
        files.room.shrink_to(want);
    }
}
