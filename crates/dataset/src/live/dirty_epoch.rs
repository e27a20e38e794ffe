//! `DirtyEpoch`: everything that operations changed since the last freeze, and the gate between operations and freezes.
//!
//! Invariants: an operation changes objects only while it holds the gate shared, and does no I/O meanwhile; a freeze holds it
//! exclusively and takes all of this together, so that it sees each operation wholly or not at all. Every object that has changes
//! not frozen yet is in the dirty list; room was taken for every dirty page. The locks in here are leaves, held for a few instructions.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX};
use terrace_sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};

use super::{
    dataset_state::DatasetState,
    metadata::Metadata,
    pending_frees::PendingFrees,
    write_ahead_queue::{StoodStill, Stored, WriteAheadQueue, ahead_memory_bytes},
};
use crate::{
    objects::{Buffers, Layer, Object, State},
    posix::FsError,
    quota::{Charge, RoomPool},
    records::Promised,
};

/// Part of the dirty share that buffers kept for reuse may take.
const BUFFERS_KEPT_PART: u64 = 16;
/// The same of single pages, and how many they are at most.
const PAGES_KEPT_PART: u64 = 4;
const PAGES_KEPT_MAX: u64 = 4096;

/// Records of the dataset itself that go into the same batch as what is dirty.
pub(crate) type Riders = Vec<(Vec<u8>, Vec<u8>)>;

/// See the module.
pub(crate) struct DirtyEpoch {
    pub(super) dataset: Arc<DatasetState>,
    gate: RwLock<(), rank::dataset::Gate>,
    dirty: Mutex<Vec<Arc<Object>>, rank::Leaf>,
    buffers: Buffers,
    rooms: RoomPool,
    pending_frees: PendingFrees,
    /// Taken for changes of metadata.
    pub(super) metadata: Metadata,
    /// For content that exists already and was mapped once more since the last freeze: it takes no room, but counts
    /// against a quota.
    shared: Mutex<Option<Charge>, rank::dataset::SharedRoom>,
    /// Dirty bytes, frozen ones included.
    dirty_bytes: AtomicU64,
    /// Added under the gate.
    riders: Mutex<Riders, rank::Leaf>,
    /// What is to be written ahead of a commit.
    queue: WriteAheadQueue,
    /// What was preallocated since the last freeze. Added under the gate.
    promised: Mutex<Promised, rank::dataset::Promised>,
}

/// Nothing is changed as long as it lives.
pub(crate) struct Stopped<'a> {
    epoch: &'a DirtyEpoch,
    _gate: RwLockWriteGuard<'a, (), rank::dataset::Gate>,
}

/// What a freeze takes, apart from the content of the objects.
pub(crate) struct Taken {
    pub(crate) objects: Vec<Arc<Object>>,
    /// Of metadata: room, and memory, bytes.
    pub(crate) metadata_room_bytes: u64,
    pub(crate) metadata_bytes: u64,
    /// Content that the counters count until it is committed that it is gone, bytes.
    pub(crate) gone_bytes: u64,
    pub(crate) shared: Option<Charge>,
    pub(crate) promised: Promised,
    pub(crate) riders: Riders,
}

impl Stopped<'_> {
    /// Takes everything; the objects have what is theirs still. What waits to be written ahead is forgotten.
    pub(crate) fn take(&self) -> Taken {
        let epoch = self.epoch;
        let objects = std::mem::take(&mut *epoch.dirty.lock());
        let (metadata_room_bytes, metadata_bytes) = epoch.freeze_metadata();
        let gone_bytes = epoch.pending_frees.frozen();
        epoch.queue.clear();
        Taken {
            objects,
            metadata_room_bytes,
            metadata_bytes,
            gone_bytes,
            shared: epoch.shared.lock().take(),
            promised: std::mem::take(&mut *epoch.promised.lock()),
            riders: std::mem::take(&mut *epoch.riders.lock()),
        }
    }

    /// Whether chunks were mapped once more that no commit has counted.
    pub(crate) fn has_shared(&self) -> bool {
        self.epoch.shared.lock().is_some()
    }
}

