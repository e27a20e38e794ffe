//! Batches: what commits change, in one order, and the operations of one batch.
//!
//! Invariant: a batch gets its number, its place in the pending log payload and its place in the tree under one lock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use terrace_codec::Writer;
use terrace_meta::{Key, Operation, Tree, Value};
use terrace_pool::SegmentId;
use terrace_store::{ChunkId, StoreError};
use terrace_sync::{Mutex, MutexGuard, rank};

use crate::{
    Handles, Options,
    encoding::{
        ChunkRecord, Counters, TABLE_CHUNKS, TABLE_LIVE, TABLE_REFERENCES, candidate_key, chunk_key,
        dedup_key, encode_batch, segment_key,
    },
    ledger::Ledger,
    space::SpaceView,
    stop::Stop,
};

/// Operations of one batch.
pub(crate) type Operations = Vec<(Key, Operation)>;

/// Adds the operations that enter a chunk's record to a batch.
pub(crate) fn put_record(operations: &mut Operations, id: ChunkId, record: &ChunkRecord) {
    operations.push((
        chunk_key(TABLE_CHUNKS, id).into(),
        Operation::Put(record.encode().into()),
    ));
}

/// Adds a change of a segment's live bytes to a batch.
pub(crate) fn add_live(operations: &mut Operations, segment: SegmentId, bytes: i64) {
    operations.push((segment_key(TABLE_LIVE, segment).into(), Operation::Add(bytes)));
}

/// The commit lock, held.
pub(super) type CommitLocked<'a> = MutexGuard<'a, CommitState, rank::append::Commit>;

/// What commits change, in one order.
pub(crate) struct CommitState {
    /// Sequence of the newest batch.
    pub(super) sequence: u64,
    /// Batches that are not in the log yet.
    pub(super) pending: Writer,
    /// Bytes of batches that are being written to the log.
    pub(super) in_flight: u64,
    /// Sequence of the first of them.
    pub(super) first: u64,
    /// Totals after the newest batch.
    pub(super) counters: Counters,
    /// Totals at each place where the log can be entered.
    pub(super) marks: VecDeque<(u64, Counters)>,
    /// Devices on which the chunks lie that pending batches tell of.
    pub(super) places: BTreeSet<u16>,
}

impl CommitState {
    /// That of a store whose newest batch is `sequence`.
    pub(crate) fn new(sequence: u64, counters: Counters, marks: VecDeque<(u64, Counters)>) -> Self {
        Self {
            sequence,
            pending: Writer::new(),
            in_flight: 0,
            first: 0,
            counters,
            marks,
            places: BTreeSet::new(),
        }
    }

    /// What the log does not have yet.
    fn due_bytes(&self) -> u64 {
        self.in_flight + self.pending.len() as u64
    }
}

/// Records of chunks, and the batches that change them.
pub(crate) struct Catalog {
    pub(super) options: Options,
    pub(super) tree: Arc<Tree>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) stop: Arc<Stop>,
    pub(super) space: Arc<SpaceView>,
    pub(super) commit: Mutex<CommitState, rank::append::Commit>,
    /// Chunk data appended since the last log entry, bytes.
    pub(super) unlogged_bytes: AtomicU64,
    pub(super) next_chunk: AtomicU64,
}

impl Catalog {
    /// Of these parts.
    pub(crate) fn new(
        handles: &Handles,
        stop: &Arc<Stop>,
        space: &Arc<SpaceView>,
        commit: CommitState,
        next_chunk: u64,
    ) -> Self {
        Self {
            options: handles.options.clone(),
            tree: handles.tree.clone(),
            ledger: handles.ledger.clone(),
            stop: stop.clone(),
            space: space.clone(),
            commit: Mutex::new(commit),
            unlogged_bytes: AtomicU64::new(0),
            next_chunk: AtomicU64::new(next_chunk),
        }
    }

    /// References to chunks that are neither pending nor held must be to chunks that exist. Only additions are
    /// looked up: what is taken away was added by the same caller before.
    pub(crate) fn check_known(&self, changes: &BTreeMap<ChunkId, Change>) -> Result<(), StoreError> {
        let next = self.next_chunk.load(Ordering::Acquire);
        let mut unknown = Vec::new();
        {
            let ledger = self.ledger.lock();
            for (id, change) in changes {
                if id.0 == 0 || id.0 >= next {
                    return Err(StoreError::NoChunk(*id));
                }
                if change.sum > 0 && ledger.pending(*id).is_none() && !ledger.is_pinned(*id) {
                    unknown.push(*id);
                }
            }
        }
        for (id, record) in unknown.iter().zip(self.records_of(&unknown)) {
            if record?.is_none() {
                return Err(StoreError::NoChunk(*id));
            }
        }
        Ok(())
    }

