//! `VersionedBatch`: a batch that keeps what some held checkpoint can still see.
//!
//! Every record of a versioned table carries its *birth*, the checkpoint in which this version was made. A version
//! is visible as of checkpoint N when birth ≤ N < death. When a live version is replaced or deleted in checkpoint D
//! and some held checkpoint H has birth ≤ H < D, it moves to the history table under (key, D), and an index record
//! under (newest such H, birth) lets destroying a snapshot find it without a search (after HAMMER's and btrfs's
//! birth and death of records, and ZFS's dead lists).
//!
//! Invariants: nothing held, nothing moved and nothing read; a record changed twice within one interval leaves one
//! version; a version that moves keeps its references to chunks, its successor takes its own; a version that does
//! not move gives its references back; content that is laid out anew keeps its birth.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use terrace_codec::{DecodeError, KeyWriter, Reader, Writer};
use terrace_store::{Batch, ChunkId, Store, StoreError, Written};

use super::{
    entry::{EntryRecord, OrphanRecord},
    inode::InodeRecord,
    keys,
    preallocated::{Preallocated, PreallocatedChange, Promised},
    region::{RegionRecord, Run},
};

/// A record with the checkpoint in which it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// Checkpoint in which this version was made.
    pub birth: u64,
    /// The record.
    pub record: T,
}

/// Takes the value of a live or history record apart: birth and payload.
pub fn split_value(value: &[u8]) -> Result<(u64, &[u8]), DecodeError> {
    let mut reader = Reader::new(value);
    let birth = reader.varint("birth")?;
    Ok((birth, reader.rest()))
}

/// The value of a record born in `birth`.
pub fn join_value(birth: u64, payload: &[u8]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(payload.len() + 10);
    writer.varint(birth).bytes(payload);
    writer.into_bytes()
}

/// An error that says which record does not decode.
pub fn damaged(what: &str, cause: &DecodeError) -> StoreError {
    StoreError::DamagedMetadata(
        format!("{what}: {cause}; run 'terrace scrub', then restore it from a copy").into(),
    )
}

/// What the caller knows of the version that a change replaces. The more it knows, the less is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Old {
    /// There is none.
    Absent,
    /// There may be one: it is looked up if something is held.
    Unknown,
    /// There is one, born in this checkpoint: it is looked up if that is held.
    Born(u64),
}

/// Record changes of one dataset in one checkpoint; what is replaced moves to history if it is held.
pub struct VersionedBatch {
    store: Arc<dyn Store>,
    dataset: u32,
    checkpoint: u64,
    newest_held: Option<u64>,
    batch: Batch,
    /// Keys of records that are replaced and may be held, to be looked up together.
    replaced: Vec<Vec<u8>>,
    references: BTreeMap<ChunkId, i64>,
    live_blocks: i64,
    history_blocks: i64,
    shared_blocks: i64,
    objects: i64,
    preallocated: PreallocatedChange,
    /// What was promised since the last commit, and this one counts.
    promised: Promised,
}

/// Replaced records that are looked up together.
const LOOKED_UP_AT_ONCE: usize = 1024;

impl VersionedBatch {
    /// An empty batch of `dataset` in `checkpoint`; `newest_held` is the newest held checkpoint below that.
    /// Use [`DatasetState::batch`](crate::DatasetState::batch), which knows.
    pub fn new(store: Arc<dyn Store>, dataset: u32, checkpoint: u64, newest_held: Option<u64>) -> Self {
        let batch = Batch::new();
        let newest_held = newest_held.filter(|held| *held < checkpoint);
        let references = BTreeMap::new();
        Self {
            store,
            dataset,
            checkpoint,
            newest_held,
            batch,
            replaced: Vec::new(),
            references,
            live_blocks: 0,
            history_blocks: 0,
            shared_blocks: 0,
            objects: 0,
            preallocated: PreallocatedChange::default(),
            promised: Promised::default(),
        }
    }

