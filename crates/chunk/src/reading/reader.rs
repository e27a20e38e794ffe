//! Reading chunks.
//!
//! Invariants: no byte is returned that was not compared with a sum in the chunk's record; each copy is tried; a reader
//! that finds something else than it expected looks whether the chunk has moved meanwhile before it calls it damaged.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use bytes::Bytes;
use terrace_device::AlignedBuffer;
use terrace_meta::{Operation, Tree};
use terrace_pool::Pool;
use terrace_store::{BLOCK_BYTES, ChunkId, ChunkInfo, ChunkPart, StoreError};
use terrace_sync::{Mutex, rank};

use super::{
    spans::{Stored, units_of},
    verification::{blocks_of, first_bad_block, verified, verified_by_sums, verified_part},
};
use crate::{
    Handles, Options, buffer_pool,
    buffers::OpenSegments,
    catalog::Catalog,
    encoding::{ChunkRecord, Counters, Location, dedup_key},
    ledger::Ledger,
    stop::Stop,
    worker_pool::Crew,
};

/// Most chunks that wait for a copy in place of a bad one.
const REPAIRS_MAX: usize = 1_000_000;
/// Most chunks without a good copy that are remembered.
const UNREADABLE_MAX: usize = 100_000;
/// How often a reader follows a chunk that moves under it.
const MOVES_MAX: usize = 8;

/// What a thread reads into memory of its own: a chunk, or a few.
pub(crate) const SMALL_BYTES: usize = 160 * 1024;

thread_local! {
    /// Whoever is given bytes in it does not read meanwhile.
    pub(crate) static BUFFER: std::cell::RefCell<AlignedBuffer> =
        std::cell::RefCell::new(AlignedBuffer::with_capacity(SMALL_BYTES));
}

/// What is to be read of a chunk and given on.
struct Extract<'a> {
    /// Its place among what is asked for.
    at: usize,
    record: &'a ChunkRecord,
    /// What to read: the payload, or of a part of a chunk that is in blocks its blocks.
    stored: Stored,
    /// The first of those blocks.
    first: usize,
    /// Of what is read, what to give on; `None`: all.
    range: Option<Range<usize>>,
}

impl<'a> Extract<'a> {
    /// Of the first copy; `None` if the chunk has none, or no such part.
    fn new(at: usize, record: &'a ChunkRecord, part: &ChunkPart) -> Option<Self> {
        let location = *record.locations.first()?;
        let range = part.range.clone();
        if range
            .as_ref()
            .is_some_and(|range| range.end > record.length as usize || range.is_empty())
        {
            return None;
        }
        let (stored, first, range) = match range {
            Some(range) if record.is_in_blocks() => {
                let blocks = blocks_of(record, &range);
                let first = blocks.start / BLOCK_BYTES;
                let inner = range.start - blocks.start..range.end - blocks.start;
                (Stored::payload(location, blocks), first, Some(inner))
            }
            range => (Stored::payload(location, 0..record.payload as usize), 0, range),
        };
        Some(Self {
            at,
            record,
            stored,
            first,
            range,
        })
    }

    /// What is asked for, if the bytes are what the record says.
    fn verified(&self, stored: &[u8]) -> Option<Bytes> {
        match &self.range {
            Some(range) if self.record.is_in_blocks() => first_bad_block(self.record, self.first, stored)
                .is_none()
                .then(|| buffer_pool::copy(&stored[range.clone()])),
            Some(range) => verified_part(self.record, stored, range.clone()),
            None => verified_by_sums(self.record, stored),
        }
    }
}

/// Reads chunks, and verifies what it reads.
pub(crate) struct ChunkReader {
    pub(super) pool: Arc<Pool>,
    pub(super) options: Options,
    pub(super) tree: Arc<Tree>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) open_segments: Arc<OpenSegments>,
    pub(super) crew: Arc<Crew>,
    pub(super) stop: Arc<Stop>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) repairs: Mutex<BTreeSet<ChunkId>, rank::Leaf>,
    /// Chunks of which somebody found no good copy, though a device that has one is there.
    pub(super) unreadable: Mutex<BTreeSet<ChunkId>, rank::Leaf>,
}