    /// Builds the operations of the reference changes; pending chunks that are referred to become committed.
    pub(crate) fn refer(
        &self,
        commit: &mut CommitState,
        sequence: u64,
        changes: &BTreeMap<ChunkId, Change>,
        operations: &mut Operations,
    ) -> Result<Counters, StoreError> {
        let mut total = Counters::default();
        let mut ledger = self.ledger.lock();
        let revived = |(id, change): &(&ChunkId, &Change)| change.sum > 0 && ledger.is_dying(**id);
        if let Some((id, _)) = changes.iter().find(revived) {
            return Err(StoreError::NoChunk(*id));
        }
        let mut freed = 0;
        // One change for each segment: a batch has as many chunks as blocks were written, and few segments.
        let mut live: BTreeMap<SegmentId, i64> = BTreeMap::new();
        // Table by table and ascending, so that each enters the memtable beside the one before.
        let [mut references, mut hints, mut candidates] =
            [(); 3].map(|()| Operations::with_capacity(changes.len()));
        for (id, change) in changes {
            if change.sum == 0 && ledger.pending(*id).is_some() {
                continue;
            }
            let is_listed = ledger.is_listed(*id);
            if let Some(record) = ledger.take_pending(*id) {
                let stored = i64::from(record.stored());
                put_record(operations, *id, &record);
                if is_listed {
                    hints.push((
                        dedup_key(&record.hash, self.options.hint_bytes),
                        Operation::Put(Value::new(&id.0.to_le_bytes())),
                    ));
                }
                for location in &record.locations {
                    *live.entry(location.segment).or_default() += stored;
                }
                total.chunks += 1;
                total.unique += i64::from(record.length);
                total.unique_blocks += record.blocks();
                total.stored += stored;
            }
            if change.sum != 0 {
                references.push((
                    chunk_key(TABLE_REFERENCES, *id).into(),
                    Operation::Add(change.sum),
                ));
                total.blocks += change.sum;
            }
            if change.taken > 0 {
                let estimate = commit.counters.stored.max(0) / commit.counters.blocks.max(1) * change.taken;
                freed += estimate;
                candidates.push((
                    candidate_key(sequence, *id).into(),
                    Operation::Put(Value::of_count(estimate)),
                ));
            }
        }
        for (segment, bytes) in &live {
            ledger.add_live(*segment, *bytes);
            ledger.add_pending(*segment, -*bytes);
            commit.places.insert(segment.device);
        }
        drop(ledger);
        // A stable sort: of two chunks with one hint the later one has it.
        hints.sort_by(|(one, _), (other, _)| one.cmp(other));
        operations.append(&mut references);
        operations.append(&mut hints);
        operations.append(&mut candidates);
        live.into_iter()
            .for_each(|(segment, bytes)| add_live(operations, segment, bytes));
        self.space.add_pending_free(freed);
        self.space.note_freed(freed);
        Ok(total)
    }

    /// The sequence of the newest batch.
    pub(crate) fn newest(&self) -> u64 {
        self.commit.lock().sequence
    }

    /// The totals after it.
    pub(crate) fn totals(&self) -> Counters {
        self.commit.lock().counters
    }

    /// A number for a new chunk.
    pub(crate) fn take_chunk_id(&self) -> ChunkId {
        ChunkId(self.next_chunk.fetch_add(1, Ordering::AcqRel))
    }

