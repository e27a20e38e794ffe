//! `Usage` and `Room`: quotas and reservations, checked when data is written and not when it is flushed.
//!
//! What a reservation sets aside is what is reserved and not used yet, and working room beside it: nothing is overwritten in
//! place, so a dataset that has used all of its reservation needs some to write in until what it wrote over is free again.
//! Working room is common to all that have a reservation.
//!
//! Invariants: a dataset's usage counts into every dataset above it; `Room` gives back exactly what it took; what is set aside
//! for a dataset and what it has taken for dirty data are together never less than its reservation promises: what its commits
//! and discards free is set aside for it again before anybody else can have it, even where it is not writable yet. What is set aside
//! for preallocated ranges of its files ([`FileRoom`]) is for writes to these alone. Of those who take of one quota at a time none
//! gets what another one has got already.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use terrace_store::{BLOCK_BYTES, Reservation, Store, StoreError};
use terrace_sync::{Mutex, MutexGuard, RwLock, rank};

use super::{
    file_room::FileRoom,
    working_room::{OfFiles, working_bytes_of},
};
use crate::{
    posix::FsError,
    records::{PreallocatedTotals, Promised},
    settings::DatasetError,
};

pub(crate) use crate::quota::WorkingRoom;

const UNLIMITED: u64 = u64::MAX;

/// On which terms room is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    /// So much of it takes the place of what is mapped already: a quota does not count that twice.
    pub(crate) over_bytes: u64,
    /// All else was tried.
    pub(crate) at_last: bool,
    /// It is for preallocated blocks: quotas count these already, and room is set aside for them.
    pub(crate) preallocated: bool,
}

/// What a dataset and those below it use, against its quota; its own reservation.
pub struct Usage {
    pub(super) store: Arc<dyn Store>,
    /// Live blocks of this dataset and those below.
    live_blocks: AtomicI64,
    /// Of this dataset alone.
    own_live_blocks: AtomicI64,
    /// Of this dataset alone: what stands for its reservation. Not what a snapshot has as well, which goes on taking room when
    /// it is written over.
    own_blocks: AtomicU64,
    /// Dirty bytes that are not committed yet, with those below.
    pending_bytes: AtomicU64,
    /// Of this dataset alone.
    own_pending_bytes: AtomicU64,
    /// Counted as pending, and not yet taken of the store.
    taking_bytes: AtomicU64,
    quota_bytes: AtomicU64,
    /// What reservations, of this one and those below, may still add to what the quotas count, bytes: nobody else gets it.
    promised_bytes: AtomicU64,
    reservation_bytes: AtomicU64,
    working_bytes: AtomicU64,
    set_aside: Mutex<SetAside, rank::usage::SetAside>,
    /// Something is set aside for preallocated ranges.
    has_files: AtomicBool,
    common: Arc<WorkingRoom>,
    above: RwLock<Option<Arc<Usage>>, rank::usage::Parents>,
}

/// What is set aside for a dataset.
struct SetAside {
    room: Reservation,
    /// As far as it is working room, counted in `common`.
    working_bytes: u64,
    /// Of its reservation, what quotas do not count yet, bytes.
    promised_bytes: u64,
    files: FileRoom,
    /// What `common` knows of these.
    of_files: OfFiles,
}

