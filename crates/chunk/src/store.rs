//! `ChunkStore`: the parts put together, and the contract's methods that are one line each.
//!
//! Order of locks: maintenance → tables → stream → commit → books; the group-commit lock and those inside open segments, tree
//! and log are taken last and alone. None but maintenance, tables and the log's appending lock is held across I/O.

use super::errors::meta_error;
use crate::{catalog::CommitState, durability::GroupState};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use terrace_log::Log;
use terrace_meta::{Tree, Value};
use terrace_pool::Pool;
use terrace_store::{
    Batch, ChunkFill, ChunkId, ChunkInfo, ChunkPart, Compression, MoveRates, Piece, Placement, Reservation,
    RewriteOutcome, Sequence, Space, Store, StoreError, Trial, Written,
};

use crate::{
    Options,
    append::Stream,
    buffers::OpenSegments,
    encoding::Scratch,
    gc::Maintenance,
    ledger::BookKeeper,
    metadata::MetaStorage,
    space::{Need, StreamKey},
    worker_pool::Crew,
};

/// Chunks and records on a pool. All methods may be called from any thread.
pub struct ChunkStore {
    pub(crate) pool: Arc<Pool>,
    pub(crate) options: Options,
    pub(crate) tree: Tree,
    pub(crate) log: Log,
    pub(crate) meta: Arc<MetaStorage>,
    pub(crate) keeper: Arc<BookKeeper>,
    pub(crate) open_segments: OpenSegments,
    pub(crate) streams: Mutex<BTreeMap<StreamKey, Arc<Stream>>>,
    pub(crate) commit: Mutex<CommitState>,
    pub(crate) group: Mutex<GroupState>,
    pub(crate) flushed: Condvar,
    /// Sets of devices that hold the copies of what was written since the last flush.
    pub(crate) dirty: Mutex<BTreeSet<Vec<u16>>>,
    pub(crate) next_chunk: AtomicU64,
    pub(crate) relocations: AtomicU64,
    /// Segments released so far.
    pub(crate) released: AtomicU64,
    /// Chunk data appended since the last log entry, bytes.
    pub(crate) unlogged_bytes: AtomicU64,
    pub(crate) reserved: Arc<AtomicU64>,
    pub(crate) pending_free: AtomicI64,
    /// Content that was freed and in whose place nothing was written, bytes, as far as it matters.
    pub(crate) freed_lately: AtomicU64,
    pub(crate) stop: Mutex<Option<Arc<str>>>,
    pub(crate) stopping: AtomicBool,
    pub(crate) maintenance: Mutex<Maintenance>,
    /// Held by whoever writes tables, and by whoever copies the segments that they lie in.
    pub(crate) tables: Mutex<()>,
    pub(crate) need: Need,
    pub(crate) sinking: crate::admission::Sinking,
    pub(crate) waiting_for_tables: AtomicUsize,
    /// How fast content may be moved between tiers, and on each of them.
    pub(crate) rates: Arc<MoveRates>,
    /// The first tier that compaction leaves in peace.
    pub(crate) resting_from: std::sync::atomic::AtomicU8,
    pub(crate) spacing: crate::space::Spacing,
    pub(crate) repairs: Mutex<BTreeSet<ChunkId>>,
    /// Chunks of which somebody found no good copy, though a device that has one is there.
    pub(crate) unreadable: Mutex<BTreeSet<ChunkId>>,
    pub(crate) scratch: Mutex<Vec<Scratch>>,
    pub(crate) crew: Crew,
    /// The end of the log may have gone with a device that was not there at the opening.
    pub(crate) end_without: Option<terrace_log::EndWithout>,
    /// Why the end of the log was given up when the store was opened, if it was.
    pub(crate) given_up: Option<String>,
    /// The version of the pool.
    pub(crate) format: crate::encoding::Format,
}

impl ChunkStore {
    /// The pool below.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How fast content may be moved. [`Store::rewrite`] leaves the counting to who asks for it; all else that is moved counts here.
    pub fn rates(&self) -> &Arc<MoveRates> {
        &self.rates
    }

    /// Why the store accepts no more commits, if it does not.
    pub fn stopped(&self) -> Option<Arc<str>> {
        self.stop.lock().clone()
    }

    /// Chunks of which readers, or whoever moves content, found no good copy on devices that are there, as far as they are
    /// remembered; since the opening, or [`forget_unreadable`](Self::forget_unreadable).
    pub fn unreadable(&self) -> BTreeSet<ChunkId> {
        self.unreadable.lock().clone()
    }

    /// How many these are.
    pub fn unreadable_count(&self) -> usize {
        self.unreadable.lock().len()
    }

    /// Forgets those that nothing refers to any more, or whose devices have gone: these are known to be lost by other means.
    pub fn prune_unreadable(&self) {
        let is_over = |id: &ChunkId| match self.any_record(*id) {
            Ok(Some(record)) => !record
                .locations
                .iter()
                .any(|location| self.pool.has_segment(location.segment)),
            Ok(None) => true,
            Err(_) => false,
        };
        let over: Vec<ChunkId> = self.unreadable().into_iter().filter(is_over).collect();
        let mut unreadable = self.unreadable.lock();
        over.iter().for_each(|id| {
            unreadable.remove(id);
        });
    }

    /// They are known by other means now.
    pub fn forget_unreadable(&self) {
        self.unreadable.lock().clear();
    }

    pub(crate) fn check_running(&self) -> Result<(), StoreError> {
        if !self.stopping.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(StoreError::Stopped(
            self.stopped().unwrap_or_else(|| "it was closed".into()),
        ))
    }

