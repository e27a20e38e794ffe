//! Emptying a device, or the end of one: chunks segment by segment, what the segments do not tell by the table of all
//! chunks, then metadata and log.
//!
//! Invariants: a segment that cannot be read, or that holds a chunk without a readable copy, is tried once and then left
//! to the table, which is read through once for all of them; what has no readable copy anywhere stays where it is and is
//! told only when everything else has left.

use std::{collections::BTreeSet, sync::Arc};

use terrace_log::Log;
use terrace_meta::Tree;
use terrace_pool::{Pool, SegmentId, SegmentRange};
use terrace_store::{ChunkId, Placement, StoreError, tier_bit};

use crate::{
    EvacuateProgress, Handles,
    admission::Admission,
    append::SegmentWriter,
    buffers::OpenSegments,
    catalog::Catalog,
    durability::Journal,
    encoding::{ChunkRecord, Location, TABLE_CHUNKS, chunk_of_key},
    errors::meta_error,
    gc::{Collector, Relocator},
    ledger::Ledger,
    space::SpaceView,
};

/// Chunks without a readable copy that are kept by number.
const UNREADABLE_MAX: usize = 1_000_000;
/// Records of the table of chunks that one step reads.
const TABLE_RECORDS: usize = 1024;

/// How far an emptying is; `Default` starts a new one.
#[derive(Debug, Default)]
pub struct EvacuateCursor {
    /// Segments that are left to the table.
    left: BTreeSet<SegmentId>,
    /// Where the look through the table goes on; `None` while segments are emptied one by one.
    table: Option<Vec<u8>>,
    /// What this look moved, and what has no readable copy.
    moved: u64,
    unreadable: BTreeSet<ChunkId>,
    unreadable_count: u64,
}

/// What a device may have that no other one has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Alone {
    /// There is such content.
    pub found: bool,
    /// Chunks whose records are damaged, so that nobody knows where they lie.
    pub unknown: u64,
}

/// What is wrong with all devices that a chunk lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plight {
    /// None of them is there, or reaches as far: their numbers.
    Gone(Vec<u16>),
    /// Those that are there gave errors: their numbers. What of it can be read, only reading tells.
    Failing(Vec<u16>),
}

/// Gets everything off a device.
pub(crate) struct Evacuation {
    pub(super) pool: Arc<Pool>,
    pub(super) tree: Arc<Tree>,
    pub(super) log: Arc<Log>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) open_segments: Arc<OpenSegments>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) writer: Arc<SegmentWriter>,
    pub(super) journal: Arc<Journal>,
    pub(super) relocator: Arc<Relocator>,
    pub(super) collector: Arc<Collector>,
    pub(super) admission: Arc<Admission>,
}