    /// The dataset.
    pub fn dataset(&self) -> u32 {
        self.dataset
    }

    /// The checkpoint in which these changes happen: births of what it puts, deaths of what it replaces.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// Puts the record `key` with `payload`, in place of `old`. Not for regions.
    pub fn put(&mut self, key: Vec<u8>, old: Old, payload: &[u8]) -> Result<(), StoreError> {
        self.keep(&key, old)?;
        self.batch.put(key, join_value(self.checkpoint, payload));
        Ok(())
    }

    /// Deletes the record `key`, which is `old`. Not for regions.
    pub fn delete(&mut self, key: Vec<u8>, old: Old) -> Result<(), StoreError> {
        self.keep(&key, old)?;
        self.batch.delete(key);
        Ok(())
    }

    /// Puts (or, when `new` is empty, deletes) a region record in place of `old`, which must be the current one
    /// (`None`: there is none), and accounts for all references.
    pub fn put_region(
        &mut self,
        object: u64,
        region: u64,
        old: Option<(u64, &RegionRecord)>,
        new: Option<&RegionRecord>,
    ) {
        let key = keys::region(self.dataset, object, region);
        let new = new.filter(|record| !record.is_empty());
        let mut replaced = None;
        if let Some((birth, record)) = old {
            let blocks = i64::from(record.mapped_blocks());
            self.live_blocks -= blocks;
            if self.holds(birth) {
                self.move_to_history(&key, birth, join_value(birth, &record.encode()));
                self.history_blocks += blocks;
            } else {
                replaced = Some(record);
            }
        }
        self.change_references(replaced, new);
        match new {
            Some(record) => {
                self.live_blocks += i64::from(record.mapped_blocks());
                self.batch.put(key, join_value(self.checkpoint, &record.encode()));
            }
            None if old.is_some() => self.batch.delete(key),
            None => {}
        }
    }

    /// Puts a region record in the place of another one of the same content and holes, born in `birth`: only where the
    /// content lies is another. Whatever sees the old record sees the new one from now on, so nothing moves to history.
    pub(crate) fn replace_region(
        &mut self,
        object: u64,
        region: u64,
        birth: u64,
        old: &RegionRecord,
        new: &RegionRecord,
    ) {
        let key = keys::region(self.dataset, object, region);
        self.change_references(Some(old), Some(new));
        self.batch.put(key, join_value(birth, &new.encode()));
    }

    /// Puts an inode.
    pub fn put_inode(&mut self, object: u64, inode: &InodeRecord, old: Old) -> Result<(), StoreError> {
        self.put(keys::inode(self.dataset, object), old, &inode.encode())
    }

    /// Deletes an inode; its body and extended attributes are freed by an [`OrphanRecord`].
    pub fn delete_inode(&mut self, object: u64, old: Old) -> Result<(), StoreError> {
        self.delete(keys::inode(self.dataset, object), old)
    }

    /// Puts a directory entry.
    pub fn put_entry(
        &mut self,
        directory: u64,
        name: &[u8],
        entry: EntryRecord,
        old: Old,
    ) -> Result<(), StoreError> {
        self.put(keys::entry(self.dataset, directory, name), old, &entry.encode())
    }

    /// Deletes a directory entry.
    pub fn delete_entry(&mut self, directory: u64, name: &[u8], old: Old) -> Result<(), StoreError> {
        self.delete(keys::entry(self.dataset, directory, name), old)
    }

    /// Puts an extended attribute.
    pub fn put_xattr(&mut self, object: u64, name: &[u8], value: &[u8], old: Old) -> Result<(), StoreError> {
        self.put(keys::xattr(self.dataset, object, name), old, value)
    }

    /// Deletes an extended attribute.
    pub fn delete_xattr(&mut self, object: u64, name: &[u8], old: Old) -> Result<(), StoreError> {
        self.delete(keys::xattr(self.dataset, object, name), old)
    }

