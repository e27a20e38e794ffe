//! Places: changing where committed chunks are said to lie.
//!
//! Invariants: a record gets new places only while it still names the old ones; the live bytes of the segments change in the
//! same batch; a move stays entered in the ledger until its batch is committed, under one lock, so that whoever could not write
//! what was appended finds the chunk either here or there; no device is read under the commit lock.

use std::{collections::BTreeMap, sync::Arc};

use terrace_pool::SegmentId;
use terrace_store::{ChunkId, StoreError};

use super::{
    batches::{Catalog, CommitLocked, Operations, add_live, put_record},
    records::decode,
};
use crate::{
    encoding::{ChunkRecord, Counters, Location, TABLE_CHUNKS, chunk_key},
    ledger::PinGuard,
};

/// A move that was entered in the ledger.
pub(crate) struct Begun {
    pub(crate) id: ChunkId,
    /// The record of the chunk where it was.
    pub(crate) old: ChunkRecord,
    /// Holds it until the end.
    pub(crate) _pin: Option<Arc<PinGuard>>,
    /// The tiers on which it was and will be, each once.
    pub(crate) tiers: Vec<u8>,
}

impl Catalog {
    /// Replaces the locations of a chunk if they still are `old`; whether they were.
    pub(crate) fn change_place(
        &self,
        id: ChunkId,
        old: &[Location],
        new: Vec<Location>,
    ) -> Result<bool, StoreError> {
        {
            let _commit = self.commit.lock();
            if self.ledger.lock().relocate_pending(id, old, &new) {
                return Ok(true);
            }
        }
        let (mut commit, records) = self.lock_with_records(&[id]);
        // It may be on its way to another place since.
        if self.ledger.lock().relocate_pending(id, old, &new) {
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
    ) -> (CommitLocked<'_>, Vec<Result<Option<ChunkRecord>, StoreError>>) {
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

    /// Ends moves that were entered in the ledger, in one batch: each chunk is at its new place if it was still at its old
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
            let ledger = self.ledger.lock();
            let new = |begun: &Begun| ledger.moving(begun.id).map(|new| new.locations.clone());
            let moves = moves.iter();
            moves
                .map(|begun| (begun.id, &begun.old.locations[..], new(begun).unwrap_or_default()))
                .collect()
        };
        let changed = self.change_places_locked(&mut commit, places, records);
        let mut ledger = self.ledger.lock();
        moves.iter().for_each(|begun| drop(ledger.finish_move(begun.id)));
        changed
    }

    /// One batch for all of these chunks; those that are not at their old places (any more) are left out, and those whose
    /// record cannot be read: that is told when the others are at their new places.
    fn change_places_locked(
        &self,
        commit: &mut CommitLocked<'_>,
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
            let mut ledger = self.ledger.lock();
            for (segment, bytes) in live {
                add_live(&mut operations, segment, bytes);
                ledger.add_live(segment, bytes);
            }
            drop(ledger);
            self.apply_locked(commit, operations, Counters::default())?;
        }
        failed.map_or(Ok(changed), Err)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{
        OnceLock, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    };

    use terrace_device::{Device, DeviceError, MemoryDevice, SeededRandomness};
    use terrace_pool::{CreateOptions, OpenOptions, Parallelism, Pool, TierSettings};
    use terrace_store::{Batch, Compression, Dedup, Flow, Owner, Piece, Placement, Store, Trial};

    use super::*;
    use crate::ChunkStore;
    use crate::Options;

    /// Counts the reads, and those of them that are made while the store's commit lock is held.
    struct Watched {
        inner: MemoryDevice,
        store: OnceLock<Weak<ChunkStore>>,
        reads: AtomicU64,
        reads_under_lock: AtomicU64,
    }

