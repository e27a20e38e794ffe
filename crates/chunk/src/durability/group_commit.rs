//! Commits and the group commit.
//!
//! Invariants:
//! - A batch gets its number, its place in the pending log payload and its place in the tree under one lock.
//! - A flush is led by one caller: it takes the pending payload, lands the data of every chunk appended before and, beside
//!   that, appends one log entry (a second one if a chunk had to be placed elsewhere), then flushes each touched device
//!   once. Only then the sequence is durable; waiting callers are woken after that, and those whose batch came later
//!   elect the next leader.
//! - The copy of the log on a slower device is waited for when the entry tells of chunks that the loss of the faster one
//!   would leave, or when that copy is far behind; else it is written later. What may be written over is decided by what
//!   is durable in every copy.
//! - A failure that is not made good by another copy stops the store for good: no later flush reports success.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;
use terrace_log::{Appended, Behind};
use terrace_meta::{Operation, Value};
use terrace_pool::SegmentId;
use terrace_store::{Batch, ChunkId, FIRST_USER_TABLE, KEY_BYTES_MAX, Sequence, StoreError, VALUE_BYTES_MAX};

use crate::{
    catalog::{CommitState, Operations, add_live, put_record},
    durability::{Margin, log_bytes},
    encoding::{Counters, TABLE_REFERENCES, candidate_key, chunk_key, dedup_key, encode_batch},
    store::ChunkStore,
};

/// Pending payload at which a commit flushes by itself, bytes: bounds memory and the size of a log entry. An eighth of
/// the memtables' share, within these limits.
const PENDING_BYTES_MAX: usize = 16 << 20;
const PENDING_BYTES_MIN: usize = 1 << 20;

/// Chunk data after which a commit flushes by itself, bytes: a recovery verifies what the last entries introduce.
const UNLOGGED_BYTES_MAX: u64 = 256 << 20;

/// How far a slower copy of the log may be behind before commits wait for it, bytes.
const BEHIND_BYTES_MAX: u64 = 1 << 20;

/// How often who waits for a leader looks whether that can still come through.
const LEADER_LOOKED_AT: Duration = Duration::from_secs(1);
/// So long after a device was found not to answer a leader who does not hang at it has come on.
const SILENCE_GRACE: Duration = Duration::from_secs(2);
/// How long somebody who began after the device was found silent is waited for.
const INDIRECT_SILENCE: Duration = Duration::from_secs(10);

/// Whether a leader who began at `since` may be waiting for a device that was `found` silent, rather than be slow.
fn may_hang(since: Instant, found: Instant, now: Instant) -> bool {
    // One who began later was refused by the device itself, but may wait for another who asked it before.
    let patience = match since < found {
        true => Duration::ZERO,
        false => INDIRECT_SILENCE,
    };
    now.duration_since(found) >= SILENCE_GRACE && now.duration_since(since) >= patience
}