    /// Puts an orphan record under `number` (see [`OrphanRecord`]).
    pub fn put_orphan(&mut self, number: u64, orphan: OrphanRecord) {
        let freed = matches!(orphan, OrphanRecord::Freed { .. });
        self.batch
            .put(keys::orphan(self.dataset, number, freed), orphan.encode());
    }

    /// Deletes the orphan record of an object that is open (`OrphanRecord::Open`).
    pub fn delete_orphan(&mut self, number: u64) {
        self.batch.delete(keys::orphan(self.dataset, number, false));
    }

    /// Deletes the orphan record of a body that is freed.
    pub(crate) fn delete_freed(&mut self, number: u64) {
        self.batch.delete(keys::orphan(self.dataset, number, true));
    }

    /// Puts a record that has no versions (orphans, settings of the live half).
    pub fn put_plain(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.batch.put(key, value);
    }

    /// Deletes a record that has no versions.
    pub fn delete_plain(&mut self, key: Vec<u8>) {
        self.batch.delete(key);
    }

    /// Keeps a written chunk alive until the batch is committed.
    pub fn hold(&mut self, written: Written) {
        self.batch.hold(written);
    }

    /// Lets the batch use the pool's reserve: for changes that free space.
    pub fn privileged(&mut self) {
        self.batch.privileged();
    }

    /// Counts objects made (or, negative, deleted) by this batch, for `df -i`.
    pub fn count_objects(&mut self, change: i64) {
        self.objects += change;
    }

    /// Counts blocks that the newest held checkpoint has as well (or, negative, no longer).
    pub(crate) fn count_shared(&mut self, change: i64) {
        self.shared_blocks += change;
    }

    /// Counts what a file had preallocated, and has now; `newest_snapshot`: the first chunk that no snapshot has.
    pub(crate) fn count_preallocated(
        &mut self,
        was: Option<&Preallocated>,
        now: Option<&Preallocated>,
        newest_snapshot: u64,
    ) {
        self.preallocated.add(was, now, newest_snapshot);
    }

    /// This was promised before it, and is counted with it.
    pub(crate) fn count_promised(&mut self, promised: Promised) {
        self.promised = promised;
    }

    pub(crate) fn promised(&self) -> Promised {
        self.promised
    }

    /// The newest held checkpoint below that of this batch.
    pub(crate) fn newest_held(&self) -> Option<u64> {
        self.newest_held
    }

