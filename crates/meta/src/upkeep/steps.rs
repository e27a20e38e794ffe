//! `Upkeep`: the background work of a tree: writing sealed memtables as runs, and merging runs, a bounded slice at a time.
//!
//! A merge advances slice by slice: each slice is installed with the tables it made, and the tables it consumed
//! are given back at once, so a merge never needs room for a second copy of its inputs.
//! Invariants: only one step runs at a time, and only steps change the layers; a failed step changes nothing; no lock that
//! readers or appliers take is held across I/O.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use terrace_sync::{Mutex, rank};

use super::{
    flush::Flush,
    manifests::Manifests,
    merge_choice::{Chosen, MergeChoice},
    slice::Slice,
    table_store::TableStore,
};
use crate::{
    Extent, MetaError, Options, Progress, UnreadableExtent, Usage,
    runs::{Layer, Piece},
    state::{Current, State},
    table::{Released, Table, TableReader},
};

/// The least that a step works on, bytes.
const BUDGET_BYTES_MIN: usize = 4 << 10;
/// At this many runs a merge gets every second step, even while memtables wait.
const RUNS_URGENT: usize = 10;

/// What the steps remember between each other.
#[derive(Default)]
pub(super) struct Worker {
    flush: Option<Flush>,
    choice: MergeChoice,
    /// Whether the last step wrote a memtable.
    flushed_last: bool,
}

impl Worker {
    /// The tables of a memtable that is not wholly written yet.
    pub(super) fn on_the_way(&self) -> &[Arc<Table>] {
        self.flush.as_ref().map_or(&[], Flush::tables)
    }

    /// The same, to put others in their place.
    pub(super) fn on_the_way_mut(&mut self) -> &mut [Arc<Table>] {
        self.flush.as_mut().map_or(&mut [], Flush::tables_mut)
    }
}

/// See the module. All methods may be called from any thread.
pub struct Upkeep {
    pub(super) current: Arc<Current>,
    pub(super) store: TableStore,
    pub(super) manifests: Manifests,
    /// Held during a step, across its I/O; taken before all other locks of the tree.
    pub(super) worker: Mutex<Worker, rank::meta::Worker>,
    /// Merges that stand still because of damage.
    blocked_merges: AtomicUsize,
    /// See [`merge_closely`](Self::merge_closely).
    closely: AtomicBool,
}

impl Upkeep {
    /// `pieces`: those of the manifest that the tree was opened with.
    pub(crate) fn new(
        current: Arc<Current>,
        reader: Arc<TableReader>,
        released: Arc<Released>,
        next_table: u64,
        pieces: Vec<Piece>,
        options: &Options,
    ) -> Self {
        Self {
            current,
            store: TableStore::new(reader, released, next_table, options.table_bytes),
            manifests: Manifests::new(pieces),
            worker: Mutex::default(),
            blocked_merges: AtomicUsize::new(0),
            closely: AtomicBool::new(false),
        }
    }

    /// Whether steps merge all runs into one as soon as any deletion can go by it, however much they write for that: for who has
    /// to do with fewer extents.
    pub fn merge_closely(&self, closely: bool) {
        self.closely.store(closely, Ordering::Relaxed);
    }

    /// Does one piece of background work that reads or writes about `budget_bytes`: writes part of the oldest sealed
    /// memtable, else a slice of a merge. An error leaves the tree as it was; the step can be tried again. After a merge
    /// failed, merging rests for a few steps (up to 64): a step that finds nothing else to do says `Idle` meanwhile.
    pub fn step(&self, budget_bytes: usize) -> Result<Progress, MetaError> {
        let budget_bytes = budget_bytes.max(BUDGET_BYTES_MIN);
        let mut worker = self.worker.lock();
        let state = self.current.now();
        let merge_first = worker.flushed_last && state.version.depth() >= RUNS_URGENT;
        if !merge_first && self.flush_slice(&mut worker, &state, budget_bytes)? {
            worker.flushed_last = true;
            return Ok(Progress::More);
        }
        worker.flushed_last = false;
        if !worker.choice.rests() && self.merge_slice(&mut worker.choice, &state, budget_bytes)? {
            worker.choice.note_success();
            return Ok(Progress::More);
        }
        if merge_first && self.flush_slice(&mut worker, &state, budget_bytes)? {
            return Ok(Progress::More);
        }
        Ok(Progress::Idle)
    }

    /// Writes part of the oldest sealed memtable; false if there is none.
    fn flush_slice(
        &self,
        worker: &mut Worker,
        state: &State,
        budget_bytes: usize,
    ) -> Result<bool, MetaError> {
        let Some(memtable) = state.sealed.last() else {
            return Ok(false);
        };
        let begun = worker.flush.take().filter(|flush| flush.is_of(memtable));
        let mut flush = begun.unwrap_or_else(|| Flush::new(memtable.clone()));
        let outcome = flush.write_some(&self.store, &state.version, budget_bytes);
        if !matches!(outcome, Ok(true)) {
            worker.flush = Some(flush);
            return outcome.map(|_| true);
        }
        self.current.install(|state| {
            state.sealed.pop();
            flush.add_to(Arc::make_mut(&mut state.version));
        });
        Ok(true)
    }

