//! Scrub: reading everything, or what devices have that were away; and giving chunks the copies that they lack.
//!
//! Invariants: what is repaired was verified; a chunk that has fewer copies than its tier keeps (a device was away when it
//! was written) gets the others on its tier, beside what is promised to writers, or stays as it is; want of room ends no step, but is
//! counted; steps are bounded, also where nothing is to be read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use terrace_meta::{Extent, MetaError, Tree};
use terrace_pool::{Pool, SegmentId};
use terrace_store::{ChunkId, Placement, StoreError};
use terrace_sync::{Mutex, rank};

use crate::{
    DamagedChunk, Handles, ScrubCursor, ScrubProgress,
    append::{SegmentWriter, lacks_copies},
    buffers::OpenSegments,
    catalog::Catalog,
    encoding::{ChunkRecord, Location, chunk_of_key},
    errors::meta_error,
    gc::{Collector, Relocator},
    ledger::Ledger,
    metadata::MetaStorage,
    reading::{ChunkReader, Stored, verified},
    space::SpaceView,
};

/// What looking at a record counts for, of the bytes that a step may read.
pub(crate) const RECORD_BYTES: u64 = 256;

/// Reads everything there is, and mends what is damaged.
pub(crate) struct Scrubber {
    pub(super) pool: Arc<Pool>,
    pub(super) tree: Arc<Tree>,
    pub(super) meta: Arc<MetaStorage>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) open_segments: Arc<OpenSegments>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) writer: Arc<SegmentWriter>,
    pub(super) reader: Arc<ChunkReader>,
    pub(super) relocator: Arc<Relocator>,
    pub(super) collector: Arc<Collector>,
}