    /// Whether a version born in `birth` is held, so that replacing it now moves it to history.
    pub fn holds(&self, birth: u64) -> bool {
        self.newest_held.is_some_and(|held| birth <= held)
    }

    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.references.is_empty()
    }

    /// Whether only counters change.
    pub(crate) fn changes_counters(&self) -> bool {
        self.objects != 0 || self.shared_blocks != 0 || self.preallocated != PreallocatedChange::default()
    }

    /// About how many bytes it takes in the log.
    pub fn encoded_bytes(&self) -> usize {
        self.batch.encoded_bytes() + self.references.len() * 12
    }

    /// The finished batch and what it changes in the counters.
    ///
    /// # Errors
    /// What the store says of the records that are replaced.
    pub fn finish(mut self) -> Result<(Batch, CounterChange), StoreError> {
        self.keep_replaced()?;
        for (id, blocks) in self.references {
            self.batch.reference(id, blocks);
        }
        let change = CounterChange {
            live_blocks: self.live_blocks,
            history_blocks: self.history_blocks,
            shared_blocks: self.shared_blocks,
            objects: self.objects,
            preallocated: self.preallocated,
        };
        Ok((self.batch, change))
    }

    /// Deletes a version that nothing holds any more; `record` is its content if it is a region record.
    pub(crate) fn drop_history(&mut self, holding: &keys::Holding, record: Option<&RegionRecord>) {
        self.batch.delete(keys::holder(
            &holding.live,
            holding.holder,
            holding.birth,
            holding.death,
        ));
        self.batch.delete(keys::history(&holding.live, holding.death));
        if let Some(record) = record {
            self.change_references(Some(record), None);
            self.history_blocks -= i64::from(record.mapped_blocks());
        }
    }

    fn keep(&mut self, key: &[u8], old: Old) -> Result<(), StoreError> {
        let looked_up = match old {
            Old::Absent => false,
            Old::Unknown => self.newest_held.is_some(),
            Old::Born(birth) => self.holds(birth),
        };
        if looked_up {
            self.replaced.push(key.to_vec());
            if self.replaced.len() >= LOOKED_UP_AT_ONCE {
                self.keep_replaced()?;
            }
        }
        Ok(())
    }

    /// Moves to history what is replaced and held. Whoever builds a batch holds the commit lock: the records are as they were when
    /// the change was noted.
    fn keep_replaced(&mut self) -> Result<(), StoreError> {
        let keys = std::mem::take(&mut self.replaced);
        let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        for (key, value) in keys.iter().zip(self.store.get_many(&asked)?) {
            let Some(value) = value else { continue };
            let (birth, _) = split_value(value.as_ref()).map_err(|cause| damaged("a record", &cause))?;
            if self.holds(birth) {
                self.move_to_history(key, birth, value.to_vec());
            }
        }
        Ok(())
    }

    fn move_to_history(&mut self, key: &[u8], birth: u64, value: Vec<u8>) {
        if let Some(held) = self.newest_held {
            self.batch
                .put(keys::holder(key, held, birth, self.checkpoint), Vec::new());
            self.batch.put(keys::history(key, self.checkpoint), value);
        }
    }

    /// Takes the references of `old` away and adds those of `new`. Of a region with many runs a commit changes few: what
    /// both have is passed over.
    fn change_references(&mut self, old: Option<&RegionRecord>, new: Option<&RegionRecord>) {
        let mut old = old.map_or(&[][..], RegionRecord::runs);
        let mut new = new.map_or(&[][..], RegionRecord::runs);
        loop {
            match (old, new) {
                ([gone, rest @ ..], [come, more @ ..]) if gone == come => (old, new) = (rest, more),
                ([gone, rest @ ..], [come, ..]) if gone.block <= come.block => {
                    self.refer(gone, -1);
                    old = rest;
                }
                ([gone, rest @ ..], []) => {
                    self.refer(gone, -1);
                    old = rest;
                }
                (_, [come, more @ ..]) => {
                    self.refer(come, 1);
                    new = more;
                }
                ([], []) => break,
            }
        }
    }

    fn refer(&mut self, run: &Run, sign: i64) {
        let blocks = self.references.entry(run.chunk).or_insert(0);
        *blocks += sign * i64::from(run.count);
        if *blocks == 0 {
            self.references.remove(&run.chunk);
        }
    }
}

/// What a batch changes in the counters of its dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterChange {
    /// Blocks mapped by live region records.
    pub live_blocks: i64,
    /// Blocks mapped by region records in history.
    pub history_blocks: i64,
    /// Live blocks that the newest held checkpoint has as well.
    pub shared_blocks: i64,
    /// Objects.
    pub objects: i64,
    /// What files have preallocated.
    pub preallocated: PreallocatedChange,
}

pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    key.iter().copied().chain([0]).collect()
}

/// The history version with the smallest death after `checkpoint`.
pub(crate) fn version_after(
    store: &dyn Store,
    key: &[u8],
    checkpoint: u64,
) -> Result<Option<Bytes>, StoreError> {
    let Some(death) = checkpoint.checked_add(1) else {
        return Ok(None);
    };
    let (from, prefix) = (keys::history(key, death), keys::history_prefix(key));
    let to = KeyWriter::after_prefix(&prefix);
    Ok(store.scan(&from, &to, 1)?.pop().map(|(_, value)| value))
}