impl DirtyEpoch {
    pub(crate) fn new(dataset: &Arc<DatasetState>) -> Arc<Self> {
        let limit = dataset.environment().budget.dirty_limit_bytes();
        let kept = limit / BUFFERS_KEPT_PART / CHUNK_BYTES_MAX as u64;
        let pages = limit / PAGES_KEPT_PART / BLOCK_BYTES as u64;
        Arc::new(Self {
            gate: RwLock::new(()),
            dirty: Mutex::default(),
            buffers: Buffers::new(kept.clamp(4, 128) as usize, pages.min(PAGES_KEPT_MAX) as usize),
            rooms: RoomPool::default(),
            pending_frees: PendingFrees::default(),
            metadata: Metadata::default(),
            shared: Mutex::default(),
            dirty_bytes: AtomicU64::new(0),
            riders: Mutex::default(),
            queue: WriteAheadQueue::new(dataset.environment().ahead.clone()),
            promised: Mutex::default(),
            dataset: dataset.clone(),
        })
    }

    /// Stops all changes.
    pub(crate) fn stop(&self) -> Stopped<'_> {
        Stopped {
            epoch: self,
            _gate: self.gate.write(),
        }
    }

    /// Buffers to be used again.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Room for what is dirty.
    pub(crate) fn rooms(&self) -> &RoomPool {
        &self.rooms
    }

    /// What was let go of.
    pub(crate) fn pending_frees(&self) -> &PendingFrees {
        &self.pending_frees
    }

    /// What waits to be written ahead.
    pub(crate) fn queue(&self) -> &WriteAheadQueue {
        &self.queue
    }

    /// Bytes written and not yet committed.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Relaxed)
    }

    /// A file preallocated so much. The gate is held.
    pub(crate) fn add_promised(&self, more: Promised) {
        self.promised.lock().add(more);
    }

    /// Chunks were mapped once more. The gate is held.
    pub(crate) fn add_shared(&self, charge: Charge) {
        match &mut *self.shared.lock() {
            Some(shared) => shared.join(charge),
            none => *none = Some(charge),
        }
    }

    /// A record goes into the same batch as what is dirty. The gate is held.
    pub(crate) fn add_rider(&self, record: Option<(Vec<u8>, Vec<u8>)>) {
        self.riders.lock().extend(record);
    }

    /// Changes may be made as long as the answer lives; not to be taken twice by one thread.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, (), rank::dataset::Gate> {
        self.dataset.environment().foreground.note();
        self.gate.read()
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

    /// Waits for writes ahead that are under way; an error if they may be blocked by a silent device.
    pub(crate) fn stand_still(&self) -> Result<StoodStill<'_>, FsError> {
        let store = self.dataset.store();
        Ok(self
            .queue
            .stand_still(&*self.dataset.environment().clock, |since| {
                store.check_answers(since)
            })?)
    }

    /// What a commit would write or has written already, bytes.
    pub(crate) fn uncommitted_bytes(&self) -> u64 {
        self.dirty_bytes.load(Relaxed) + self.queue.bytes()
    }

    /// Puts the chunks of a range of blocks, for which room was taken, into the layer; how many dirty blocks gave way.
    pub(crate) fn put_ahead(&self, state: &mut State, blocks: Range<u64>, stored: Stored) -> u64 {
        let bytes = (blocks.end - blocks.start) * BLOCK_BYTES as u64;
        let held = ahead_memory_bytes(&state.data);
        let gone = state
            .data
            .written_ahead(blocks.start, blocks.end, stored, &self.buffers);
        let more = ahead_memory_bytes(&state.data) - held;
        self.add_dirty(more);
        self.sub_dirty(gone * BLOCK_BYTES as u64);
        self.rooms.written_ahead(bytes);
        self.queue.add(bytes);
        gone
    }

    /// A layer is dropped before it was frozen: what was written ahead for it counts no more.
    pub(crate) fn dropped_ahead(&self, layer: &Layer) {
        let bytes = layer.ahead_blocks() * BLOCK_BYTES as u64;
        if bytes > 0 {
            self.rooms.spend(bytes, bytes);
            self.sub_dirty(ahead_memory_bytes(layer));
        }
    }
}

impl Drop for DirtyEpoch {
    fn drop(&mut self) {
        // What was never committed no longer counts against the shared budget.
        let budget = &self.dataset.environment().budget;
        budget.sub_dirty(self.dirty_bytes.load(Relaxed));
        self.drop_metadata();
    }
}
