//! `LiveDataset`: what a live filesystem and a live volume have in common: objects in RAM, the list of dirty ones,
//! the gate between operations and freezes.
//!
//! Invariants: an operation changes objects only while it holds the gate shared, and does no I/O meanwhile; every
//! object that has changes not frozen yet is in the dirty list; room was taken for every dirty page.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use terrace_cache::Admitted;
use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, Sequence};

use super::{
    dataset_state::DatasetState, metadata::Metadata, pending_frees::PendingFrees, shared_blocks::Shared,
    write_ahead_queue::WriteAheadQueue,
};
use crate::{
    commit::{FREED_AT_ONCE_BYTES, Frozen, Group},
    objects::{Buffers, CacheShare, Cached, ClockMap, Names, Object, State},
    posix::FsError,
    quota::{Charge, RoomPool, Terms},
    records::{
        InodeRecord, Old, OrphanRecord, Promised, RegionRecord, Run, Time, damaged, decode_region, keys,
        read_as_of, split_value,
    },
    relayout::Relayouts,
    settings::{Durability, Settings},
    writing::Large,
};

/// Room that a change of metadata takes until it is committed, bytes.
pub(crate) const METADATA_BYTES: u64 = 512;
/// With so much room left for writers a little of it can be had without waiting, bytes.
const ROOM_AT_HAND_BYTES: u64 = 1 << 20;
/// Part of the dirty share that buffers kept for reuse may take.
const BUFFERS_KEPT_PART: u64 = 16;
/// The same of single pages, and how many they are at most.
const PAGES_KEPT_PART: u64 = 4;
const PAGES_KEPT_MAX: u64 = 4096;
/// Part of the share of caches that the names of one dataset take before a directory is no longer read as a whole.
const NAMES_PART: u64 = 4;
/// About what a region record takes in RAM besides its runs.
const REGION_RECORD_BYTES: usize = 96;

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
    fn eighths_left(self) -> u64 {
        match self {
            Self::Changes => 5,
            Self::Removals => 3,
        }
    }
}

/// Of the reserve, what a few changes may use however little is left, since there was room.
const FEW_PART: u64 = 64;
/// Of removals that free what they remove, one in so many bytes of records looks for room.
const LOOK_BYTES: u64 = 64 * METADATA_BYTES;

/// A region record in RAM; `None`: all holes.
pub(crate) struct CachedRegion {
    pub(crate) birth: u64,
    pub(crate) record: Option<RegionRecord>,
    /// Of a volume that is held, as far as it is known.
    pub(crate) shared: Option<Shared>,
}

impl Cached for CachedRegion {
    fn memory_bytes(&self) -> u64 {
        let runs = self.record.as_ref().map_or(0, |record| record.runs().len());
        (REGION_RECORD_BYTES + runs * size_of::<Run>()) as u64
    }

    fn evictable(&self) -> bool {
        true
    }
}

/// See the module.
pub(crate) struct LiveDataset {
    pub(crate) dataset: Arc<DatasetState>,
    pub(crate) gate: RwLock<()>,
    pub(crate) objects: Arc<ClockMap<Object>>,
    pub(crate) regions: Arc<ClockMap<CachedRegion>>,
    pub(crate) names: Arc<Names>,
    pub(crate) dirty: Mutex<Vec<Arc<Object>>>,
    pub(crate) buffers: Buffers,
    pub(crate) rooms: RoomPool,
    pub(crate) pending_frees: PendingFrees,
    /// The newest batch when the reserve was found used up, and nothing brought it back.
    pub(crate) reserve_missed: Mutex<Option<Sequence>>,
    /// Taken for changes of metadata.
    pub(crate) metadata: Metadata,
    /// For content that exists already and was mapped once more since the last freeze: it takes no room, but counts
    /// against a quota.
    pub(crate) shared: Mutex<Option<Charge>>,
    /// Dirty bytes, frozen ones included.
    pub(crate) dirty_bytes: AtomicU64,
    /// One rename between directories at a time, so that the tree above a directory stands still.
    pub(crate) rename: Mutex<()>,
    /// Records of the dataset itself that belong to what is dirty: they go into the same batch. Added under the gate.
    pub(crate) riders: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    /// What a freeze took and no commit has taken over yet. Used under the commit lock.
    pub(crate) pending: Mutex<Option<Frozen>>,
    /// A commit is being built.
    pub(crate) building: AtomicBool,
    pub(crate) group: Group,
    /// What is to be written ahead of a commit.
    pub(crate) ahead: WriteAheadQueue,
    pub(crate) large: Large,
    pub(crate) relayouts: Relayouts,
    /// What was preallocated since the last freeze. Added under the gate.
    pub(crate) promised: Mutex<Promised>,
}