impl Usage {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        common: Arc<WorkingRoom>,
        above: Option<Arc<Usage>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            live_blocks: AtomicI64::new(0),
            own_live_blocks: AtomicI64::new(0),
            promised_bytes: AtomicU64::new(0),
            own_blocks: AtomicU64::new(0),
            pending_bytes: AtomicU64::new(0),
            own_pending_bytes: AtomicU64::new(0),
            taking_bytes: AtomicU64::new(0),
            quota_bytes: AtomicU64::new(UNLIMITED),
            reservation_bytes: AtomicU64::new(0),
            working_bytes: AtomicU64::new(0),
            set_aside: Mutex::new(SetAside {
                room: Reservation::none(),
                working_bytes: 0,
                promised_bytes: 0,
                files: FileRoom::default(),
                of_files: OfFiles::default(),
            }),
            has_files: AtomicBool::new(false),
            common,
            above: RwLock::new(above),
        })
    }

    /// Live blocks of this dataset and of those below it, bytes.
    pub fn live_bytes(&self) -> u64 {
        blocks_to_bytes(self.live_blocks.load(Ordering::Relaxed))
    }

    /// What is set aside for this dataset and not used yet, with its working room, bytes.
    pub fn set_aside_bytes(&self) -> u64 {
        self.set_aside.lock().room.bytes()
    }

    /// Whether anything was promised to it, or to files in it.
    pub(crate) fn has_promise(&self) -> bool {
        self.reservation_bytes.load(Ordering::Relaxed) > 0 || self.has_files.load(Ordering::Relaxed)
    }

    /// Whether files in it have preallocated ranges.
    pub(crate) fn has_preallocated(&self) -> bool {
        self.has_files.load(Ordering::Relaxed)
    }

    /// What is set aside for it beside what is for preallocated ranges alone, bytes.
    fn set_aside_for_all(&self, set_aside: &SetAside) -> u64 {
        match self.reservation_bytes.load(Ordering::Relaxed) {
            0 => 0,
            _ => set_aside
                .room
                .bytes()
                .saturating_sub(set_aside.files.lacking_bytes()),
        }
    }

    /// What is set aside and does not stand in the way of a write: what is its own, and the working room of others.
    fn no_hindrance_bytes(&self, is_preallocated: bool) -> u64 {
        let set_aside = self.set_aside.lock();
        let own = match is_preallocated {
            true => set_aside.room.bytes(),
            false => self.set_aside_for_all(&set_aside),
        };
        match own == 0 && !is_preallocated {
            true => 0,
            false => {
                own + self
                    .common
                    .working_bytes()
                    .saturating_sub(set_aside.working_bytes)
            }
        }
    }

    /// What it can still get of the store's room, less its working room, bytes.
    pub fn available_bytes(&self, space: &terrace_store::Space) -> u64 {
        let own = self.set_aside_for_all(&self.set_aside.lock());
        let working = self.working_bytes.load(Ordering::Relaxed).min(own);
        space.available_beside(own).saturating_sub(working)
    }

    /// Working room that it shares, bytes.
    pub(crate) fn working_bytes(&self) -> u64 {
        let files = match self.has_files.load(Ordering::Relaxed) {
            true => self.common.working_bytes_of_files(),
            false => 0,
        };
        self.working_bytes.load(Ordering::Relaxed).max(files)
    }

    /// What is reserved for it, bytes.
    pub fn reservation_bytes(&self) -> u64 {
        self.reservation_bytes.load(Ordering::Relaxed)
    }

    /// Room that the quotas here and above leave, bytes; `None` without a quota.
    pub fn quota_left_bytes(&self) -> Option<u64> {
        let own = {
            let set_aside = self.set_aside.lock();
            set_aside
                .promised_bytes
                .saturating_sub(set_aside.files.unmapped_bytes())
        };
        self.quota_left_beside(own)
    }

    /// The same for somebody to whom `own_bytes` of it are promised.
    fn quota_left_beside(&self, own_bytes: u64) -> Option<u64> {
        let own = match self.quota_bytes.load(Ordering::Relaxed) {
            UNLIMITED => None,
            quota => {
                let promised = self.promised_bytes.load(Ordering::Relaxed);
                let taken = self.live_bytes() + self.pending_bytes.load(Ordering::Relaxed);
                Some(quota.saturating_sub(taken + promised.saturating_sub(own_bytes)))
            }
        };
        let above = self
            .above
            .read()
            .as_ref()
            .and_then(|above| above.quota_left_beside(own_bytes));
        match (own, above) {
            (Some(own), Some(above)) => Some(own.min(above)),
            (own, above) => own.or(above),
        }
    }

    /// What it takes of the quotas above it, with those below and all that is promised to them, bytes.
    pub(crate) fn taken_of_quotas_bytes(&self) -> u64 {
        let pending = self.pending_bytes.load(Ordering::Relaxed);
        self.live_bytes() + pending + self.promised_bytes.load(Ordering::Relaxed)
    }

    /// What reservations, of this one and those below, may still add to that, bytes.
    pub(crate) fn promised_bytes(&self) -> u64 {
        self.promised_bytes.load(Ordering::Relaxed)
    }

    /// The quota of this one alone, bytes; `None` without one.
    pub(crate) fn quota_bytes(&self) -> Option<u64> {
        let quota = self.quota_bytes.load(Ordering::Relaxed);
        (quota != UNLIMITED).then_some(quota)
    }

    pub(crate) fn add_live_blocks(&self, change: i64) {
        self.own_live_blocks.fetch_add(change, Ordering::Relaxed);
        self.add_tree_blocks(change);
    }

    fn add_tree_blocks(&self, change: i64) {
        let above = self.above.read();
        self.live_blocks.fetch_add(change, Ordering::Relaxed);
        if let Some(above) = &*above {
            above.add_tree_blocks(change);
        }
    }

    /// So many blocks stand for the reservation from now on.
    pub(crate) fn set_own_blocks(&self, blocks: u64) {
        self.own_blocks.store(blocks, Ordering::Relaxed);
        self.follow();
    }

    /// Puts it below another dataset, with everything it counts.
    pub(crate) fn move_below(&self, above: Option<Arc<Usage>>) {
        // Whoever counts holds the link for reading, so that nothing is counted on one side only.
        let mut link = self.above.write();
        let blocks = self.live_blocks.load(Ordering::Relaxed);
        let pending = self.pending_bytes.load(Ordering::Relaxed);
        let promised = self.promised_bytes.load(Ordering::Relaxed);
        if let Some(old) = &*link {
            old.add_tree_blocks(-blocks);
            old.sub_tree_pending(pending);
            old.change_promised(promised, 0);
        }
        if let Some(new) = &above {
            new.add_tree_blocks(blocks);
            new.add_tree_pending(pending);
            new.change_promised(0, promised);
        }
        *link = above;
    }

    pub(crate) fn set_quota(&self, quota_bytes: Option<u64>) {
        self.quota_bytes
            .store(quota_bytes.unwrap_or(UNLIMITED), Ordering::Relaxed);
    }

    /// What a reservation of so many bytes would take of the pool beyond what is set aside now.
    pub(crate) fn more_for(&self, bytes: u64) -> u64 {
        let working = working_bytes_of(&self.store, bytes);
        let set_aside = self.set_aside.lock();
        let want = self.wanted(bytes, working, &set_aside.files);
        want.saturating_sub(set_aside.room.bytes())
    }

    /// The reservation is so much, as was promised before: nobody else gets room until it is there. Whether it is.
    pub(crate) fn keep_reservation(&self, bytes: u64) -> bool {
        self.reservation_bytes.store(bytes, Ordering::Relaxed);
        self.working_bytes
            .store(working_bytes_of(&self.store, bytes), Ordering::Relaxed);
        self.adjust();
        let space = self.store.space();
        bytes == 0 || space.set_aside_bytes <= space.room_bytes
    }

    /// What a snapshot of it would have to set aside, if `more_blocks` were committed before: what stands for the reservation
    /// now no longer does.
    pub(crate) fn snapshot_bytes(&self, more_bytes: u64) -> u64 {
        let reserved = self.reservation_bytes.load(Ordering::Relaxed);
        let own = blocks_to_bytes_of(self.own_blocks.load(Ordering::Relaxed)) + more_bytes;
        let files = match self.has_files.load(Ordering::Relaxed) {
            true => self.set_aside.lock().files.snapshot_bytes(more_bytes),
            false => 0,
        };
        reserved.min(own).max(files)
    }

    fn wanted(&self, reservation_bytes: u64, working_bytes: u64, files: &FileRoom) -> u64 {
        if reservation_bytes == 0 {
            return files.lacking_bytes();
        }
        let own = blocks_to_bytes_of(self.own_blocks.load(Ordering::Relaxed));
        let taking = self.taking_bytes.load(Ordering::Relaxed);
        let pending = self
            .own_pending_bytes
            .load(Ordering::Relaxed)
            .saturating_sub(taking);
        let reserved = (reservation_bytes.saturating_sub(own) + working_bytes).saturating_sub(pending);
        // What was preallocated is used up when it is committed.
        reserved.max(files.lacking_bytes())
    }

    fn wanted_now(&self, files: &FileRoom) -> u64 {
        self.wanted(
            self.reservation_bytes.load(Ordering::Relaxed),
            self.working_bytes.load(Ordering::Relaxed),
            files,
        )
    }

    /// Sets aside what was given back, before anybody else can have it.
    fn follow(&self) {
        if self.has_promise() {
            let mut set_aside = self.set_aside.lock();
            self.grow(&mut set_aside);
        }
    }

    fn grow(&self, set_aside: &mut SetAside) {
        let (have, want) = (set_aside.room.bytes(), self.wanted_now(&set_aside.files));
        if want > have {
            set_aside.room.join(self.store.reserve_always(want - have));
        }
        let working = self
            .working_bytes
            .load(Ordering::Relaxed)
            .min(set_aside.room.bytes());
        let counted = std::mem::replace(&mut set_aside.working_bytes, working);
        self.common.change_working(counted, working);
        let promised = self.promised_of(&set_aside.files);
        let before = std::mem::replace(&mut set_aside.promised_bytes, promised);
        self.change_promised(before, promised);
    }

    /// Of a reservation and preallocated ranges, what quotas do not count yet, bytes.
    fn promised_of(&self, files: &FileRoom) -> u64 {
        let reserved = self.reservation_bytes.load(Ordering::Relaxed);
        let live = blocks_to_bytes(self.own_live_blocks.load(Ordering::Relaxed));
        let pending = self.own_pending_bytes.load(Ordering::Relaxed);
        let rest = reserved.saturating_sub(live.saturating_add(pending));
        rest.max(files.unmapped_bytes())
    }

    /// More stands for the reservation than before without anything being written, as a snapshot is gone: what was set aside for that
    /// is anybody's again. The commit lock of the dataset is held: within a commit what stands for it counts twice for a moment.
    pub(crate) fn give_back(&self) {
        if self.has_promise() || self.set_aside_bytes() > 0 {
            self.adjust();
        }
    }

    fn change_promised(&self, before: u64, now: u64) {
        if before == now {
            return;
        }
        let above = self.above.read();
        self.promised_bytes.fetch_add(now, Ordering::Relaxed);
        self.promised_bytes.fetch_sub(before, Ordering::Relaxed);
        if let Some(above) = &*above {
            above.change_promised(before, now);
        }
    }

    /// What a reservation of so many bytes would take of the quotas here and above beyond what it takes now.
    pub(crate) fn more_of_quota(&self, bytes: u64) -> u64 {
        let live = blocks_to_bytes(self.own_live_blocks.load(Ordering::Relaxed));
        let promised = self.set_aside.lock().promised_bytes;
        bytes.saturating_sub(live + promised)
    }

    fn adjust(&self) {
        let mut set_aside = self.set_aside.lock();
        let want = self.wanted_now(&set_aside.files);
        set_aside.room.shrink_to(want);
        self.grow(&mut set_aside);
    }

    /// Sets room aside for what a file preallocates, or has none.
    ///
    /// # Errors
    /// `NoSpace` and `QuotaExceeded`: nothing was set aside.
    pub(crate) fn promise(&self, more: Promised) -> Result<(), FsError> {
        let missing = {
            let set_aside = self.set_aside.lock();
            let files = set_aside.files.with(more);
            self.wanted_now(&files).saturating_sub(set_aside.room.bytes())
        };
        let of = |bytes| match bytes {
            0 => Ok(Reservation::none()),
            bytes => self.store.reserve(bytes),
        };
        let room = of(missing)?;
        // Held until it is set aside in `common`.
        let _to_work_in = of(self
            .common
            .lacking_for_files(&self.store, blocks_to_bytes_of(more.blocks)))?;
        let _counting = self.count_quotas();
        let mut set_aside = self.set_aside.lock();
        let files = set_aside.files.with(more);
        let (before, promised) = (set_aside.promised_bytes, self.promised_of(&files));
        let left = self.quota_left_beside(before);
        if promised > before && left.is_some_and(|left| left < promised) {
            return Err(FsError::QuotaExceeded);
        }
        set_aside.room.join(room);
        self.set_files(&mut set_aside, files);
        Ok(())
    }

    /// What was promised last is not to be.
    pub(crate) fn take_promise_back(&self, what: Promised) {
        let totals = self.set_aside.lock().files.totals();
        self.files_are(totals, what);
        self.give_back();
    }

    /// The files of the dataset have preallocated so much, as of a commit; what was `counted` with it was promised before.
    pub(crate) fn files_are(&self, totals: PreallocatedTotals, counted: Promised) {
        let mut set_aside = self.set_aside.lock();
        let mut files = set_aside.files;
        if files.become_those(totals, counted) {
            self.set_files(&mut set_aside, files);
        }
    }

    fn set_files(&self, set_aside: &mut SetAside, files: FileRoom) {
        set_aside.files = files;
        self.has_files.store(!files.is_none(), Ordering::Relaxed);
        self.common
            .files_are(&self.store, &mut set_aside.of_files, files.bytes());
        self.grow(set_aside);
    }

    /// What files have preallocated and not written, bytes.
    pub fn preallocated_bytes(&self) -> u64 {
        match self.has_files.load(Ordering::Relaxed) {
            true => self.set_aside.lock().files.unmapped_bytes(),
            false => 0,
        }
    }

    /// The dataset is gone, and with it what its files had preallocated.
    pub(crate) fn forget_files(&self) {
        let mut set_aside = self.set_aside.lock();
        self.set_files(&mut set_aside, FileRoom::default());
        drop(set_aside);
        self.adjust();
    }

    /// Until what is returned is dropped nobody else takes of what a quota leaves; nothing where there is none.
    fn count_quotas(&self) -> Option<MutexGuard<'_, (), rank::dataset::Quotas>> {
        self.has_quota().then(|| self.common.count_quotas())
    }

    /// Whether a quota counts what it takes: its own or one above.
    pub(super) fn has_quota(&self) -> bool {
        let is_above = || self.above.read().as_ref().is_some_and(|above| above.has_quota());
        self.quota_bytes.load(Ordering::Relaxed) != UNLIMITED || is_above()
    }

    /// Room for `bytes` of dirty data, of quotas and pool: the one question of a write whether there is room.
    pub(crate) fn reserve(usage: &Arc<Self>, bytes: u64, terms: Terms) -> Result<Room, FsError> {
        let _taking = Taking::of(usage, bytes);
        // Quotas first: for who has nothing left of them the pool is not to work.
        let charge = match terms.preallocated {
            true => Charge::of(usage, bytes),
            false => Charge::take_over(usage, bytes, terms.over_bytes)?,
        };
        let own = || usage.no_hindrance_bytes(terms.preallocated);
        let reservation = match terms.at_last {
            true => usage.store.reserve_promised(bytes, &own),
            false => usage.store.reserve_beside(bytes, &own),
        }?;
        Ok(Room { charge, reservation })
    }

    fn add_tree_pending(&self, bytes: u64) {
        let above = self.above.read();
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(above) = &*above {
            above.add_tree_pending(bytes);
        }
    }

    fn sub_tree_pending(&self, bytes: u64) {
        let above = self.above.read();
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(above) = &*above {
            above.sub_tree_pending(bytes);
        }
    }

    fn add_pending(&self, bytes: u64) {
        self.own_pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.add_tree_pending(bytes);
    }

    fn sub_pending(&self, bytes: u64) {
        self.own_pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.sub_tree_pending(bytes);
        self.follow();
    }
}

