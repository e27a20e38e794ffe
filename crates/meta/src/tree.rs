//! `Tree`: what is applied, read and listed. (The background work is in `upkeep`.)
//!
//! Invariants: batches enter one at a time, in order of their sequences; a reader takes one [`State`] and sees what it
//! held, whatever happens meanwhile; no lock that readers take is held across a read or write of the storage.

use std::{
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::{
    Extent, ExtentStorage, Key, MetaError, Operation, Options, Usage, Value, decode_count,
    entries::Memtable,
    runs::{
        Access, Folded, Layer, Manifest, MemoryCursor, MergeCursor, Piece, RunCursor, Source, Version,
        manifest,
    },
    table::{BlockCache, Released, TableReader, Unreadable, filter_hash},
    upkeep::Worker,
};

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value, bytes.
pub const VALUE_BYTES_MAX: usize = 160 * 1024;
/// Smallest and largest target size of a table, bytes.
const TABLE_BYTES: (usize, usize) = (4 << 10, 8 << 20);
/// Part of the memory at which the newest memtable is sealed.
const SEALED_AT: usize = 4;
/// Records of a scan share buffers of about this size.
const SCAN_BUFFER_BYTES: usize = 16 << 10;

/// What a reader sees: memory and tables at one moment.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) active: Arc<Memtable>,
    /// Newest first.
    pub(crate) sealed: Vec<Arc<Memtable>>,
    pub(crate) version: Arc<Version>,
}

/// What the last manifest left behind.
#[derive(Default)]
struct Described {
    /// The extents that hold the last manifest's body.
    pieces: Vec<Piece>,
    /// Replaced before a manifest that is not yet finished.
    waiting: Vec<Extent>,
    /// Not named by the last manifest.
    ready: Vec<Extent>,
    /// It holds everything up to here.
    sequence: u64,
}

/// An ordered map from byte keys to byte values. All methods may be called from any thread.
pub struct Tree {
    pub(crate) reader: TableReader,
    pub(crate) options: Options,
    /// As [`Options::memory_bytes`], at the moment.
    memory_bytes: AtomicUsize,
    pub(crate) state: RwLock<Arc<State>>,
    pub(crate) worker: Mutex<Worker>,
    pub(crate) released: Arc<Released>,
    pub(crate) next_table: AtomicU64,
    /// Merges that stand still because of damage.
    pub(crate) blocked_merges: AtomicUsize,
    /// See [`merge_closely`](Tree::merge_closely).
    pub(crate) closely: AtomicBool,
    /// The newest sequence applied; held while a batch is applied.
    writer: Mutex<u64>,
    /// Held while a manifest is made, so that one is at a time; taken before `described`.
    describing: Mutex<()>,
    described: Mutex<Described>,
}

/// Ends a scan of a memtable when it goes out of scope.
struct Scanning {
    memtable: Arc<Memtable>,
    sequence: u64,
}

impl Drop for Scanning {
    fn drop(&mut self) {
        self.memtable.end_scan(self.sequence);
    }
}

impl Tree {
    /// Opens the state that `manifest` describes (`None`: an empty tree). Reads no table.
    pub fn open(
        storage: Arc<dyn ExtentStorage>,
        manifest: Option<&[u8]>,
        options: Options,
    ) -> Result<Tree, MetaError> {
        let options = Options {
            table_bytes: options.table_bytes.clamp(TABLE_BYTES.0, TABLE_BYTES.1),
            ..options
        };
        let reader = TableReader {
            storage,
            cache: BlockCache::new(options.block_cache_bytes),
            identity: options.identity,
            unreadable: Unreadable::default(),
        };
        let released: Arc<Released> = Arc::default();
        let (mut version, mut next_table, mut pieces) = (Version::default(), 1, Vec::new());
        if let Some(bytes) = manifest {
            let body = match manifest::decode(bytes)? {
                Manifest::Body(body) => body,
                Manifest::Pieces(named) => {
                    let mut body = Vec::new();
                    for Piece { extent, sum } in &named {
                        body.extend_from_slice(&reader.verified(*extent, 0, extent.bytes, *sum)?);
                    }
                    pieces = named;
                    Bytes::from(body)
                }
            };
            (version, next_table) = manifest::decode_body(&body, &released)?;
        }
        let flushed = version.flushed_sequence;
        let active = Arc::new(Memtable::after(flushed, options.memory_bytes / SEALED_AT));
        Ok(Tree {
            reader,
            memory_bytes: AtomicUsize::new(options.memory_bytes),
            options,
            state: RwLock::new(Arc::new(State {
                active,
                sealed: Vec::new(),
                version: Arc::new(version),
            })),
            worker: Mutex::default(),
            released,
            next_table: AtomicU64::new(next_table),
            blocked_merges: AtomicUsize::new(0),
            closely: AtomicBool::new(false),
            writer: Mutex::new(flushed),
            describing: Mutex::new(()),
            described: Mutex::new(Described {
                pieces,
                ..Described::default()
            }),
        })
    }