impl LiveDataset {
    pub(crate) fn new(dataset: Arc<DatasetState>) -> Self {
        let budget = &dataset.environment().budget;
        let caches = &dataset.environment().caches;
        let objects = ClockMap::new(caches);
        let kept = budget.dirty_limit_bytes() / BUFFERS_KEPT_PART / CHUNK_BYTES_MAX as u64;
        let pages = budget.dirty_limit_bytes() / PAGES_KEPT_PART / BLOCK_BYTES as u64;
        Self {
            gate: RwLock::new(()),
            names: Names::of(&objects, caches),
            objects,
            regions: ClockMap::new(caches),
            dirty: Mutex::new(Vec::new()),
            buffers: Buffers::new(kept.clamp(4, 128) as usize, pages.min(PAGES_KEPT_MAX) as usize),
            rooms: RoomPool::default(),
            pending_frees: PendingFrees::default(),
            reserve_missed: Mutex::new(None),
            metadata: Metadata::default(),
            shared: Mutex::new(None),
            dirty_bytes: AtomicU64::new(0),
            rename: Mutex::new(()),
            riders: Mutex::new(Vec::new()),
            pending: Mutex::new(None),
            building: AtomicBool::new(false),
            group: Group::default(),
            ahead: WriteAheadQueue::new(dataset.environment().ahead.clone()),
            large: Large::default(),
            relayouts: Relayouts::default(),
            promised: Mutex::default(),
            dataset,
        }
    }

    /// What the names of all directories take before one more is no longer read as a whole, bytes.
    pub(crate) fn names_limit(&self) -> u64 {
        self.environment_caches().limit_bytes() / NAMES_PART
    }

    pub(crate) fn environment_caches(&self) -> &CacheShare {
        &self.dataset.environment().caches
    }

    pub(crate) fn now(&self) -> Time {
        self.dataset.environment().now()
    }

    pub(crate) fn minutes(&self) -> u32 {
        (self.dataset.environment().clock.now_nanoseconds() / 60_000_000_000) as u32
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.dataset.settings()
    }