    impl Device for Watched {
        fn path(&self) -> String {
            self.inner.path()
        }
        fn size_bytes(&self) -> u64 {
            self.inner.size_bytes()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
            if let Some(store) = self.store.get().and_then(Weak::upgrade) {
                self.reads.fetch_add(1, SeqCst);
                let is_held = store.catalog().commit.try_lock().is_none();
                self.reads_under_lock.fetch_add(is_held.into(), SeqCst);
            }
            self.inner.read_at(offset, buffer)
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
            self.inner.write_at(offset, data)
        }
        fn flush(&self) -> Result<(), DeviceError> {
            self.inner.flush()
        }
        fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
            self.inner.discard(offset, length)
        }
    }

    fn options(nonce: u64) -> Options {
        Options {
            memtable_bytes: 1 << 20,
            block_cache_bytes: 64 << 10,
            threads: 0,
            nonce,
            ..Options::default()
        }
    }

    /// Writes a chunk that holds this number.
    fn put(store: &ChunkStore, number: u64) -> ChunkId {
        let content: Vec<u8> = (0..4096u64)
            .map(|at| ((at * (number + 3)) >> 2) as u8 ^ number as u8)
            .collect();
        let piece = Piece {
            content: &content,
            compression: Compression::Off,
            trial: Trial::Untried,
            dedup: Dedup::Off,
            placement: Placement::Landing(Flow::Random),
            owner: Owner::default(),
            privileged: false,
        };
        let written = store.write_chunks(&[piece]).unwrap().remove(0);
        let id = written.id;
        let mut batch = Batch::new();
        batch.reference(id, 1);
        batch.hold(written);
        store.commit(batch).unwrap();
        id
    }

    #[test]
    fn no_table_is_read_under_the_commit_lock_as_places_change() {
        let device = Arc::new(Watched {
            inner: MemoryDevice::new("/d", 64 << 20),
            store: OnceLock::new(),
            reads: AtomicU64::new(0),
            reads_under_lock: AtomicU64::new(0),
        });
        let create = CreateOptions {
            name: "tank".into(),
            tiers: vec![(
                TierSettings::named("only"),
                vec![device.clone() as Arc<dyn Device>],
            )],
            properties: BTreeMap::new(),
            segment_bytes: Some(1 << 20),
            created_nanoseconds: 0,
            force: false,
            parallelism: Parallelism::Sequential,
        };
        let pool = Pool::create(create, &SeededRandomness::new(7)).unwrap();
        let store = ChunkStore::create(Arc::new(pool), options(1)).unwrap();
        let ids: Vec<ChunkId> = (0..2000).map(|number| put(&store, number)).collect();
        let records: Vec<ChunkRecord> = ids
            .iter()
            .map(|id| store.catalog().record(*id).unwrap().unwrap())
            .collect();
        store.close().unwrap();
        drop(store);
        // With nothing of the tables in memory.
        let open = OpenOptions {
            parallelism: Parallelism::Sequential,
            ..OpenOptions::default()
        };
        let pool = Pool::open(vec![device.clone() as Arc<dyn Device>], open).unwrap();
        let store = ChunkStore::open(Arc::new(pool), options(2)).unwrap();
        assert!(device.store.set(Arc::downgrade(&store)).is_ok());

        let old = &records[10].locations;
        assert!(store.catalog().change_place(ids[10], old, old.clone()).unwrap());
        let reads = device.reads.load(SeqCst);
        assert!(reads > 0, "the record was not in memory");
        let begun: Vec<Begun> = (0..2000)
            .step_by(400)
            .map(|at| {
                let (id, old) = (ids[at], records[at].clone());
                assert!(store.handles().ledger.lock().start_move(id, old.clone()));
                let (_pin, tiers) = (None, Vec::new());
                Begun { id, old, _pin, tiers }
            })
            .collect();
        // As of long ago: other batches came meanwhile.
        assert_eq!(
            store.catalog().commit_moves(&begun, 0).unwrap(),
            vec![true; begun.len()]
        );
        assert!(device.reads.load(SeqCst) > reads);
        assert_eq!(device.reads_under_lock.load(SeqCst), 0);
        // Places that are not the old ones (any more) are left alone.
        let other = &records[11].locations;
        assert!(!store.catalog().change_place(ids[12], other, old.clone()).unwrap());
        assert_eq!(
            store.catalog().record(ids[12]).unwrap().unwrap().locations,
            records[12].locations
        );
        // A chunk that came to another place since its record was looked up stays there.
        let (id, old) = (ids[20], records[20].clone());
        let [there, elsewhere] = [21, 22].map(|at| records[at].locations.clone());
        let moving = ChunkRecord {
            locations: elsewhere,
            ..old.clone()
        };
        assert!(store.handles().ledger.lock().start_move(id, moving));
        let meanwhile = store.catalog().change_place(id, &old.locations, there.clone());
        assert!(meanwhile.unwrap());
        let (_pin, tiers) = (None, Vec::new());
        let begun = Begun { id, old, _pin, tiers };
        assert_eq!(store.catalog().commit_moves(&[begun], 0).unwrap(), [false]);
        assert_eq!(store.catalog().record(id).unwrap().unwrap().locations, there);
        assert_eq!(
            store.handles().ledger.lock().discrepancies(),
            Vec::<String>::new()
        );
    }
}