impl Scrubber {
    /// Of these parts.
    pub(crate) fn new(
        handles: &Handles,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
        writer: &Arc<SegmentWriter>,
        reader: &Arc<ChunkReader>,
        relocator: &Arc<Relocator>,
        collector: &Arc<Collector>,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            tree: handles.tree.clone(),
            meta: handles.meta.clone(),
            ledger: handles.ledger.clone(),
            open_segments: handles.open_segments.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            writer: writer.clone(),
            reader: reader.clone(),
            relocator: relocator.clone(),
            collector: collector.clone(),
        }
    }

    /// Reads and verifies about `budget_bytes` of live chunk copies and metadata, repairs what has a good copy.
    pub(crate) fn scrub_step(
        &self,
        cursor: &mut ScrubCursor,
        budget_bytes: u64,
    ) -> Result<ScrubProgress, StoreError> {
        let mut progress = ScrubProgress::default();
        let mut spent = 0;
        while spent < budget_bytes && !cursor.finished {
            if !cursor.chunks_done {
                spent += self.scrub_chunks(cursor, &mut progress)?;
                continue;
            }
            let budget = usize::try_from(budget_bytes - spent)
                .unwrap_or(usize::MAX)
                .min(8 << 20);
            let report = self
                .tree
                .verify_step(&mut cursor.tables, budget)
                .map_err(meta_error)?;
            spent += report.bytes.max(1);
            cursor.done_bytes += report.bytes;
            self.mend_tables(report.damaged, &mut progress)?;
            cursor.finished = report.done;
        }
        let looks_at = |device: &u16| cursor.only.as_ref().is_none_or(|only| only.contains(device));
        let chunk_bytes: i64 = {
            let ledger = self.ledger.lock();
            let devices = ledger.devices().filter(|(device, _)| looks_at(device));
            devices.map(|(_, content)| content.live.max(0)).sum()
        };
        progress.done_bytes = cursor.done_bytes;
        let total = chunk_bytes.unsigned_abs() + self.tree.usage().bytes_on_device;
        progress.total_bytes = if cursor.finished {
            cursor.done_bytes
        } else {
            total.max(cursor.done_bytes)
        };
        progress.finished = cursor.finished;
        Ok(progress)
    }

    fn scrub_chunks(
        &self,
        cursor: &mut ScrubCursor,
        progress: &mut ScrubProgress,
    ) -> Result<u64, StoreError> {
        // What is completed would go into them.
        self.writer.close_short_streams()?;
        let records = match self.scan_records(cursor) {
            Ok(records) => records,
            Err(line) => {
                progress.damaged_metadata.add(|| line);
                return Ok(RECORD_BYTES);
            }
        };
        let mut bytes = 0;
        let looks_at = |location: &Location| {
            let only = cursor.only.as_ref();
            only.is_none_or(|only| only.contains(&location.segment.device))
        };
        let good = self.scan_copies(&records, &looks_at);
        let mut short = Vec::new();
        // Who finds no room looks for some first: once for each of these records is enough.
        let mut is_full = false;
        for (at, (key, value)) in records.iter().enumerate() {
            let Some(id) = chunk_of_key(key) else { continue };
            let record = match ChunkRecord::decode(value) {
                Ok(record) => record,
                Err(error) => {
                    progress
                        .damaged_metadata
                        .add(|| format!("record of chunk {id}: {error}"));
                    continue;
                }
            };
            let mut bad = Vec::new();
            for location in record.locations.iter().filter(|location| looks_at(location)) {
                progress.copies += 1;
                bytes += u64::from(record.stored());
                if !good.contains(&(at, *location))
                    && let Err(cause) = self.reader.read_copy(&record, *location)
                {
                    bad.push((*location, cause));
                }
            }
            if bad.is_empty() && lacks_copies(&self.pool, &record) {
                short.push((id, record));
                continue;
            }
            // A chunk that moved or went away while it was read is no matter.
            if bad.is_empty() || self.catalog.record(id)?.as_ref() != Some(&record) {
                continue;
            }
            self.reader.note_bad_copies(id, &record, &bad);
            if bad.len() < record.locations.len() {
                self.reader.forget_repair(id);
                let tier = record
                    .locations
                    .first()
                    .and_then(|first| self.pool.tier_of(first.segment.device));
                let placement = Placement::Tier {
                    tier: tier.unwrap_or(0),
                    strict: false,
                };
                let from = record.locations.first().map(|first| first.segment);
                let outcome = match is_full {
                    true => Err(StoreError::NoSpace),
                    false => self.relocator.repair_chunks(&[id], placement, from),
                };
                match outcome {
                    Ok(outcome) => progress.repaired += outcome.moved,
                    Err(StoreError::NoSpace) => {
                        is_full = true;
                        progress.unmended += 1;
                        self.reader.repair_later(id);
                    }
                    Err(error) => return Err(error),
                }
            } else if let Some((_, cause)) = bad.into_iter().next() {
                progress.damaged.push(DamagedChunk {
                    id,
                    references: self.catalog.references(id)?,
                    cause,
                });
            }
        }
        self.complete(short, progress)?;
        if let Some(last) = records.last().and_then(|(key, _)| chunk_of_key(key)) {
            cursor.next_chunk = last.0.saturating_add(1);
        }
        cursor.done_bytes += bytes;
        Ok(bytes + records.len() as u64 * RECORD_BYTES)
    }

    /// Writes tables and the manifest anew where a copy is bad. The sound parts of all copies are the source; the damage goes
    /// with the old extents. A root names the new ones before this returns: else a crash would bring the damage back behind the
    /// cursor, or on a device that the labels call whole by then.
    fn mend_tables(
        &self,
        damaged: Vec<(u32, MetaError)>,
        progress: &mut ScrubProgress,
    ) -> Result<(), StoreError> {
        let manifest = self.tree.manifest_extents();
        // Written anew with the first copy of them that was found bad.
        let mut mended = BTreeSet::new();
        let mut copies = 0;
        for (copy, error) in damaged {
            let bad = match &error {
                MetaError::Damaged { extent, .. } => Some(*extent),
                // What lies on a device that is not there is no damage, and a table written anew would have one copy as well.
                MetaError::Unreadable { extent, .. } => Some(*extent).filter(|extent| {
                    let copy = self.meta.copies_of(*extent).iter().nth(copy as usize);
                    copy.is_some_and(|copy| self.pool.has_segment(copy))
                }),
                _ => None,
            };
            // Each checkpoint writes the manifest anew, from memory.
            let is_written = |extent: &Extent| {
                manifest.contains(extent) || self.tree.rewrite(&[*extent]).is_ok_and(|bytes| bytes > 0)
            };
            match bad {
                Some(extent) if mended.contains(&extent) || is_written(&extent) => {
                    mended.insert(extent);
                    copies += 1;
                }
                _ => progress.damaged_metadata.add(|| format!("copy {copy}: {error}")),
            }
        }
        if mended.is_empty() {
            return Ok(());
        }
        match self.collector.checkpoint() {
            Ok(()) => progress.repaired += copies,
            Err(StoreError::NoSpace) => progress.unmended += copies,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Stores chunks anew that lack copies, with all that their tier keeps.
    fn complete(
        &self,
        short: Vec<(ChunkId, ChunkRecord)>,
        progress: &mut ScrubProgress,
    ) -> Result<(), StoreError> {
        let mut by_segment: BTreeMap<SegmentId, (Vec<ChunkId>, u64)> = BTreeMap::new();
        for (id, record) in short {
            if let Some(first) = record.locations.first() {
                let (ids, bytes) = by_segment.entry(first.segment).or_default();
                ids.push(id);
                *bytes += u64::from(record.stored());
            }
        }
        for (segment, (ids, bytes)) in by_segment {
            // What was promised counts more than a copy that is yet to be made.
            if !self.space.is_room_beside_promises(bytes) {
                progress.short += ids.len() as u64;
                continue;
            }
            // What still takes appends was opened with too few copies.
            if let Some(open) = self.open_segments.find(segment) {
                self.writer.close_open(&open)?;
            }
            let tier = self.pool.tier_of(segment.device).unwrap_or(0);
            let placement = Placement::Tier { tier, strict: true };
            match self.relocator.repair_chunks(&ids, placement, Some(segment)) {
                Ok(outcome) => progress.completed += outcome.moved,
                Err(StoreError::NoSpace) => progress.short += ids.len() as u64,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the copies of these chunks that lie together in large pieces; returns those that are good, by number of
    /// the chunk. What is not among them is to be looked at by itself.
    fn scan_copies(
        &self,
        records: &[(Bytes, Bytes)],
        looks_at: &dyn Fn(&Location) -> bool,
    ) -> BTreeSet<(usize, Location)> {
        let decoded: Vec<Option<ChunkRecord>> = records
            .iter()
            .map(|(_, value)| ChunkRecord::decode(value).ok())
            .collect();
        let copies: Vec<(usize, &ChunkRecord, Location)> = decoded
            .iter()
            .enumerate()
            .filter_map(|(at, record)| Some((at, record.as_ref()?)))
            .flat_map(|(at, record)| {
                record
                    .locations
                    .iter()
                    .filter(|location| looks_at(location))
                    .map(move |location| (at, record, *location))
            })
            .collect();
        let stored: Vec<Stored> = copies
            .iter()
            .map(|(_, record, location)| Stored::payload(*location, 0..record.payload as usize))
            .collect();
        let good = Mutex::<_, rank::Leaf>::new(BTreeSet::new());
        self.reader.read_spans(&stored, &|number, stored| {
            let (at, record, location) = copies[number];
            if verified(record, stored).is_some() {
                good.lock().insert((at, location));
            }
        });
        good.into_inner()
    }

    /// Begins a new segment in every stream: the tiers changed places.
    pub(crate) fn close_streams(&self) -> Result<(), StoreError> {
        self.open_segments
            .all()
            .iter()
            .try_for_each(|open| self.writer.close_open(open))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use terrace_device::{Device, MemoryDevice, SeededRandomness};
    use terrace_pool::{CreateOptions, OpenOptions, Parallelism, Pool, SEGMENT_AREA_OFFSET, TierSettings};
    use terrace_store::{Batch, Store};

    use super::*;
    use crate::ChunkStore;
    use crate::Options;

    fn options(nonce: u64) -> Options {
        Options {
            threads: 0,
            nonce,
            memtable_bytes: 1 << 20,
            ..Options::default()
        }
    }

    fn store_on(devices: &[Arc<MemoryDevice>]) -> Arc<ChunkStore> {
        let all = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
        let create = CreateOptions {
            name: "tank".into(),
            tiers: vec![(TierSettings::named("only"), all.collect())],
            properties: Default::default(),
            segment_bytes: None,
            created_nanoseconds: 1,
            force: false,
            parallelism: Parallelism::Sequential,
        };
        let pool = Arc::new(Pool::create(create, &SeededRandomness::new(7)).unwrap());
        ChunkStore::create(pool, options(1)).unwrap()
    }

    /// A crash right behind the scrub included.
    #[test]
    fn a_scrub_mends_damaged_copies_of_tables_and_of_a_large_manifest() {
        let devices = [0, 1].map(|number| Arc::new(MemoryDevice::new(format!("d{number}"), 96 << 20)));
        let mut store = store_on(&devices);
        // Long keys, of which the manifest names two for each table.
        for number in 0..20_000u32 {
            let hash = blake3::hash(&number.to_le_bytes());
            let mut batch = Batch::new();
            batch.put([&[0x30][..], &hash.as_bytes().repeat(31)].concat(), b"x".to_vec());
            store.commit(batch).unwrap();
            store.step().unwrap();
        }
        store.checkpoint().unwrap();
        for of_manifest in [true, false] {
            let manifest = store.handles().tree.manifest_extents();
            assert!(!manifest.is_empty(), "it is too small to lie elsewhere");
            let extents = store.handles().tree.extents().into_iter();
            let mut extents = extents.filter(|extent| manifest.contains(extent) == of_manifest);
            let extent = extents.next().unwrap();
            for copy in store.handles().meta.copies_of(extent).iter() {
                let segment = u64::from(copy.index) * u64::from(store.handles().pool.segment_bytes());
                let at = SEGMENT_AREA_OFFSET + segment + (extent.location & 0xffff_ffff);
                if copy.device == 0 {
                    devices[0].write_at(at, &[9; 4096]).unwrap();
                }
            }
            assert_eq!(store.verify_tables().len(), 1);
            let progress = store.scrub_step(&mut ScrubCursor::default(), u64::MAX).unwrap();
            assert_eq!((progress.repaired, progress.damaged_metadata.count()), (1, 0));
            drop(store);
            let all = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
            let pool = Pool::open(all.collect(), OpenOptions::default()).unwrap();
            store = ChunkStore::open(Arc::new(pool), options(2)).unwrap();
            assert_eq!(store.verify_tables(), Vec::<String>::new());
        }
    }
}