    /// What the metadata may take from now on, as [`Options::memtable_bytes`] and [`Options::block_cache_bytes`].
    pub fn set_memory(&self, memtable_bytes: usize, block_cache_bytes: usize) {
        self.tree.set_memory(memtable_bytes, block_cache_bytes);
    }

    /// Memory for records that are not yet in tables, bytes.
    pub fn memtable_bytes(&self) -> usize {
        self.tree.memory_bytes()
    }

    /// Latches a failure: from now on nothing is accepted. Returns the error to be given to the caller.
    pub(crate) fn latch(&self, cause: &str) -> StoreError {
        let mut stop = self.stop.lock();
        let cause = stop.get_or_insert_with(|| cause.into()).clone();
        self.stopping.store(true, Ordering::Release);
        tracing::error!(%cause, "the store stopped accepting writes");
        StoreError::Stopped(cause)
    }
}

impl Store for ChunkStore {
    fn check_answers(&self, since: Instant) -> Result<(), StoreError> {
        self.refuse_to_wait_for(since)
    }

    fn waits_for_sinking(&self) -> bool {
        self.sinking.is_waited_for()
    }

    fn short_landing_tier(&self, bytes: u64, garbage_part: u64) -> Option<u8> {
        self.short_tier_for(bytes, garbage_part)
    }

    fn bring_garbage_back(&self) -> Result<(), StoreError> {
        self.relieve(StreamKey::Random, &|| false)
    }

    fn moved_in_need(&self, tier_bytes: &BTreeMap<u8, u64>) {
        self.rates.take_in_need(tier_bytes);
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.tree.get(key).map_err(meta_error)
    }

    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let values = self.tree.get_many(keys).map_err(meta_error)?;
        let copy = |value: Value| Bytes::copy_from_slice(&value);
        Ok(values.into_iter().map(|value| value.map(copy)).collect())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.tree.scan(from, to, limit).map_err(meta_error)
    }

    fn try_compression(&self, content: &[u8], compression: Compression) -> Trial {
        self.try_samples(content, compression)
    }

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        self.write_pieces(pieces)
    }

    fn read_chunk(&self, id: ChunkId) -> Result<Bytes, StoreError> {
        self.read_whole(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Vec<Result<Bytes, StoreError>> {
        let whole = |id: &ChunkId| ChunkPart { id: *id, range: None };
        self.read_parts(&ids.iter().map(whole).collect::<Vec<_>>())
    }

    fn read_chunk_parts(&self, parts: &[ChunkPart]) -> Vec<Result<Bytes, StoreError>> {
        self.read_parts(parts)
    }

    fn fill_from_chunks(&self, fills: &mut [ChunkFill<'_>]) {
        self.read_into(fills);
    }

    fn read_chunk_part(&self, id: ChunkId, offset: usize, length: usize) -> Result<Bytes, StoreError> {
        self.read_part(id, offset, length)
    }

    fn chunk_info(&self, id: ChunkId) -> Result<Option<ChunkInfo>, StoreError> {
        self.info(id)
    }

    fn chunk_infos(&self, ids: &[ChunkId]) -> Result<Vec<Option<ChunkInfo>>, StoreError> {
        self.infos(ids)
    }

    fn chunk_tier(&self, id: ChunkId) -> Result<Option<u8>, StoreError> {
        self.tier_of(id)
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.commit_batch(batch)
    }

    fn flush(&self, sequence: Sequence) -> Result<(), StoreError> {
        self.flush_until(sequence.0)
    }

    fn newest(&self) -> Sequence {
        Sequence(self.commit.lock().sequence)
    }

    fn reserve_beside(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        self.set_aside(bytes, own, None)
    }

    fn reserve_promised(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        // More than what gives room back may take: who writes leaves something to work in.
        self.set_aside(bytes, own, Some(self.eighths(7)))
    }

    fn reserve_to_gain(&self, bytes: u64) -> Result<Reservation, StoreError> {
        let all = || self.reserved.load(Ordering::Acquire);
        self.set_aside(bytes, &all, Some(self.eighths(6)))
    }

    fn is_reserve_left(&self, eighths: u64) -> bool {
        self.has_reserve(eighths)
    }

    fn restore_reserve(&self, eighths: u64) -> Result<bool, StoreError> {
        self.check_running()?;
        self.make_room(|| self.has_reserve(eighths))
    }

    fn next_chunk(&self) -> ChunkId {
        ChunkId(self.next_chunk_id())
    }

    fn has_preallocation(&self) -> bool {
        self.format.has_preallocation()
    }

    fn reserve_always(&self, bytes: u64) -> Reservation {
        self.reserved.fetch_add(bytes, Ordering::AcqRel);
        self.given(bytes)
    }

    fn space(&self) -> Space {
        self.measure()
    }

    fn available_bytes(&self) -> u64 {
        self.available()
    }

    fn rewrite(&self, ids: &[ChunkId], placement: Placement) -> Result<RewriteOutcome, StoreError> {
        // The last segments of a tier are not for what is moved there: log, metadata and compaction need them.
        if let Placement::Tier { tier, strict: true } = placement
            && let Some(tier) = self.pool.tiers().get(usize::from(tier))
            && tier.free_segments <= (tier.segments / 16).max(2)
        {
            return Err(StoreError::NoSpace);
        }
        if self.is_log_short() {
            return Err(StoreError::NoSpace);
        }
        self.move_chunks(ids, placement, None)
    }
}