    /// Refuses changes of a read-only dataset, and all use of a destroyed one.
    pub(crate) fn writable(&self) -> Result<(), FsError> {
        if self.dataset.is_gone() {
            Err(FsError::Stale)
        } else if self.settings().readonly {
            Err(FsError::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// Changes may be made as long as the answer lives; not to be taken twice by one thread.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.dataset.environment().foreground.note();
        self.gate.read()
    }

    /// The object, from RAM or from its record; `Stale` if there is none.
    pub(crate) fn object(&self, number: u64) -> Result<Arc<Object>, FsError> {
        loop {
            let version = match self.objects.get((number, 0)) {
                Ok(object) => return Ok(object),
                Err(version) => version,
            };
            let (birth, inode) = self.read_inode(number)?.ok_or(FsError::Stale)?;
            let object = Object::loaded(number, inode, birth, &self.names.count);
            if let Some(object) = self.objects.insert_loaded((number, 0), version, object) {
                return Ok(object);
            }
        }
    }

    fn read_inode(&self, number: u64) -> Result<Option<(u64, InodeRecord)>, FsError> {
        if self.dataset.is_gone() {
            return Err(FsError::Stale);
        }
        let key = keys::inode(self.dataset.number(), number);
        let Some(value) = self.dataset.store().get(&key)? else {
            return Ok(None);
        };
        let decoded = split_value(&value)
            .and_then(|(birth, payload)| InodeRecord::decode(payload).map(|inode| (birth, inode)));
        Ok(Some(decoded.map_err(|cause| damaged("an inode record", &cause))?))
    }

    /// The newest committed region record.
    pub(crate) fn region(&self, body: u64, region: u64) -> Result<Arc<CachedRegion>, FsError> {
        loop {
            let version = match self.regions.get((body, region)) {
                Ok(cached) => return Ok(cached),
                Err(version) => version,
            };
            let value = self
                .dataset
                .store()
                .get(&keys::region(self.dataset.number(), body, region))?;
            let cached = match value {
                Some(value) => {
                    let decoded = decode_region(&value)?;
                    CachedRegion {
                        birth: decoded.birth,
                        record: Some(decoded.record),
                        shared: None,
                    }
                }
                None => CachedRegion {
                    birth: 0,
                    record: None,
                    shared: None,
                },
            };
            if let Some(cached) = self
                .regions
                .insert_loaded((body, region), version, Arc::new(cached))
            {
                return Ok(cached);
            }
        }
    }

    /// Puts a changed object in the dirty list. The gate is held.
    pub(crate) fn mark(&self, object: &Arc<Object>, state: &mut State) {
        if !state.listed {
            state.listed = true;
            self.dirty.lock().push(object.clone());
        }
    }

    /// Marks a change of the inode.
    pub(crate) fn mark_inode(&self, object: &Arc<Object>, state: &mut State) {
        state.inode_dirty = true;
        self.mark(object, state);
    }

    /// Takes room for `operations` changes of metadata; with room gone, commits what is dirty and tries once more.
    /// The room comes back with the next commit.
    pub(crate) fn take_metadata(&self, operations: u64) -> Result<(), FsError> {
        let bytes = operations * METADATA_BYTES;
        let _admitted = self.admit_metadata(bytes)?;
        self.take_room(bytes)?;
        self.count_metadata(bytes);
        Ok(())
    }

    /// The same for changes that must work on a full pool (they free space, or take none): with room gone they go
    /// into the pool's reserve, as far as `part` of it may be used, and nobody waits until there is room, which is what they are to
    /// bring about.
    ///
    /// # Errors
    /// Of the commit that comes first where much was let go of since the last one. `NoSpace` where that part of the reserve is used,
    /// and nothing can be brought back: below a snapshot nothing gets free, and what was there stays on record.
    pub(crate) fn take_metadata_always(&self, operations: u64, part: OfReserve) -> Result<(), FsError> {
        self.take_metadata_to_remove(operations, part, &|| false)
    }

    /// The same; `is_young`: no past state has what is removed, so that its room is free when that is committed.
    pub(crate) fn take_metadata_to_remove(
        &self,
        operations: u64,
        part: OfReserve,
        is_young: &dyn Fn() -> bool,
    ) -> Result<(), FsError> {
        self.commit_let_go()?;
        let bytes = operations * METADATA_BYTES;
        let _admitted = self.admit_metadata_always(bytes)?;
        let is_there = || self.dataset.store().available_bytes() > ROOM_AT_HAND_BYTES;
        let is_taken = self.rooms.take_at_hand(bytes)
            || (is_there() && self.rooms.take(self.dataset.usage(), bytes).is_ok());
        match is_taken {
            true => self.dataset.environment().room.reserve_is_spared(),
            false => {
                self.spare_reserve(bytes, part, is_young)?;
                self.rooms.force(bytes);
            }
        }
        self.pending_frees.add_records(bytes);
        self.count_metadata(bytes);
        Ok(())
    }

    /// `NoSpace` when changes have used the reserve as far as `part` allows, and nothing brings it back.
    fn spare_reserve(&self, bytes: u64, part: OfReserve, is_young: &dyn Fn() -> bool) -> Result<(), FsError> {
        let store = self.dataset.store();
        let left = part.eighths_left();
        if store.is_reserve_left(left) {
            return Ok(());
        }
        let room = &self.dataset.environment().room;
        let used = room.take_of_reserve(bytes);
        // What nothing older holds is free when it is committed, and the log is asked before that: of many one looks for room, so that
        // there is some for what brings it back.
        let is_held = !self.dataset.held().read().is_empty();
        let is_freed = part == OfReserve::Removals && (!is_held || is_young());
        if is_freed && used % LOOK_BYTES >= bytes {
            return Ok(());
        }
        // Of many changes one after the other not each looks again through the whole pool.
        if *self.reserve_missed.lock() != Some(store.newest()) {
            // What is dirty may have lost its room with a device: no reason to refuse what gives some back.
            match self.commit() {
                Err(FsError::NoSpace) if part == OfReserve::Removals => {}
                other => drop(other?),
            }
            let mut is_left = Ok(false);
            let mut enough = || {
                is_left = store.restore_reserve(left);
                !matches!(is_left, Ok(false))
            };
            if !enough() {
                room.make_room(&self.dataset, METADATA_BYTES, &mut enough);
            }
            if is_left? {
                room.reserve_is_spared();
                return Ok(());
            }
            *self.reserve_missed.lock() = Some(store.newest());
        }
        // A few work in any case.
        if is_freed || used <= store.space().reserve_bytes / FEW_PART {
            return Ok(());
        }
        room.give_back_of_reserve(bytes);
        Err(FsError::NoSpace)
    }

    /// Takes room for `bytes` of dirty data; with room gone, commits what is dirty (its room was an upper bound), tries once
    /// more, and then waits for what all datasets can give back. No gate, state or commit lock is held.
    pub(crate) fn take_room(&self, bytes: u64) -> Result<(), FsError> {
        self.take_room_over(bytes, &mut || 0, &|| false)
    }

    /// The same for data that takes the place of blocks which are mapped already: `over_bytes` tells how many bytes of them,
    /// once it matters, and `is_preallocated` whether room is set aside for all of it.
    pub(crate) fn take_room_over(
        &self,
        bytes: u64,
        over_bytes: &mut dyn FnMut() -> u64,
        is_preallocated: &dyn Fn() -> bool,
    ) -> Result<(), FsError> {
        if self.rooms.take_at_hand(bytes) {
            return Ok(());
        }
        self.bring_back_in_time(bytes);
        let mut terms = Terms {
            preallocated: self.dataset.usage().has_preallocated() && is_preallocated(),
            ..Terms::default()
        };
        let result = self.rooms.take_on(self.dataset.usage(), bytes, terms);
        if !matches!(result, Err(FsError::NoSpace | FsError::QuotaExceeded)) {
            return result;
        }
        self.commit()?;
        let mut result = self.rooms.take_on(self.dataset.usage(), bytes, terms);
        if result == Err(FsError::QuotaExceeded) {
            terms.over_bytes = over_bytes();
            result = self.rooms.take_on(self.dataset.usage(), bytes, terms);
        }
        if result == Err(FsError::NoSpace) {
            let environment = self.dataset.environment();
            environment.room.make_room(&self.dataset, bytes, &mut || {
                result = self.rooms.take_on(self.dataset.usage(), bytes, terms);
                result != Err(FsError::NoSpace)
            });
        }
        let is_promised = terms.preallocated || self.dataset.usage().reservation_bytes() > 0;
        if result == Err(FsError::NoSpace) && is_promised {
            terms.at_last = true;
            result = self.rooms.take_on(self.dataset.usage(), bytes, terms);
        }
        result
    }

    /// A dataset to which room is promised brings dead blocks back while half of its working room is left: when all is gone there
    /// is none to write anew in.
    fn bring_back_in_time(&self, bytes: u64) {
        let usage = self.dataset.usage();
        if usage.is_short_of_working_room() {
            let environment = self.dataset.environment();
            let now = environment.clock.monotonic_nanoseconds();
            if environment.room.is_time(now, bytes, usage.working_bytes()) {
                // Garbage comes back first: what is written anew makes more of it, and needs room before it gives any.
                let mut enough = || !usage.is_short_of_working_room() || usage.brings_working_room_back();
                if !enough() {
                    environment.room.make_room(&self.dataset, bytes, &mut enough);
                }
            }
        }
    }

    /// Counts `bytes` of content that exists already and is to be mapped once more against the quotas. No gate, state or
    /// commit lock is held.
    pub(crate) fn charge_shared(&self, bytes: u64) -> Result<Charge, FsError> {
        match Charge::take(self.dataset.usage(), bytes) {
            Err(FsError::QuotaExceeded) => {
                // What is dirty counts as more than it may become.
                self.commit()?;
                Charge::take(self.dataset.usage(), bytes)
            }
            other => other,
        }
    }

    /// Content as of now: what the counters say, with what was written and without what was let go of since, about, bytes. What is
    /// written over counts until that is committed, though no quota is exceeded by it.
    pub(crate) fn referenced_bytes(&self) -> u64 {
        let counted = self.dataset.counters().referenced_bytes();
        let written = self.rooms.charged_bytes() + self.shared.lock().as_ref().map_or(0, Charge::bytes);
        let now = (counted + written).saturating_sub(self.pending_frees.content_bytes());
        let quota = self.dataset.usage().quota_bytes();
        quota.map_or(now, |quota| now.min(quota.max(counted)))
    }

    /// Room that is held although nothing is uncommitted, bytes: always none, or the pool would be found full too early.
    /// Zeros that were written through take no memory, and have their room until the commit.
    pub(crate) fn leaked_room_bytes(&self) -> u64 {
        match self.uncommitted_bytes() {
            0 => self.rooms.taken_bytes(),
            _ => 0,
        }
    }

    pub(crate) fn add_dirty(&self, bytes: u64) {
        self.dirty_bytes.fetch_add(bytes, Relaxed);
        self.dataset.environment().budget.add_dirty(bytes);
    }

    pub(crate) fn sub_dirty(&self, bytes: u64) {
        self.dirty_bytes.fetch_sub(bytes, Relaxed);
        self.dataset.environment().budget.sub_dirty(bytes);
    }

    /// Dirty pages were dropped before they were frozen.
    pub(crate) fn dropped(&self, blocks: u64) {
        let bytes = blocks * BLOCK_BYTES as u64;
        if bytes > 0 {
            self.rooms.give(bytes);
            self.sub_dirty(bytes);
        }
    }

    /// Slows the writer of `bytes` when much is dirty: it helps to write ahead when much of that waits, and commits
    /// when the budget is used up and nothing can be written ahead; with `durability=ram` when half of it is, as nobody
    /// else may write what is kept there. What is returned is kept until the write is done. No lock is held.
    pub(crate) fn throttle(&self, bytes: u64) -> Result<Admitted<'_>, FsError> {
        let admitted = self.admit(bytes)?;
        self.dataset.environment().budget.throttle(bytes);
        Ok(admitted)
    }

    /// The same, and he is not delayed yet.
    pub(crate) fn admit(&self, bytes: u64) -> Result<Admitted<'_>, FsError> {
        let environment = self.dataset.environment();
        let budget = &environment.budget;
        if self.ahead.is_long() {
            self.help_write_ahead();
        }
        let kept_full = || {
            budget.is_kept_full(self.dirty_bytes.load(Relaxed))
                && self.settings().durability == Durability::Ram
        };
        if kept_full() {
            self.commit()?;
        }
        loop {
            if let Some(admitted) = environment.admit(bytes) {
                return Ok(admitted);
            }
            if !self.write_ahead_step() {
                self.commit()?;
                return Ok(environment.admit_always(bytes));
            }
        }
    }

