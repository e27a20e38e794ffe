//! Places: changing where committed chunks are said to lie.
//!
//! Invariants: a record gets new places only while it still names the old ones; the live bytes of the segments change in the
//! same batch; a move stays entered in the books until its batch is committed, under one lock, so that whoever could not write
//! what was appended finds the chunk either here or there; no device is read under the commit lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::MutexGuard;
use terrace_pool::SegmentId;
use terrace_store::{ChunkId, StoreError};

use crate::{
    books::PinGuard,
    commit::{Operations, add_live, put_record},
    counters::Counters,
    read::decode,
    record::{ChunkRecord, Location, TABLE_CHUNKS, chunk_key},
    store::{ChunkStore, CommitState},
};

/// A move that was entered in the books.
pub(crate) struct Begun {
    pub(crate) id: ChunkId,
    /// The record of the chunk where it was.
    pub(crate) old: ChunkRecord,
    /// Holds it until the end.
    pub(crate) _pin: Option<Arc<PinGuard>>,
    /// The tiers on which it was and will be, each once.
    pub(crate) tiers: BTreeSet<u8>,
}

impl ChunkStore {
    /// Replaces the locations of a chunk if they still are `old`; whether they were.
    pub(crate) fn change_place(
        &self,
        id: ChunkId,
        old: &[Location],
        new: Vec<Location>,
    ) -> Result<bool, StoreError> {
        {
            let _commit = self.commit.lock();
            if self.keeper.lock().relocate_pending(id, old, &new) {
                return Ok(true);
            }
        }
        let (mut commit, records) = self.lock_with_records(&[id]);
        // It may be on its way to another place since.
        if self.keeper.lock().relocate_pending(id, old, &new) {
            return Ok(true);
        }
        let changed = self.change_places_locked(&mut commit, vec![(id, old, new)], records)?;
        Ok(changed.first() == Some(&true))
    }

    /// Takes the commit lock; gives the records of these chunks as they are as long as it is held. Devices are read before: under the
    /// lock memory says what has changed since, and where it does not, all begins anew.
    fn lock_with_records(
        &self,
        ids: &[ChunkId],
    ) -> (
        MutexGuard<'_, CommitState>,
        Vec<Result<Option<ChunkRecord>, StoreError>>,
    ) {
        loop {
            let flushed = self.tree.flushed_sequence();
            let read = self.records_of(ids);
            let commit = self.commit.lock();
            let recent = ids
                .iter()
                .map(|id| self.tree.recent(&chunk_key(TABLE_CHUNKS, *id)));
            let recent: Vec<_> = recent.collect();
            // Asked for after that: what was in memory then has not gone to tables before.
            if self.tree.flushed_sequence() != flushed {
                continue;
            }
            let records = ids.iter().zip(read).zip(recent);
            let records = records.map(|((id, read), recent)| match recent {
                Some(value) => value.map(|value| decode(*id, &value)).transpose(),
                None => read,
            });
            let records = records.collect();
            return (commit, records);
        }
    }

    /// Ends moves that were entered in the books, in one batch: each chunk is at its new place if it was still at its old
    /// one. Which of them were. `known_at`: the newest batch before their records were looked up, which are what they were if none
    /// has come since.
    pub(crate) fn commit_moves(&self, moves: &[Begun], known_at: u64) -> Result<Vec<bool>, StoreError> {
        if moves.is_empty() {
            return Ok(Vec::new());
        }
        // Nothing was committed since they were looked up, mostly.
        let commit = self.commit.lock();
        let (mut commit, records) = match commit.sequence == known_at {
            true => {
                let records = moves.iter().map(|begun| Ok(Some(begun.old.clone()))).collect();
                (commit, records)
            }
            false => {
                drop(commit);
                self.lock_with_records(&moves.iter().map(|begun| begun.id).collect::<Vec<_>>())
            }
        };
        let places = {
            let books = self.keeper.lock();
            let new = |begun: &Begun| books.moving(begun.id).map(|new| new.locations.clone());
            let moves = moves.iter();
            moves
                .map(|begun| (begun.id, &begun.old.locations[..], new(begun).unwrap_or_default()))
                .collect()
        };
        let changed = self.change_places_locked(&mut commit, places, records);
        let mut books = self.keeper.lock();
        moves.iter().for_each(|begun| drop(books.finish_move(begun.id)));
        changed
    }

    /// One batch for all of these chunks; those that are not at their old places (any more) are left out, and those whose
    /// record cannot be read: that is told when the others are at their new places.
    fn change_places_locked(
        &self,
        commit: &mut MutexGuard<'_, CommitState>,
        changes: Vec<(ChunkId, &[Location], Vec<Location>)>,
        records: Vec<Result<Option<ChunkRecord>, StoreError>>,
    ) -> Result<Vec<bool>, StoreError> {
        let mut operations: Operations = Vec::with_capacity(changes.len() + 8);
        // One change for each segment: many come from one, and go to another.
        let mut live: BTreeMap<SegmentId, i64> = BTreeMap::new();
        let mut changed = Vec::with_capacity(changes.len());
        let mut failed = None;
        for ((id, old, new), record) in changes.into_iter().zip(records) {
            let record = record.unwrap_or_else(|error| {
                failed.get_or_insert(error);
                None
            });
            let record = record.filter(|record| record.locations == old && !new.is_empty());
            changed.push(record.is_some());
            let Some(mut record) = record else { continue };
            let stored = i64::from(record.stored());
            old.iter()
                .for_each(|place| *live.entry(place.segment).or_default() -= stored);
            new.iter()
                .for_each(|place| *live.entry(place.segment).or_default() += stored);
            let devices = new.iter().map(|place| place.segment.device);
            commit.places.extend(devices);
            record.locations = new;
            put_record(&mut operations, id, &record);
        }
        if !operations.is_empty() {
            let mut books = self.keeper.lock();
            for (segment, bytes) in live {
                add_live(&mut operations, segment, bytes);
                books.add_live(segment, bytes);
            }
            drop(books);
            self.apply_locked(commit, operations, Counters::default())?;
        }
        failed.map_or(Ok(changed), Err)
    }
}