impl Evacuation {
    /// Of these parts.
    #[expect(clippy::too_many_arguments, reason = "it is put together once")]
    pub(crate) fn new(
        handles: &Handles,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
        writer: &Arc<SegmentWriter>,
        journal: &Arc<Journal>,
        relocator: &Arc<Relocator>,
        collector: &Arc<Collector>,
        admission: &Arc<Admission>,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            tree: handles.tree.clone(),
            log: handles.log.clone(),
            ledger: handles.ledger.clone(),
            open_segments: handles.open_segments.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            writer: writer.clone(),
            journal: journal.clone(),
            relocator: relocator.clone(),
            collector: collector.clone(),
            admission: admission.clone(),
        }
    }

    /// Moves about `budget_bytes` off a device, or the end of one, on which the pool was told to put nothing new. Of a
    /// device that is missing, that is what has a copy elsewhere.
    pub(crate) fn evacuate_step(
        &self,
        range: SegmentRange,
        cursor: &mut EvacuateCursor,
        budget_bytes: u64,
    ) -> Result<EvacuateProgress, StoreError> {
        let mut progress = EvacuateProgress::default();
        for open in self.open_segments.all() {
            if open.copies.iter().any(|copy| range.contains(*copy)) {
                self.writer.close_open(&open)?;
            }
        }
        let more = match cursor.table.take() {
            None => self.empty_segments(range, cursor, budget_bytes, &mut progress)?,
            Some(from) => self.empty_by_table(range, cursor, from, budget_bytes, &mut progress)?,
        };
        if !more {
            self.collector.evacuate_metadata(range)?;
        }
        let live = self.ledger.content_of(range).live.max(0).unsigned_abs();
        let (claimed, _) = self.pool.usage_of(range);
        // Of a missing device nothing is claimed; what is live on it is known all the same, of metadata that it has left, and of the
        // log that it goes on elsewhere.
        progress.finished = !more && claimed == 0 && live == 0 && !self.log.goes_to(range);
        progress.remaining_bytes = live.max(u64::from(claimed));
        let looked_through = !more && cursor.unreadable_count > 0 && cursor.moved == 0;
        if looked_through && u64::from(claimed) <= self.segments_in_use(range) {
            progress.unreadable = std::mem::take(&mut cursor.unreadable);
            progress.unreadable_count = std::mem::take(&mut cursor.unreadable_count);
        } else if !more {
            progress.waits = !progress.finished && progress.moved == 0;
            // Once more: what was on its way meanwhile, or could not be read for a moment.
            *cursor = EvacuateCursor::default();
        }
        Ok(progress)
    }

    /// Empties segments; whether there is more to do, by segments or by the table.
    fn empty_segments(
        &self,
        range: SegmentRange,
        cursor: &mut EvacuateCursor,
        budget_bytes: u64,
        progress: &mut EvacuateProgress,
    ) -> Result<bool, StoreError> {
        let is_there = self.pool.has_device(range.device);
        let mut segments = Vec::new();
        self.ledger.walk(Some(range), |id, state| {
            if state.live > 0 {
                segments.push(id);
            }
        });
        let mut spent = 0;
        for segment in segments {
            if cursor.left.contains(&segment) {
                continue;
            }
            if !is_there {
                cursor.left.insert(segment);
                continue;
            }
            let (ids, whole) = self.relocator.chunks_by_headers(segment)?;
            for id in ids {
                if spent >= budget_bytes {
                    return Ok(true);
                }
                let (bytes, readable) = self.move_off(id, segment, progress)?;
                spent += bytes;
                if !readable {
                    cursor.left.insert(segment);
                }
            }
            if !whole {
                cursor.left.insert(segment);
            }
        }
        if cursor.left.is_empty() {
            return Ok(false);
        }
        cursor.table = Some(vec![TABLE_CHUNKS]);
        (cursor.moved, cursor.unreadable_count) = (0, 0);
        cursor.unreadable.clear();
        Ok(true)
    }

    /// Goes on with the look through the table; whether it is not at its end.
    fn empty_by_table(
        &self,
        range: SegmentRange,
        cursor: &mut EvacuateCursor,
        from: Vec<u8>,
        budget_bytes: u64,
        progress: &mut EvacuateProgress,
    ) -> Result<bool, StoreError> {
        let records = self.tree.scan(&from, &[TABLE_CHUNKS + 1], TABLE_RECORDS);
        let records = records.map_err(meta_error)?;
        let mut spent = 0;
        for (key, value) in &records {
            if spent >= budget_bytes {
                cursor.table = Some(key.to_vec());
                return Ok(true);
            }
            let here = ChunkRecord::decode(value).ok().and_then(|record| {
                let mut locations = record.locations.iter().map(|location| location.segment);
                locations.find(|segment| range.contains(*segment))
            });
            let (Some(id), Some(segment)) = (chunk_of_key(key), here) else {
                continue;
            };
            let (bytes, readable) = self.move_off(id, segment, progress)?;
            spent += bytes;
            cursor.moved += u64::from(bytes > 0);
            if !readable {
                cursor.unreadable_count += 1;
                if cursor.unreadable.len() < UNREADABLE_MAX {
                    cursor.unreadable.insert(id);
                }
            }
        }
        let Some((last, _)) = records.last() else {
            return Ok(false);
        };
        cursor.table = Some(last.iter().copied().chain([0]).collect());
        Ok(true)
    }

    /// Moves a chunk off a segment; the bytes moved, and whether it could be read.
    fn move_off(
        &self,
        id: ChunkId,
        segment: SegmentId,
        progress: &mut EvacuateProgress,
    ) -> Result<(u64, bool), StoreError> {
        let tier = self.pool.tier_of(segment.device).unwrap_or(0);
        let placement = Placement::Tier { tier, strict: false };
        // What says where it is now has to have a place in the log.
        let move_it = || match self.journal.is_log_short() {
            true => Err(StoreError::NoSpace),
            false => self.relocator.move_chunks(&[id], placement, Some(segment)),
        };
        // What it moved before has left room behind, in segments that go back with the next checkpoint only, or that hold
        // other things yet.
        let enough = || self.space.has_segments(true) && !self.journal.is_log_short();
        let outcome = self.admission.retry_with_room(enough, move_it)?;
        self.space.rates().take(&outcome.tier_bytes);
        progress.moved += outcome.moved;
        for tier in outcome.tier_bytes.keys() {
            progress.tiers |= tier_bit(*tier);
        }
        Ok((outcome.moved_bytes, outcome.failed.is_empty()))
    }

    /// How many of these segments have committed chunks.
    fn segments_in_use(&self, range: SegmentRange) -> u64 {
        let mut count = 0;
        self.ledger
            .walk(Some(range), |_, state| count += u64::from(state.live > 0));
        count
    }

    /// Live bytes on devices that are not there, or at the end of one that was cut short, from memory.
    pub(crate) fn live_on_absent_devices(&self) -> u64 {
        let mut absent = 0;
        self.ledger.walk(None, |id, state| {
            if !self.pool.has_segment(id) {
                absent += state.live.max(0).unsigned_abs();
            }
        });
        absent
    }

    /// Whether a chunk has no copy on any device that is there.
    pub(crate) fn is_gone(&self, id: ChunkId) -> Result<bool, StoreError> {
        Ok(matches!(self.plight_of(id)?, Some(Plight::Gone(_))))
    }

    /// Whether a device that is not there has chunks of which no other device has a copy. Reads the table of chunks up to the first.
    pub(crate) fn has_alone(&self, device: u16) -> Result<Alone, StoreError> {
        let mut alone = Alone::default();
        if self.pool.has_device(device) {
            return Ok(alone);
        }
        let mut from = vec![TABLE_CHUNKS];
        loop {
            let records = self.tree.scan(&from, &[TABLE_CHUNKS + 1], TABLE_RECORDS);
            let records = records.map_err(meta_error)?;
            let Some((last, _)) = records.last() else {
                return Ok(alone);
            };
            let is_alone = |record: &ChunkRecord| {
                let mut segments = record.locations.iter().map(|location| location.segment);
                segments.clone().any(|segment| segment.device == device)
                    && !segments.any(|segment| self.pool.has_segment(segment))
            };
            for (_, value) in &records {
                match ChunkRecord::decode(value) {
                    Ok(record) => alone.found |= is_alone(&record),
                    Err(_) => alone.unknown += 1,
                }
            }
            if alone.found {
                return Ok(alone);
            }
            from = last.iter().copied().chain([0]).collect();
        }
    }

    /// What is wrong with the devices that a chunk lies on; `None` if one that has a copy is well. Reads no content.
    pub(crate) fn plight_of(&self, id: ChunkId) -> Result<Option<Plight>, StoreError> {
        let Some(record) = self.catalog.record(id)? else {
            return Ok(None);
        };
        let is_there = |location: &&Location| self.pool.has_segment(location.segment);
        let devices = |locations: &mut dyn Iterator<Item = &Location>| {
            let mut devices: Vec<u16> = locations.map(|location| location.segment.device).collect();
            devices.sort_unstable();
            devices.dedup();
            devices
        };
        let there = devices(&mut record.locations.iter().filter(is_there));
        if there.is_empty() {
            return Ok(Some(Plight::Gone(devices(&mut record.locations.iter()))));
        }
        let fails = there.iter().all(|device| self.pool.is_failing(*device));
        Ok(fails.then_some(Plight::Failing(there)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use terrace_meta::{Key, Operation, Value};
    use terrace_store::{Batch, Store};

    use super::*;
    use crate::{
        Options,
        encoding::{Counters, TABLE_CHUNKS, chunk_key},
        store_in_memory::{raw_piece, store_in_memory},
    };

    #[test]
    fn a_record_that_says_nothing_is_not_taken_for_one_that_is_well() {
        let store = store_in_memory(64 << 20, Options::default());
        let mut batch = Batch::new();
        let written = store.write_chunks(&[raw_piece(&[7; 9000])]).unwrap().remove(0);
        let id = written.id;
        batch.reference(id, 1);
        batch.hold(written);
        store.commit(batch).unwrap();
        let gone = 9;
        assert_eq!(store.has_alone(gone).unwrap(), Alone::default());
        let damaged = Operation::Put(Value::new(&[0xff; 3]));
        let key = Key::new(&chunk_key(TABLE_CHUNKS, ChunkId(id.0 + 1)));
        store
            .catalog()
            .commit_internal(vec![(key, damaged)], Counters::default())
            .unwrap();
        let known = Alone {
            found: false,
            unknown: 1,
        };
        assert_eq!(store.has_alone(gone).unwrap(), known);
        // What is there is asked for nothing.
        assert_eq!(store.has_alone(0).unwrap(), Alone::default());
    }
}
