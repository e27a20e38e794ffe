//! `Reader`: records by key and in order, as of one moment.
//!
//! Invariants: a reader takes one state and sees whole batches, whatever happens meanwhile; no lock is held across a read of the
//! storage.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;

use super::current::{Current, State};
use crate::{
    MetaError,
    entries::{Memtable, Operation, Value, decode_count},
    runs::{Access, Answers, Folded, Layer, MemoryCursor, MergeCursor, Run, RunCursor, Source, Wanted},
    table::TableReader,
};

/// Records of a scan share buffers of about this size.
const SCAN_BUFFER_BYTES: usize = 16 << 10;

/// See the module. Cheap to clone; all methods may be called from any thread.
#[derive(Clone)]
pub struct Reader {
    tables: Arc<TableReader>,
    current: Arc<Current>,
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

impl Reader {
    pub(crate) fn new(tables: Arc<TableReader>, current: Arc<Current>) -> Self {
        Self { tables, current }
    }

    /// Memory for blocks, indexes and filters read from tables, bytes; what is too much leaves at once.
    pub fn set_cache_bytes(&self, bytes: usize) {
        self.tables.set_cache_bytes(bytes);
    }

    /// Everything up to this sequence is in tables, and in every manifest made from now on.
    pub fn flushed_sequence(&self) -> u64 {
        self.current.look().version.flushed_sequence
    }

    /// The newest value of `key`; of a key changed by `Add`, the signed variable-length sum.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        let mut wanted = Wanted::new(key, 0);
        let version = {
            let state = self.current.look();
            match state.look_in_memory(&mut wanted) || state.version.layers.is_empty() {
                true => None,
                false => Some(state.version.clone()),
            }
        };
        if let Some(version) = version {
            version.get(&self.tables, &mut wanted)?;
        }
        Ok(wanted.take().and_then(Operation::into_value))
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
        let state = self.current.now();
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
        let mut add = |run: &Run, from: &[u8], exclusive: bool| -> Result<(), MetaError> {
            let cursor = RunCursor::new(&self.tables, run.clone(), Access::Scan, from, exclusive, to)?;
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

    /// The newest values of `keys`, in their order; as [`Self::get`] of each, but what neighbouring keys share is looked
    /// into once. A read that fails fails them all: who can use the others asks for each by itself then.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, MetaError> {
        let mut wanted: Vec<Wanted<'_>> = keys
            .iter()
            .enumerate()
            .map(|(place, key)| Wanted::new(key.as_ref(), place))
            .collect();
        wanted.sort_unstable_by_key(|one| one.key());
        let mut done = Answers::new(keys.len());
        let state = self.current.now();
        wanted.retain_mut(|one| {
            let settled = state.look_in_memory(one);
            if settled {
                done.take(one);
            }
            !settled
        });
        state.version.get_many(&self.tables, &mut wanted, &mut done)?;
        // What only additions were found of stands on nothing.
        wanted.iter_mut().for_each(|one| done.take(one));
        Ok(done.all())
    }

    /// What the memtables say of `key`, without a look into the tables; `None`: nothing, or only additions.
    pub fn recent(&self, key: &[u8]) -> Option<Option<Bytes>> {
        recent_of(&self.current.now(), key)
    }

    /// What `key` was set to since [`Self::flushed_sequence`] was `flushed`, without a look into the tables; in it `None` if it
    /// was deleted or not set. `None` if memory does not tell, since newer records went to tables meanwhile.
    pub fn recent_since(&self, key: &[u8], flushed: u64) -> Option<Option<Bytes>> {
        let state = self.current.now();
        recent_of(&state, key).or_else(|| (state.version.flushed_sequence == flushed).then_some(None))
    }

    /// The counts at `keys`, in their order, as [`Self::get_count`] of each; see [`Self::get_many`].
    pub fn get_counts<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<i64>, MetaError> {
        let values = self.get_many(keys)?;
        let counts = values
            .into_iter()
            .map(|value| value.and_then(|value| decode_count(&value)));
        Ok(counts.map(|count| count.unwrap_or(0)).collect())
    }
}

fn recent_of(state: &State, key: &[u8]) -> Option<Option<Bytes>> {
    let mut wanted = Wanted::new(key, 0);
    let is_settled = state.look_in_memory(&mut wanted);
    is_settled.then(|| wanted.take().and_then(Operation::into_value))
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