    /// With `durability=sync`, makes the operation that just ended durable. No lock is held.
    pub(crate) fn settle(&self) -> Result<(), FsError> {
        if self.settings().durability == Durability::Sync {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Nothing names or holds the object any more: drops its content from RAM; the next commit deletes its records,
    /// or queues them for the sweep. The gate and the state are held.
    pub(crate) fn free(&self, object: &Arc<Object>, state: &mut State) {
        if state.freed {
            return;
        }
        state.freed = true;
        self.pending_frees
            .add_uncounted(state.inode.blocks * BLOCK_BYTES as u64);
        if state.recorded_size <= FREED_AT_ONCE_BYTES {
            self.pending_frees
                .add_content(state.inode.blocks * BLOCK_BYTES as u64);
        }
        let layer = std::mem::take(&mut state.data);
        self.dropped(layer.dirty_blocks());
        self.dropped_ahead(&layer);
        layer.drop_into(&self.buffers);
        if state.recorded == Old::Absent && !state.in_flight {
            self.objects.remove((object.number, 0));
            state.inode_dirty = false;
        } else {
            self.mark_inode(object, state);
        }
        self.dataset
            .environment()
            .heat
            .forget(self.dataset.number(), state.inode.body);
    }

    /// Whether no past state has this object: one that had it would be held by the newest as well.
    pub(crate) fn is_young(&self, object: &Object) -> bool {
        let Some(held) = self.dataset.held().read().newest_before(u64::MAX) else {
            return true;
        };
        // A change since then leaves the record as it was before in the history.
        let key = keys::inode(self.dataset.number(), object.number);
        matches!(read_as_of(self.dataset.store().as_ref(), &key, held), Ok(None))
    }

    /// Keeps the object alive without a name.
    pub(crate) fn hold(&self, number: u64) -> Result<(), FsError> {
        let object = self.object(number)?;
        let mut state = object.state.lock();
        if state.freed {
            return Err(FsError::Stale);
        }
        state.opens += 1;
        Ok(())
    }

    /// Undoes one `hold`.
    pub(crate) fn release(&self, number: u64) {
        let Ok(object) = self.objects.get((number, 0)) else {
            return;
        };
        let _gate = self.enter();
        let mut state = object.state.lock();
        state.opens = state.opens.saturating_sub(1);
        if state.opens == 0 && state.inode.links == 0 && !state.freed {
            self.charge_release(&mut state);
            self.free(&object, &mut state);
        }
    }

    /// Frees what was unlinked but open when the dataset was last used.
    pub(crate) fn free_orphans(&self) -> Result<(), FsError> {
        let (mut from, to) = keys::dataset_range(keys::TABLE_ORPHAN, self.dataset.number());
        loop {
            let records = self.dataset.store().scan(&from, &to, 256)?;
            for (key, value) in &records {
                if OrphanRecord::decode(value)? != OrphanRecord::Open {
                    continue;
                }
                let object = match self.object(keys::parse_orphan(key)?.1) {
                    Ok(object) => object,
                    Err(FsError::Stale) => continue,
                    Err(error) => return Err(error),
                };
                let _admitted = self.admit_metadata_always(METADATA_BYTES)?;
                let _gate = self.enter();
                let mut state = object.state.lock();
                if state.inode.links == 0 && state.opens == 0 && !state.freed {
                    state.orphan_recorded = true;
                    self.charge_release(&mut state);
                    self.free(&object, &mut state);
                }
            }
            let Some((last, _)) = records.last() else {
                return Ok(());
            };
            from = last.to_vec();
            from.push(0);
        }
    }
}

impl Drop for LiveDataset {
    fn drop(&mut self) {
        // What was never committed no longer counts against the shared budget.
        let budget = &self.dataset.environment().budget;
        budget.sub_dirty(self.dirty_bytes.load(Relaxed));
        self.drop_metadata();
    }
}