/// What is being taken stays set aside until it is taken; when it is, or is not to be had, no more is set aside than that.
struct Taking<'a> {
    usage: &'a Usage,
    bytes: u64,
}

impl<'a> Taking<'a> {
    fn of(usage: &'a Usage, bytes: u64) -> Self {
        usage.taking_bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { usage, bytes }
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.usage.taking_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.usage.has_promise() {
            self.usage.adjust();
        }
    }
}

/// Takes so much of the pool for a reservation; `NoRoom` if it has not as much.
pub(crate) fn set_aside_of(store: &Arc<dyn Store>, bytes: u64) -> Result<Reservation, DatasetError> {
    if bytes == 0 {
        return Ok(Reservation::none());
    }
    store.reserve(bytes).map_err(|error| match error {
        StoreError::NoSpace => DatasetError::NoRoom {
            wanted_bytes: bytes,
            available_bytes: store.available_bytes(),
        },
        other => other.into(),
    })
}

fn blocks_to_bytes(blocks: i64) -> u64 {
    blocks_to_bytes_of(blocks.max(0) as u64)
}

pub(crate) fn blocks_to_bytes_of(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_BYTES as u64)
}

/// What counts against the quotas until it is dropped: dirty data, or content that was mapped once more, which the live
/// blocks count from the commit on.
pub(crate) struct Charge {
    usage: Arc<Usage>,
    bytes: u64,
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({} bytes)", self.bytes)
    }
}