    /// Merges a slice; false if nothing is to be merged.
    fn merge_slice(
        &self,
        choice: &mut MergeChoice,
        state: &State,
        budget_bytes: usize,
    ) -> Result<bool, MetaError> {
        let closely = self.closely.load(Ordering::Relaxed);
        let upper_bytes_min = self.store.table_bytes as u64 / 4;
        let index = match choice.choose(&state.version, upper_bytes_min, closely) {
            None => return Ok(false),
            Some(Chosen::Running(index)) => index,
            Some(Chosen::New(first, last)) => {
                self.current
                    .install(|state| Arc::make_mut(&mut state.version).begin_merge(first, last));
                first
            }
        };
        let state = self.current.now();
        let Some(Layer::Merging(merge)) = state.version.layers.get(index) else {
            return Ok(false);
        };
        let bottom = index + 1 == state.version.layers.len();
        let mut slice = Slice::default();
        if let Err(cause) = slice.merge_some(&self.store, merge, bottom, budget_bytes) {
            slice.give_up();
            if let MetaError::Damaged { extent, .. } = &cause {
                let blocked = choice.note_damage(*extent, &state.version);
                self.blocked_merges.store(blocked, Ordering::Relaxed);
            } else {
                choice.note_failure();
            }
            return Err(cause);
        }
        let mut replaced: Vec<Arc<Table>> = Vec::new();
        self.current.install(|state| {
            replaced = slice.add_to(Arc::make_mut(&mut state.version), index);
        });
        replaced.iter().for_each(|table| self.store.retire(table));
        Ok(true)
    }

    /// Describes all tables and the sequence up to which they hold everything, in at most 48 KiB (what is larger goes
    /// into extents of its own). Syncs the storage: all that the manifest names is durable when this returns.
    pub fn manifest(&self) -> Result<Vec<u8>, MetaError> {
        self.manifests.make(&self.store, &self.current)
    }

    /// The sequence up to which the manifest made last holds everything: steps that go on beside it may have brought the tree further.
    pub fn described_sequence(&self) -> u64 {
        self.manifests.sequence()
    }

    /// Extents that the manifest made last does not name and no reader uses. Call it when the root holding that
    /// manifest is durable, and release them in the storage then.
    pub fn take_released(&self) -> Vec<Extent> {
        self.manifests.take_ready()
    }

    /// What [`take_released`](Self::take_released) would give: a root that holds the manifest made last does without these.
    pub fn undescribed(&self) -> Vec<Extent> {
        self.manifests.ready()
    }

    /// Extents that a manifest made now would not name, and no reader uses.
    pub fn replaced(&self) -> Vec<Extent> {
        // Each lock by itself: letting go of a state may take that of the released extents.
        let mut replaced = self.store.released();
        replaced.extend(self.manifests.replaced());
        replaced
    }

    /// The extents that hold the last manifest's body; none where it fits in the manifest itself.
    pub fn manifest_extents(&self) -> Vec<Extent> {
        let pieces = self.manifests.pieces().into_iter();
        pieces.map(|piece| piece.extent).collect()
    }

    /// All extents of the current state: tables, and the manifest's own.
    pub fn extents(&self) -> Vec<Extent> {
        let pieces = self.manifest_extents();
        let state = self.current.now();
        let tables = state.version.tables().map(|table| table.facts.extent);
        tables.chain(pieces).collect()
    }

    /// The first and the last key of each table of the current state whose extent is one of these.
    pub fn keys_in(&self, is_one: impl Fn(Extent) -> bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        let state = self.current.now();
        let tables = state.version.tables().filter(|table| is_one(table.facts.extent));
        tables
            .map(|table| (table.facts.first.to_vec(), table.facts.last.to_vec()))
            .collect()
    }

    /// Extents of the tree of which readers met a part that cannot be read from any copy, as far as it was not read since.
    pub fn known_unreadable(&self) -> Vec<UnreadableExtent> {
        self.store.reader.unreadable().of(|| self.extents())
    }

    /// What the tree takes. Counts the tables: not for hot paths.
    pub fn usage(&self) -> Usage {
        let bytes_of = |extents: &[Extent]| extents.iter().map(|extent| u64::from(extent.bytes)).sum::<u64>();
        let (bytes_replaced, manifest) = (bytes_of(&self.replaced()), bytes_of(&self.manifest_extents()));
        let state = self.current.now();
        let mut usage = Usage {
            bytes_on_device: manifest,
            bytes_replaced,
            memory_bytes: state.memory_bytes(),
            cache_bytes: self.store.reader.cache_bytes(),
            sealed: state.sealed.len(),
            runs: state.version.depth(),
            blocked_merges: self.blocked_merges.load(Ordering::Relaxed),
            ..Usage::default()
        };
        for table in state.version.tables() {
            usage.bytes_on_device += u64::from(table.facts.extent.bytes);
            usage.tables += 1;
            usage.entries += table.facts.entries;
        }
        usage
    }
}