impl ChunkStore {
    pub(crate) fn commit_batch(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.check_running()?;
        for (key, value) in batch.records() {
            if key.first().is_none_or(|table| *table < FIRST_USER_TABLE) || key.len() > KEY_BYTES_MAX {
                return Err(StoreError::Invalid(
                    "a key outside the user's tables, or too long".into(),
                ));
            }
            if value.as_ref().is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
                return Err(StoreError::Invalid("a value that is too long".into()));
            }
        }
        self.hold_back();
        // What destroys may use some of what background work keeps: it may be all that still gives room back.
        let margin = match batch.is_privileged() {
            true => Margin::Half,
            false => Margin::All,
        };
        let (records, references, pins) = batch.into_parts();
        let bytes = log_bytes(&records, &references);
        let changes = fold_references(&references);
        self.check_known(&changes)?;
        let mut operations: Operations = Vec::with_capacity(records.len() + changes.len() * 3);
        for (key, value) in records {
            let operation = value.map_or(Operation::Delete, |value| Operation::Put(value.into()));
            operations.push((key.into(), operation));
        }
        let (sequence, long) = {
            let mut commit = self.lock_with_log_room(bytes, margin)?;
            let sequence = commit.sequence + 1;
            let change = self.refer(&mut commit, sequence, &changes, &mut operations)?;
            self.apply_locked(&mut commit, operations, change)?;
            let unlogged = self.unlogged_bytes.load(Ordering::Relaxed) > UNLOGGED_BYTES_MAX;
            // At most a segment: on a pool of small ones an entry of many may not have room in what is kept for the log.
            let segment_bytes = self.pool.segment_bytes() as usize;
            let pending_max = (self.tree.memory_bytes() / 8)
                .clamp(PENDING_BYTES_MIN, PENDING_BYTES_MAX)
                .min(segment_bytes);
            (sequence, unlogged || commit.pending.len() > pending_max)
        };
        // Guards take the lock of the books when they are dropped.
        drop(pins);
        if long {
            self.flush_until(sequence)?;
        }
        Ok(Sequence(sequence))
    }

    /// References to chunks that are neither pending nor held must be to chunks that exist. Only additions are
    /// looked up: what is taken away was added by the same caller before.
    fn check_known(&self, changes: &BTreeMap<ChunkId, Change>) -> Result<(), StoreError> {
        let next = self.next_chunk.load(Ordering::Acquire);
        let mut unknown = Vec::new();
        {
            let books = self.keeper.lock();
            for (id, change) in changes {
                if id.0 == 0 || id.0 >= next {
                    return Err(StoreError::NoChunk(*id));
                }
                if change.sum > 0 && books.pending(*id).is_none() && !books.is_pinned(*id) {
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
    fn refer(
        &self,
        commit: &mut CommitState,
        sequence: u64,
        changes: &BTreeMap<ChunkId, Change>,
        operations: &mut Operations,
    ) -> Result<Counters, StoreError> {
        let mut total = Counters::default();
        let mut books = self.keeper.lock();
        let revived = |(id, change): &(&ChunkId, &Change)| change.sum > 0 && books.is_dying(**id);
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
            if change.sum == 0 && books.pending(*id).is_some() {
                continue;
            }
            let is_listed = books.is_listed(*id);
            if let Some(record) = books.take_pending(*id) {
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
            books.add_live(*segment, *bytes);
            books.add_pending(*segment, -*bytes);
            commit.places.insert(segment.device);
        }
        drop(books);
        // A stable sort: of two chunks with one hint the later one has it.
        hints.sort_by(|(one, _), (other, _)| one.cmp(other));
        operations.append(&mut references);
        operations.append(&mut hints);
        operations.append(&mut candidates);
        live.into_iter()
            .for_each(|(segment, bytes)| add_live(operations, segment, bytes));
        self.pending_free.fetch_add(freed, Ordering::Relaxed);
        self.note_freed(freed);
        Ok(total)
    }

    /// Numbers, logs and applies a batch of operations.
    pub(crate) fn apply_locked(
        &self,
        commit: &mut MutexGuard<'_, CommitState>,
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
            .map_err(|error| self.latch(&error.to_string()))?;
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

    /// Everything up to this sequence is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.group.lock().durable
    }

    /// Everything up to this sequence is durable in every copy of the log: no opening goes back behind it, whichever
    /// device is lost. Segments that were given up later may still be needed.
    pub fn durable_everywhere(&self) -> u64 {
        self.log.everywhere(self.durable())
    }

    /// Whether the end of the log may have gone with a device that was not there when the store was opened.
    pub fn end_without(&self) -> Option<terrace_log::EndWithout> {
        self.end_without
    }

    /// Why the end of the log was given up when the store was opened, if it was ([`Options::rewind`](crate::Options::rewind)).
    pub fn given_up(&self) -> Option<&str> {
        self.given_up.as_deref()
    }

    /// Bytes of the log that its copy on a slower device does not have yet.
    pub fn behind_bytes(&self) -> u64 {
        self.log.due_bytes()
    }

    /// Brings the copy of the log on a slower device up to date.
    pub fn catch_up(&self) {
        self.log.catch_up();
    }

    pub(crate) fn flush_until(&self, sequence: u64) -> Result<(), StoreError> {
        let mut group = self.group.lock();
        loop {
            if group.durable >= sequence {
                return Ok(());
            }
            self.check_running()?;
            let Some(since) = group.leading else { break };
            let waited = self.flushed.wait_for(&mut group, LEADER_LOOKED_AT);
            if waited.timed_out() && group.leading == Some(since) {
                self.refuse_to_wait_for(since)?;
            }
        }
        // To lead would be to wait in the kernel, with what is pending.
        if self.pool.is_silent() {
            return Err(StoreError::Device(
                "cannot flush: no device of the pool answers".into(),
            ));
        }
        group.leading = Some(Instant::now());
        let durable = group.durable;
        drop(group);
        let result = self.lead(durable);
        let mut group = self.group.lock();
        group.leading = None;
        let result = match result {
            Ok(now) => {
                group.durable = group.durable.max(now);
                if now >= sequence {
                    Ok(())
                } else {
                    Err(StoreError::Invalid(format!(
                        "sequence {sequence} was never committed"
                    )))
                }
            }
            Err(StoreError::Stopped(cause)) => Err(StoreError::Stopped(cause)),
            Err(error) => Err(self.latch(&error.to_string())),
        };
        drop(group);
        self.flushed.notify_all();
        result
    }

    /// Nobody waits for somebody who may wait for a device that does not answer: it may be so for good. What is to become durable stays
    /// with him, and is so once he has come through.
    pub(crate) fn refuse_to_wait_for(&self, since: Instant) -> Result<(), StoreError> {
        let found = self.pool.first_found_silent();
        let hangs = found.is_some_and(|found| may_hang(since, found, Instant::now()));
        match self.pool.silent().first().filter(|_| hangs) {
            Some((_, path, _)) => Err(StoreError::Device(
                format!("cannot flush {path}: the device does not answer").into(),
            )),
            None => Ok(()),
        }
    }

    /// Makes everything committed so far durable; returns up to which sequence.
    fn lead(&self, durable: u64) -> Result<u64, StoreError> {
        let mut places = BTreeSet::new();
        let mut entries: Option<Appended> = None;
        let last = loop {
            // Looked at before the batches are taken: of a chunk that is placed elsewhere from here on these may not know.
            let before = self.relocations.load(Ordering::Acquire);
            let (first, last, payload, more_places) = self.take_pending();
            places.extend(more_places);
            if first == 0 {
                self.land_data()?;
            } else {
                let appended = self.land_data_beside(|data| {
                    self.log
                        .append_beside(first, last, durable, &payload, data)
                        .map_err(|error| StoreError::Device(error.to_string().into()))
                })?;
                match &mut entries {
                    Some(entries) => entries.join(appended),
                    None => entries = Some(appended),
                }
            }
            if self.relocations.load(Ordering::Acquire) == before {
                break last;
            }
            // Chunks had to be placed elsewhere: the batches that say so follow before anything is flushed.
        };
        let Some(appended) = entries else {
            return Ok(last);
        };
        self.landed_in_log();
        let data = std::mem::take(&mut *self.dirty.lock());
        let apart = |place: &u16| !appended.groups.iter().all(|group| group.contains(place));
        let wait = places.iter().any(apart) || self.log.due_bytes() > BEHIND_BYTES_MAX;
        self.flush_appended(&data, &appended, wait)?;
        Ok(last)
    }

    /// Flushes what was appended and the data before it, with the slower copies of the log if they are waited for; or if
    /// the faster ones fail.
    fn flush_appended(
        &self,
        data: &BTreeSet<Vec<u16>>,
        appended: &Appended,
        wait: bool,
    ) -> Result<(), StoreError> {
        let is_behind = appended.behind.iter().any(Option::is_some);
        let behind = (wait && is_behind).then(|| self.log.write_behind());
        let slower = behind.as_ref().map(Behind::devices).unwrap_or_default();
        let mut groups = data.clone();
        for (group, later) in appended.groups.iter().zip(&appended.behind) {
            let later = later.filter(|device| slower.contains(device));
            groups.insert(group.iter().copied().chain(later).collect());
            // Those that hold what was due before.
            groups.extend(slower.iter().map(|device| [&group[..], &[*device]].concat()));
        }
        match self.flush_groups(&groups) {
            Ok(failed) => {
                if let Some(behind) = behind {
                    behind.finish(&failed);
                }
                Ok(())
            }
            Err(_) if behind.is_none() && is_behind => self.flush_appended(data, appended, true),
            Err(error) => Err(error),
        }
    }

    fn take_pending(&self) -> (u64, u64, Vec<u8>, BTreeSet<u16>) {
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

    /// Flushes all devices of `groups`; of each group at least one must succeed. Returns those that did not.
    fn flush_groups(&self, groups: &BTreeSet<Vec<u16>>) -> Result<Vec<u16>, StoreError> {
        let mut devices: Vec<u16> = groups.iter().flatten().copied().collect();
        devices.sort_unstable();
        devices.dedup();
        let Err(error) = self.pool.flush(&devices) else {
            return Ok(Vec::new());
        };
        // Which one was it? A device whose flush failed goes on failing, so asking again tells.
        let failed: Vec<u16> = devices
            .into_iter()
            .filter(|device| self.pool.flush(&[*device]).is_err())
            .collect();
        tracing::error!(?failed, %error, "a flush failed");
        if failed.is_empty()
            || groups
                .iter()
                .any(|group| group.iter().all(|device| failed.contains(device)))
        {
            return Err(StoreError::Device(error.to_string().into()));
        }
        Ok(failed)
    }
}

/// What a batch does to one chunk's references.
pub(crate) struct Change {
    sum: i64,
    taken: i64,
}

fn fold_references(references: &[(ChunkId, i64)]) -> BTreeMap<ChunkId, Change> {
    let mut changes: BTreeMap<ChunkId, Change> = BTreeMap::new();
    for (id, blocks) in references {
        let change = changes.entry(*id).or_insert(Change { sum: 0, taken: 0 });
        change.sum += blocks;
        change.taken += (-blocks).max(0);
    }
    changes
}

/// State of the group commit.
pub(crate) struct GroupState {
    /// Everything up to here is durable.
    pub durable: u64,
    /// A leader is writing, since then.
    pub leading: Option<std::time::Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_given_up_only_once_he_may_hang_at_the_silent_device() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        // He began before it was found silent: he may have asked it. For a moment he may still come through.
        assert!(!may_hang(at(0), at(30), at(31)));
        assert!(may_hang(at(0), at(30), at(32)));
        // He began after, so that the device refused him: he can hang only behind another.
        assert!(!may_hang(at(40), at(30), at(49)));
        assert!(may_hang(at(40), at(30), at(50)));
        assert!(!may_hang(at(31), at(30), at(31)));
    }
}