impl Charge {
    /// `QuotaExceeded` if the quotas do not leave as much.
    pub(crate) fn take(usage: &Arc<Usage>, bytes: u64) -> Result<Self, FsError> {
        Self::take_over(usage, bytes, 0)
    }

    /// The same for what takes the place of `over_bytes` that count already.
    fn take_over(usage: &Arc<Usage>, bytes: u64, over_bytes: u64) -> Result<Self, FsError> {
        let new = bytes.saturating_sub(over_bytes);
        let _counting = usage.count_quotas().filter(|_| new > 0);
        if new > 0 && usage.quota_left_bytes().is_some_and(|left| left < new) {
            return Err(FsError::QuotaExceeded);
        }
        Ok(Self::of(usage, bytes))
    }

    /// Whatever quotas leave.
    fn of(usage: &Arc<Usage>, bytes: u64) -> Self {
        usage.add_pending(bytes);
        Self {
            usage: usage.clone(),
            bytes,
        }
    }
}

impl Charge {
    /// How much it counts.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Joins `other`, of the same dataset, to this one.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.usage.sub_pending(self.bytes);
        }
    }
}

/// Room for dirty data: within the quotas and within the pool. Dropping it gives the room back; drop it when the
/// data was committed.
#[derive(Debug)]
pub struct Room {
    // First: what is no longer pending is set aside again before the store gets it back.
    charge: Charge,
    reservation: Reservation,
}