    /// What it may use from now on, as [`Options::memory_bytes`] and [`Options::block_cache_bytes`] say. What is too much
    /// of cached blocks leaves at once; of records as the next steps write them to tables.
    pub fn set_memory(&self, memory_bytes: usize, block_cache_bytes: usize) {
        self.memory_bytes.store(memory_bytes, Ordering::Relaxed);
        self.reader.cache.set_capacity(block_cache_bytes);
    }

    /// Memory for records that are not yet in tables, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Whether steps merge all runs into one as soon as any deletion can go by it, however much they write for that: for who has
    /// to do with fewer extents.
    pub fn merge_closely(&self, closely: bool) {
        self.closely.store(closely, Ordering::Relaxed);
    }

    pub(crate) fn current(&self) -> Arc<State> {
        self.state.read().clone()
    }

    /// Makes a new state from the current one. `change` must be short: readers wait for it.
    pub(crate) fn install(&self, change: impl FnOnce(&mut State)) {
        let before = {
            let mut guard = self.state.write();
            let mut state = State::clone(&guard);
            change(&mut state);
            std::mem::replace(&mut *guard, Arc::new(state))
        };
        // Freeing a memtable can take long; not under the lock.
        drop(before);
    }

    /// Applies a batch: readers see all of it or nothing. `sequence` must be above every earlier one; operations on
    /// the same key count in order. In memory only: the caller's log makes it durable.
    pub fn apply<K: Into<Key> + AsRef<[u8]>>(
        &self,
        sequence: u64,
        operations: Vec<(K, Operation)>,
    ) -> Result<(), MetaError> {
        for (key, operation) in &operations {
            let value = if let Operation::Put(value) = operation {
                value.len()
            } else {
                0
            };
            for (what, bytes, limit) in [
                ("key", key.as_ref().len(), KEY_BYTES_MAX),
                ("value", value, VALUE_BYTES_MAX),
            ] {
                if bytes > limit {
                    return Err(MetaError::TooLong { what, bytes, limit });
                }
            }
        }
        let mut newest = self.writer.lock();
        if sequence <= *newest {
            return Err(MetaError::OutOfOrder {
                sequence,
                newest: *newest,
            });
        }
        *newest = sequence;
        let active = self.state.read().active.clone();
        active.apply(sequence, operations);
        if active.bytes() >= self.memory_bytes() / SEALED_AT {
            self.rotate(sequence);
        }
        Ok(())
    }

    /// Seals the active memtable; the caller holds the writer's lock.
    fn rotate(&self, sequence: u64) {
        let fresh = Memtable::after(sequence, self.memory_bytes() / SEALED_AT);
        self.install(|state| {
            let sealed = std::mem::replace(&mut state.active, Arc::new(fresh));
            state.sealed.insert(0, sealed);
        });
    }

    /// Seals the memtable: what was applied so far will be written by the next steps. Returns the newest sequence
    /// applied; once [`Tree::flushed_sequence`] reaches it, a manifest holds it.
    pub fn seal(&self) -> u64 {
        let newest = self.writer.lock();
        let state = self.current();
        // One without records is sealed too if it saw (empty) batches, so that the flushed sequence follows.
        let newest_before = state
            .sealed
            .first()
            .map_or(state.version.flushed_sequence, |last| last.sequence());
        if !state.active.is_empty() || *newest > newest_before {
            self.rotate(*newest);
        }
        *newest
    }

    /// The newest sequence applied.
    pub fn newest_sequence(&self) -> u64 {
        *self.writer.lock()
    }

    /// Everything up to this sequence is in tables, and in every manifest made from now on.
    pub fn flushed_sequence(&self) -> u64 {
        self.state.read().version.flushed_sequence
    }