    /// So many bytes of chunks were appended.
    pub(crate) fn note_unlogged(&self, bytes: u32) {
        self.unlogged_bytes.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    /// Bytes of chunks that were appended since the last entry of the log.
    pub(crate) fn unlogged_bytes(&self) -> u64 {
        self.unlogged_bytes.load(Ordering::Relaxed)
    }

    /// Asks with how many bytes the log does not have yet; none are added meanwhile.
    pub(crate) fn with_due_bytes<T>(&self, ask: impl FnOnce(u64) -> T) -> T {
        ask(self.commit.lock().due_bytes())
    }

    /// Of what was taken from the pending batches nothing is on its way into the log any more; `tell` is told what is due.
    pub(crate) fn note_landed(&self, tell: impl FnOnce(u64)) {
        let mut commit = self.commit.lock();
        commit.in_flight = 0;
        tell(commit.due_bytes());
    }

    /// Seals the records in memory, with a whole batch at the end; its sequence.
    pub(crate) fn seal(&self) -> u64 {
        let _commit = self.commit.lock();
        self.tree.seal()
    }

    /// The totals at a place where the log can be entered.
    pub(crate) fn totals_at(&self, sequence: u64) -> Option<Counters> {
        let commit = self.commit.lock();
        let mark = commit.marks.iter().rev().find(|(mark, _)| *mark == sequence);
        mark.map(|(_, counters)| *counters)
    }

    /// The log is not entered before this sequence any more.
    pub(crate) fn forget_totals_before(&self, sequence: u64) {
        self.commit.lock().marks.retain(|(mark, _)| *mark >= sequence);
    }

    /// Commits what `build` makes for the next sequence; whether that was anything.
    pub(crate) fn commit_built(&self, build: impl FnOnce(u64) -> Operations) -> Result<bool, StoreError> {
        let mut commit = self.commit.lock();
        let operations = build(commit.sequence + 1);
        if operations.is_empty() {
            return Ok(false);
        }
        self.apply_locked(&mut commit, operations, Counters::default())?;
        Ok(true)
    }

    /// Commits a user's batch, if the log `takes` what would be due then; its sequence, and the bytes that are pending.
    pub(crate) fn try_commit(
        &self,
        operations: &mut Operations,
        changes: &BTreeMap<ChunkId, Change>,
        takes: impl FnOnce(u64) -> bool,
    ) -> Result<Option<(u64, usize)>, StoreError> {
        let mut commit = self.commit.lock();
        if !takes(commit.due_bytes()) {
            return Ok(None);
        }
        let sequence = commit.sequence + 1;
        let change = self.refer(&mut commit, sequence, changes, operations)?;
        self.apply_locked(&mut commit, std::mem::take(operations), change)?;
        Ok(Some((sequence, commit.pending.len())))
    }

    /// Numbers, logs and applies a batch of operations.
    pub(crate) fn apply_locked(
        &self,
        commit: &mut CommitLocked<'_>,
        operations: Operations,
        change: Counters,
    ) -> Result<u64, StoreError> {
        let sequence = commit.sequence + 1;
        let next_chunk = self.next_chunk.load(Ordering::Acquire);
        encode_batch(&mut commit.pending, sequence, &change, next_chunk, &operations);
        if commit.first == 0 {
            commit.first = sequence;
        }
        commit.sequence = sequence;
        commit.counters.add(&change);
        // The log has the batch already; a tree that refuses it would be another state than a replay gives.
        self.tree
            .apply(sequence, operations)
            .map_err(|error| self.stop.latch(&error.to_string()))?;
        Ok(sequence)
    }

    /// Commits operations of the store's own.
    pub(crate) fn commit_internal(
        &self,
        operations: Operations,
        change: Counters,
    ) -> Result<u64, StoreError> {
        let mut commit = self.commit.lock();
        self.apply_locked(&mut commit, operations, change)
    }

    pub(crate) fn take_pending(&self) -> (u64, u64, Vec<u8>, BTreeSet<u16>) {
        let mut commit = self.commit.lock();
        let first = std::mem::take(&mut commit.first);
        self.unlogged_bytes.store(0, Ordering::Relaxed);
        let payload = std::mem::take(&mut commit.pending).into_bytes();
        commit.in_flight += payload.len() as u64;
        let last = commit.sequence;
        if first != 0 {
            let mark = (last, commit.counters);
            commit.marks.push_back(mark);
        }
        (first, last, payload, std::mem::take(&mut commit.places))
    }
}

/// What a batch does to one chunk's references.
pub(crate) struct Change {
    pub(super) sum: i64,
    pub(super) taken: i64,
}

/// The changes of the references of each chunk, from those of a batch.
pub(crate) fn fold_references(references: &[(ChunkId, i64)]) -> BTreeMap<ChunkId, Change> {
    let mut changes: BTreeMap<ChunkId, Change> = BTreeMap::new();
    for (id, blocks) in references {
        let change = changes.entry(*id).or_insert(Change { sum: 0, taken: 0 });
        change.sum += blocks;
        change.taken += (-blocks).max(0);
    }
    changes
}