impl Room {
    /// How much counts against the quotas.
    pub fn bytes(&self) -> u64 {
        self.charge.bytes
    }

    /// Gives `bytes` back, as far as they are there: to the quotas and to the pool.
    pub fn shrink_by(&mut self, bytes: u64) {
        self.shrink_charge_by(bytes);
        self.shrink_reservation_by(bytes);
    }

    /// How much is held of the pool or counts against the quotas.
    pub fn held_bytes(&self) -> u64 {
        self.reservation.bytes().max(self.charge.bytes)
    }

    /// How much of it the quotas count.
    pub fn charged_bytes(&self) -> u64 {
        self.charge.bytes
    }

    /// Gives `bytes` back to the quotas only.
    pub fn shrink_charge_by(&mut self, bytes: u64) {
        let bytes = bytes.min(self.charge.bytes);
        self.charge.bytes -= bytes;
        if bytes > 0 {
            self.charge.usage.sub_pending(bytes);
        }
    }

    /// Gives `bytes` back to the pool only: the data is stored, and waits for the commit that refers to it.
    pub fn shrink_reservation_by(&mut self, bytes: u64) {
        let left = self.reservation.bytes().saturating_sub(bytes);
        self.reservation.shrink_to(left);
    }

    /// Joins `other`, of the same dataset, to this one.
    pub fn join(&mut self, mut other: Room) {
        self.reservation
            .join(std::mem::replace(&mut other.reservation, Reservation::none()));
        self.charge.bytes += std::mem::take(&mut other.charge.bytes);
    }
}

#[cfg(test)]
mod tests;