    /// The newest value of `key`; of a key changed by `Add`, the signed variable-length sum.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        let mut found: Option<Operation> = None;
        let hash = filter_hash(key);
        let version = {
            let state = self.state.read();
            for memtable in std::iter::once(&state.active).chain(&state.sealed) {
                let Some(older) = memtable.get(key, hash) else {
                    continue;
                };
                let folded = match found {
                    Some(newer) => older.then(newer),
                    None => older,
                };
                if !matches!(folded, Operation::Add(_)) {
                    return Ok(folded.into_value());
                }
                found = Some(folded);
            }
            if state.version.layers.is_empty() {
                return Ok(found.and_then(Operation::into_value));
            }
            state.version.clone()
        };
        Ok(version
            .get(&self.reader, key, hash, found)?
            .and_then(Operation::into_value))
    }

    /// The count at `key`; 0 if there is none, or a value that is not a count.
    pub fn get_count(&self, key: &[u8]) -> Result<i64, MetaError> {
        Ok(self.get(key)?.and_then(|value| decode_count(&value)).unwrap_or(0))
    }

    /// The records with `from <= key < to` (an empty `to`: no upper bound), ascending, at most `limit`, as of one
    /// moment. Records share buffers of some KiB: copy what is kept for long.
    pub fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, MetaError> {
        let mut records = Vec::new();
        if limit == 0 || (!to.is_empty() && from >= to) {
            return Ok(records);
        }
        let state = self.current();
        let scanning = Scanning {
            sequence: state.active.begin_scan(),
            memtable: state.active.clone(),
        };
        let mut cursor = MergeCursor::new(self.sources(&state, scanning.sequence, from, to, limit)?);
        let mut buffer: Vec<u8> = Vec::new();
        let mut lengths: Vec<(usize, usize)> = Vec::new();
        while records.len() + lengths.len() < limit {
            let Some(folded) = cursor.next()? else { break };
            let value: &[u8] = match folded {
                Folded::Value => cursor.value(),
                Folded::Delete | Folded::Add(0) => continue,
                Folded::Add(sum) => &Value::of_count(sum),
            };
            buffer.extend_from_slice(cursor.key());
            buffer.extend_from_slice(value);
            lengths.push((cursor.key().len(), value.len()));
            if buffer.len() >= SCAN_BUFFER_BYTES {
                hand_out(&mut buffer, &mut lengths, &mut records);
            }
        }
        hand_out(&mut buffer, &mut lengths, &mut records);
        Ok(records)
    }

    /// Everything that a scan must look at, newest first; sources that cannot hold a key of the range are left out.
    fn sources(
        &self,
        state: &State,
        sequence: u64,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<Source<'_>>, MetaError> {
        let mut sources = Vec::with_capacity(1 + state.sealed.len() + state.version.depth() + 1);
        let start = Bound::Included(from);
        let memtables = state.sealed.iter().map(|memtable| (memtable, u64::MAX));
        for (memtable, sequence) in std::iter::once((&state.active, sequence)).chain(memtables) {
            let cursor = MemoryCursor::new(memtable.clone(), sequence, start, to, limit);
            if cursor.key().is_some() {
                sources.push(Source::Memory(cursor));
            }
        }
        let mut add = |run: &crate::runs::Run, from: &[u8], exclusive: bool| -> Result<(), MetaError> {
            let cursor = RunCursor::new(&self.reader, run.clone(), Access::Scan, from, exclusive, to)?;
            if cursor.key().is_some() {
                sources.push(Source::Run(Box::new(cursor)));
            }
            Ok(())
        };
        for layer in &state.version.layers {
            match layer {
                Layer::Settled(run) => add(run, from, false)?,
                Layer::Merging(merge) => {
                    let merged = merge.cursor.as_deref().filter(|cursor| *cursor >= from);
                    if merged.is_some() {
                        add(&merge.output, from, false)?;
                    }
                    for run in &merge.inputs {
                        add(run, merged.unwrap_or(from), merged.is_some())?;
                    }
                }
            }
        }
        Ok(sources)
    }

    /// How far the steps are behind: 0 not at all, 1 writers should wait for steps (more than 1: they did not).
    pub fn pressure(&self) -> f64 {
        let state = self.current();
        let depth = state.version.depth().saturating_sub(8) as f64 / 16.0;
        self.memory_share_of(&state).max(depth)
    }

    /// How much of its memory records take that are not yet in tables: 1 all of it.
    pub fn memory_share(&self) -> f64 {
        self.memory_share_of(&self.current())
    }

    fn memory_share_of(&self, state: &State) -> f64 {
        memory_of(state) as f64 / self.memory_bytes().max(1) as f64
    }

    /// Describes all tables and the sequence up to which they hold everything, in at most 48 KiB (what is larger goes
    /// into extents of its own). Syncs the storage: all that the manifest names is durable when this returns.
    pub fn manifest(&self) -> Result<Vec<u8>, MetaError> {
        let _describing = self.describing.lock();
        // First the replaced extents, then the state: none of them can be in it. Who asks what there is does not wait for devices.
        self.described.lock().waiting.append(&mut self.released.lock());
        let state = self.current();
        let body = manifest::encode_body(&state.version, self.next_table.load(Ordering::SeqCst));
        let storage = &self.reader.storage;
        let mut pieces = Vec::new();
        let written = if manifest::fits_inline(&body) {
            Ok(())
        } else {
            manifest::pieces_of(&body).try_for_each(|piece| {
                let sum = xxhash_rust::xxh3::xxh3_64(piece);
                pieces.push(Piece {
                    extent: storage.write(piece)?,
                    sum,
                });
                Ok(())
            })
        };
        if let Err(cause) = written.and_then(|()| storage.sync()) {
            let mut described = self.described.lock();
            described.waiting.extend(pieces.iter().map(|piece| piece.extent));
            return Err(MetaError::Storage {
                action: "writing the metadata manifest".into(),
                cause,
            });
        }
        let bytes = if pieces.is_empty() {
            manifest::encode_inline(&body)
        } else {
            manifest::encode_pieces(&pieces)
        };
        let mut described = self.described.lock();
        let described = &mut *described;
        described.ready.append(&mut described.waiting);
        described
            .ready
            .extend(described.pieces.iter().map(|piece| piece.extent));
        described.pieces = pieces;
        described.sequence = state.version.flushed_sequence;
        Ok(bytes)
    }

    /// The sequence up to which the manifest made last holds everything: steps that go on beside it may have brought the tree further.
    pub fn described_sequence(&self) -> u64 {
        self.described.lock().sequence
    }

    /// Extents that the manifest made last does not name and no reader uses. Call it when the root holding that
    /// manifest is durable, and release them in the storage then.
    pub fn take_released(&self) -> Vec<Extent> {
        std::mem::take(&mut self.described.lock().ready)
    }

    /// What [`take_released`](Self::take_released) would give: a root that holds the manifest made last does without these.
    pub fn undescribed(&self) -> Vec<Extent> {
        self.described.lock().ready.clone()
    }

    /// Extents that a manifest made now would not name, and no reader uses.
    pub fn replaced(&self) -> Vec<Extent> {
        // Each lock by itself, as in `usage`.
        let mut replaced = self.released.lock().clone();
        let described = self.described.lock();
        replaced.extend(described.waiting.iter().chain(&described.ready));
        replaced
    }

    /// The extents that hold the last manifest's body, with their sums.
    pub(crate) fn manifest_pieces(&self) -> Vec<Piece> {
        self.described.lock().pieces.clone()
    }

    /// The extents that hold the last manifest's body; none where it fits in the manifest itself.
    pub fn manifest_extents(&self) -> Vec<Extent> {
        let pieces = self.manifest_pieces().into_iter();
        pieces.map(|piece| piece.extent).collect()
    }

    /// All extents of the current state: tables, and the manifest's own.
    pub fn extents(&self) -> Vec<Extent> {
        let pieces = self.manifest_extents();
        let state = self.current();
        let tables = state.version.tables().map(|table| table.facts.extent);
        tables.chain(pieces).collect()
    }

    /// The first and the last key of each table of the current state whose extent is one of these.
    pub fn keys_in(&self, is_one: impl Fn(Extent) -> bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        let state = self.current();
        let tables = state.version.tables().filter(|table| is_one(table.facts.extent));
        tables
            .map(|table| (table.facts.first.to_vec(), table.facts.last.to_vec()))
            .collect()
    }

    /// What the tree takes. Counts the tables: not for hot paths.
    pub fn usage(&self) -> Usage {
        let bytes_of = |extents: &[Extent]| extents.iter().map(|extent| u64::from(extent.bytes)).sum::<u64>();
        // Each lock by itself: letting go of a state may take the lock of the released extents.
        let mut bytes_replaced = bytes_of(&self.released.lock());
        let manifest: u64 = {
            let described = self.described.lock();
            bytes_replaced += bytes_of(&described.waiting) + bytes_of(&described.ready);
            described
                .pieces
                .iter()
                .map(|piece| u64::from(piece.extent.bytes))
                .sum()
        };
        let state = self.current();
        let mut usage = Usage {
            bytes_on_device: manifest,
            bytes_replaced,
            memory_bytes: memory_of(&state),
            cache_bytes: self.reader.cache.bytes(),
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

fn memory_of(state: &State) -> usize {
    state.active.bytes()
        + state
            .sealed
            .iter()
            .map(|memtable| memtable.bytes())
            .sum::<usize>()
}

/// Cuts a buffer of keys and values into records.
fn hand_out(buffer: &mut Vec<u8>, lengths: &mut Vec<(usize, usize)>, records: &mut Vec<(Bytes, Bytes)>) {
    let shared = Bytes::from(std::mem::take(buffer));
    let mut at = 0;
    for (key, value) in lengths.drain(..) {
        records.push((
            shared.slice(at..at + key),
            shared.slice(at + key..at + key + value),
        ));
        at += key + value;
    }
}