impl ChunkReader {
    /// Of these parts.
    pub(crate) fn new(handles: &Handles, stop: &Arc<Stop>, catalog: &Arc<Catalog>) -> Self {
        Self {
            pool: handles.pool.clone(),
            options: handles.options.clone(),
            tree: handles.tree.clone(),
            ledger: handles.ledger.clone(),
            open_segments: handles.open_segments.clone(),
            crew: handles.crew.clone(),
            stop: stop.clone(),
            catalog: catalog.clone(),
            repairs: Mutex::default(),
            unreadable: Mutex::default(),
        }
    }

    /// One of the chunks that are to be repaired; it is not one any more.
    pub(crate) fn next_repair(&self) -> Option<ChunkId> {
        self.repairs.lock().pop_first()
    }

    /// It is to be repaired another time.
    pub(crate) fn repair_again(&self, id: ChunkId) {
        self.repairs.lock().insert(id);
    }

    /// It was repaired otherwise.
    pub(crate) fn forget_repair(&self, id: ChunkId) {
        self.repairs.lock().remove(&id);
    }

    /// Has a bad copy of a chunk replaced when there is room, as long as the pool is open. Where very many wait for that, some are left
    /// to whoever finds them next.
    pub(crate) fn repair_later(&self, id: ChunkId) {
        let mut repairs = self.repairs.lock();
        if repairs.len() < REPAIRS_MAX {
            repairs.insert(id);
        }
    }

    /// Gives what lies there to `use_bytes`.
    pub(crate) fn with_stored<T>(
        &self,
        stored: Stored,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Arc<str>> {
        let (segment, bytes) = stored.place();
        let (offset, length) = (bytes.start, bytes.len());
        let units = units_of(&self.pool, segment, bytes)
            .ok_or_else(|| format!("segment {segment} ends before it"))?;
        BUFFER.with_borrow_mut(|buffer| {
            if let Some(open) = self.open_segments.find(segment)
                && open.read(offset, buffer.reuse(length))
            {
                return Ok(use_bytes(buffer));
            }
            let read = self
                .pool
                .read(segment, units.start as u64, buffer.reuse(units.len()));
            read.map_err(|error| Arc::from(error.to_string()))?;
            let from = offset - units.start;
            Ok(use_bytes(&buffer[from..from + length]))
        })
    }

    /// Reads one copy of a whole chunk and compares it with its hash.
    pub(crate) fn read_copy(&self, record: &ChunkRecord, location: Location) -> Result<Bytes, Arc<str>> {
        self.read_copy_with(record, location, verified)
    }

    fn read_copy_with(
        &self,
        record: &ChunkRecord,
        location: Location,
        verified: impl FnOnce(&ChunkRecord, &[u8]) -> Option<Bytes>,
    ) -> Result<Bytes, Arc<str>> {
        let payload = Stored::payload(location, 0..record.payload as usize);
        let content = self.with_stored(payload, |stored| verified(record, stored))?;
        content.ok_or_else(|| {
            Arc::from(format!(
                "its bytes in segment {} do not match its sum",
                location.segment
            ))
        })
    }

    /// Tries `read` on each copy, following the chunk if it moves.
    fn read_any<T>(
        &self,
        id: ChunkId,
        mut read: impl FnMut(&ChunkRecord, Location) -> Result<T, Arc<str>>,
    ) -> Result<T, StoreError> {
        let mut record = self.catalog.any_record(id)?.ok_or(StoreError::NoChunk(id))?;
        for _ in 0..MOVES_MAX {
            let mut bad: Vec<(Location, Arc<str>)> = Vec::new();
            for location in &record.locations {
                match read(&record, *location) {
                    Ok(result) => {
                        if !bad.is_empty() {
                            self.note_bad_copies(id, &record, &bad);
                        }
                        return Ok(result);
                    }
                    Err(cause) => bad.push((*location, cause)),
                }
            }
            let now = self.catalog.any_record(id)?.ok_or(StoreError::NoChunk(id))?;
            if now == record {
                self.note_bad_copies(id, &record, &bad);
                let cause = bad
                    .into_iter()
                    .next()
                    .map_or_else(|| "it has no copy".into(), |(_, cause)| cause);
                return Err(StoreError::Damaged { id, cause });
            }
            record = now;
        }
        Err(StoreError::Damaged {
            id,
            cause: "it moves faster than it can be read".into(),
        })
    }

    /// Counts bad copies and remembers the chunk for repair.
    pub(crate) fn note_bad_copies(&self, id: ChunkId, record: &ChunkRecord, bad: &[(Location, Arc<str>)]) {
        // A copy that was read while it moved away is not bad.
        if !matches!(self.catalog.any_record(id), Ok(Some(now)) if now == *record) {
            return;
        }
        for (location, cause) in bad {
            tracing::warn!(chunk = %id, segment = %location.segment, %cause, "a copy of a chunk is bad");
            self.pool.note_checksum_error(location.segment.device);
        }
        if record.locations.len() > bad.len() {
            self.repair_later(id);
        } else {
            if bad
                .iter()
                .any(|(location, _)| self.pool.has_segment(location.segment))
            {
                let mut unreadable = self.unreadable.lock();
                if unreadable.len() < UNREADABLE_MAX {
                    unreadable.insert(id);
                }
            }
            self.forget_hint(id, &record.hash);
        }
    }

    /// Ends deduplication with a chunk that has no good copy: the same content written again, from a backup perhaps,
    /// must be stored, not taken for what is lost.
    fn forget_hint(&self, id: ChunkId, hash: &[u8; 32]) {
        self.ledger.lock().forget_content(id, hash);
        let key = dedup_key(hash, self.options.hint_bytes);
        let leads_here = matches!(self.tree.get(&key), Ok(Some(hint)) if hint[..] == id.0.to_le_bytes());
        if !leads_here || self.pool.is_read_only() || self.stop.check_running().is_err() {
            return;
        }
        let operations = vec![(key, Operation::Delete)];
        if let Err(error) = self.catalog.commit_internal(operations, Counters::default()) {
            tracing::error!(chunk = %id, %error, "the hint to a damaged chunk could not be removed");
        }
    }

    pub(crate) fn read_whole(&self, id: ChunkId) -> Result<Bytes, StoreError> {
        self.read_any(id, |record, location| {
            self.read_copy_with(record, location, verified_by_sums)
        })
    }

    pub(crate) fn read_part(&self, id: ChunkId, offset: usize, length: usize) -> Result<Bytes, StoreError> {
        let outside = |total: u32| {
            let end = offset.checked_add(length);
            end.is_none_or(|end| end > total as usize)
                .then(|| StoreError::Invalid(format!("chunk {id} has {total} bytes, not {offset}+{length}")))
        };
        let mut error = None;
        let part = self.read_any(id, |record, location| {
            error = outside(record.length);
            if error.is_some() || length == 0 {
                return Ok(Bytes::new());
            }
            if !record.is_in_blocks() {
                let part = offset..offset + length;
                return self.read_copy_with(record, location, |record, stored| {
                    verified_part(record, stored, part)
                });
            }
            self.read_blocks(record, location, offset, length)
        })?;
        error.map_or(Ok(part), Err)
    }

    /// Reads only the blocks that hold `offset..offset + length` of a raw chunk and verifies each by its own sum.
    fn read_blocks(
        &self,
        record: &ChunkRecord,
        location: Location,
        offset: usize,
        length: usize,
    ) -> Result<Bytes, Arc<str>> {
        let Range { start, end } = blocks_of(record, &(offset..offset + length));
        let first = start / BLOCK_BYTES;
        self.with_stored(Stored::payload(location, start..end), |blocks| {
            if let Some(block) = first_bad_block(record, first, blocks) {
                return Err(format!(
                    "block {block} in segment {} does not match its sum",
                    location.segment
                )
                .into());
            }
            Ok(buffer_pool::copy(
                &blocks[offset - start..offset - start + length],
            ))
        })?
    }

    /// Reads many chunks, or parts of them: what lies together in one read, what lies apart at the same time.
    pub(crate) fn read_parts(&self, parts: &[ChunkPart]) -> Vec<Result<Bytes, StoreError>> {
        let ids: Vec<ChunkId> = parts.iter().map(|part| part.id).collect();
        let records = self.catalog.records_to_read(&ids);
        let wanted: Vec<Extract<'_>> = records
            .iter()
            .zip(parts)
            .enumerate()
            .filter_map(|(at, (record, part))| Extract::new(at, record.as_ref()?, part))
            .collect();
        let stored: Vec<Stored> = wanted.iter().map(|one| one.stored).collect();
        let found: Vec<Mutex<Option<Bytes>, rank::Leaf>> = ids.iter().map(|_| Mutex::new(None)).collect();
        self.read_spans(&stored, &|number, stored| {
            let one = &wanted[number];
            *found[one.at].lock() = one.verified(stored);
        });
        // What is in memory, has moved or is bad in its first copy is read by itself.
        let found = parts.iter().zip(found);
        found
            .map(|(part, found)| match (found.into_inner(), &part.range) {
                (Some(content), _) => Ok(content),
                (None, None) => self.read_whole(part.id),
                (None, Some(range)) => self.read_part(part.id, range.start, range.len()),
            })
            .collect()
    }

    pub(crate) fn info(&self, id: ChunkId) -> Result<Option<ChunkInfo>, StoreError> {
        let Some(record) = self.catalog.any_record(id)? else {
            return Ok(None);
        };
        Ok(self.info_of(&record, self.catalog.references(id)?))
    }

    /// The same of many, looked up together.
    pub(crate) fn infos(&self, ids: &[ChunkId]) -> Result<Vec<Option<ChunkInfo>>, StoreError> {
        let records = self.catalog.records_of(ids).into_iter().zip(ids);
        let records = records.map(|(record, id)| match record {
            Ok(None) => self.catalog.any_record(*id),
            record => record,
        });
        let records = records.collect::<Result<Vec<_>, _>>()?;
        let references = self.catalog.references_of(ids.iter().copied());
        let all = records.into_iter().zip(references).zip(ids);
        all.map(|((record, references), id)| match (record, references) {
            (None, _) => Ok(None),
            (Some(record), Some(references)) => Ok(self.info_of(&record, references)),
            (Some(record), None) => Ok(self.info_of(&record, self.catalog.references(*id)?)),
        })
        .collect()
    }

    fn info_of(&self, record: &ChunkRecord, references: i64) -> Option<ChunkInfo> {
        let first = record.locations.first()?;
        Some(ChunkInfo {
            length: record.length,
            stored: record.stored(),
            tier: self.pool.tier_of(first.segment.device).unwrap_or(u8::MAX),
            device: first.segment.device,
            segment: first.segment.index,
            offset: first.payload,
            references,
            hash: record.hash,
        })
    }

    /// The tier of its first copy: known without a look where there is only one, and without its references anywhere.
    pub(crate) fn tier_of(&self, id: ChunkId) -> Result<Option<u8>, StoreError> {
        if self.pool.tier_count() == 1 {
            return Ok(Some(0));
        }
        let record = self.catalog.any_record(id)?;
        let first = record.and_then(|record| record.locations.first().copied());
        Ok(first.map(|first| self.pool.tier_of(first.segment.device).unwrap_or(u8::MAX)))
    }

    /// Chunks of which readers, or whoever moves content, found no good copy on devices that are there, as far as they are
    /// remembered; since the opening, or [`forget_unreadable`](Self::forget_unreadable).
    pub(crate) fn unreadable(&self) -> BTreeSet<ChunkId> {
        self.unreadable.lock().clone()
    }

    /// How many these are.
    pub(crate) fn unreadable_count(&self) -> usize {
        self.unreadable.lock().len()
    }

    /// Forgets those that nothing refers to any more, or whose devices have gone: these are known to be lost by other means.
    pub(crate) fn prune_unreadable(&self) {
        let is_over = |id: &ChunkId| match self.catalog.any_record(*id) {
            Ok(Some(record)) => !record
                .locations
                .iter()
                .any(|location| self.pool.has_segment(location.segment)),
            Ok(None) => true,
            Err(_) => false,
        };
        let over: Vec<ChunkId> = self.unreadable().into_iter().filter(is_over).collect();
        let mut unreadable = self.unreadable.lock();
        over.iter().for_each(|id| {
            unreadable.remove(id);
        });
    }

    /// They are known by other means now.
    pub(crate) fn forget_unreadable(&self) {
        self.unreadable.lock().clear();
    }
}
