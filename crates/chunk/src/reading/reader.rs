//! Reading chunks.
//!
//! Invariants: no byte is returned that was not compared with a sum in the chunk's record; each copy is tried; a reader
//! that finds something else than it expected looks whether the chunk has moved meanwhile before it calls it damaged.

use super::verification::{blocks_of, first_bad_block, verified, verified_by_sums, verified_part};
use crate::catalog::decode;
use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use terrace_device::AlignedBuffer;
use terrace_meta::Operation;
use terrace_store::{BLOCK_BYTES, ChunkId, ChunkInfo, ChunkPart, StoreError};

use super::spans::{Stored, units_of};
use crate::{
    buffer_pool,
    encoding::{
        ChunkRecord, Counters, Location, TABLE_CHUNKS, TABLE_REFERENCES, chunk_key, dedup_key,
    },
    errors::meta_error,
    store::ChunkStore,
};

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

impl ChunkStore {
    /// The committed record of a chunk.
    pub(crate) fn record(&self, id: ChunkId) -> Result<Option<ChunkRecord>, StoreError> {
        let Some(value) = self.tree.get(&chunk_key(TABLE_CHUNKS, id)).map_err(meta_error)? else {
            return Ok(None);
        };
        decode(id, &value).map(Some)
    }

    /// The committed records of `ids`, in their order; as [`record`](Self::record) of each, but looked up together.
    pub(crate) fn records_of(&self, ids: &[ChunkId]) -> Vec<Result<Option<ChunkRecord>, StoreError>> {
        let keys: Vec<_> = ids.iter().map(|id| chunk_key(TABLE_CHUNKS, *id)).collect();
        let Ok(values) = self.tree.get_many(&keys) else {
            // Whose record can be read is not to suffer from a neighbour's that cannot.
            return ids.iter().map(|id| self.record(*id)).collect();
        };
        let records = ids.iter().zip(values);
        records
            .map(|(id, value)| value.map(|value| decode(*id, &value)).transpose())
            .collect()
    }

    /// The record of a chunk, committed or not.
    pub(crate) fn any_record(&self, id: ChunkId) -> Result<Option<ChunkRecord>, StoreError> {
        if let Some(record) = self.record(id)? {
            return Ok(Some(record));
        }
        let pending = self.keeper.lock().pending(id).cloned();
        if pending.is_some() {
            return Ok(pending);
        }
        // It may have been committed between the two looks: a commit takes the record out of the books before the tree
        // has it, both under this lock.
        drop(self.commit.lock());
        self.record(id)
    }

    /// The records of `ids`, committed or not, as far as they can be had; looked up together.
    pub(crate) fn records_to_read(&self, ids: &[ChunkId]) -> Vec<Option<ChunkRecord>> {
        let records = ids.iter().zip(self.records_of(ids));
        records
            .map(|(id, record)| match record {
                Ok(None) => self.any_record(*id).unwrap_or_default(),
                record => record.unwrap_or_default(),
            })
            .collect()
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
        let mut record = self.any_record(id)?.ok_or(StoreError::NoChunk(id))?;
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
            let now = self.any_record(id)?.ok_or(StoreError::NoChunk(id))?;
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
        if !matches!(self.any_record(id), Ok(Some(now)) if now == *record) {
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
        self.keeper.lock().forget_content(id, hash);
        let key = dedup_key(hash, self.options.hint_bytes);
        let leads_here = matches!(self.tree.get(&key), Ok(Some(hint)) if hint[..] == id.0.to_le_bytes());
        if !leads_here || self.pool.is_read_only() || self.check_running().is_err() {
            return;
        }
        let operations = vec![(key, Operation::Delete)];
        if let Err(error) = self.commit_internal(operations, Counters::default()) {
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
        let records = self.records_to_read(&ids);
        let wanted: Vec<Extract<'_>> = records
            .iter()
            .zip(parts)
            .enumerate()
            .filter_map(|(at, (record, part))| Extract::new(at, record.as_ref()?, part))
            .collect();
        let stored: Vec<Stored> = wanted.iter().map(|one| one.stored).collect();
        let found: Vec<Mutex<Option<Bytes>>> = ids.iter().map(|_| Mutex::new(None)).collect();
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
        let Some(record) = self.any_record(id)? else {
            return Ok(None);
        };
        Ok(self.info_of(&record, self.references(id)?))
    }

    /// The same of many, looked up together.
    pub(crate) fn infos(&self, ids: &[ChunkId]) -> Result<Vec<Option<ChunkInfo>>, StoreError> {
        let records = self.records_of(ids).into_iter().zip(ids);
        let records = records.map(|(record, id)| match record {
            Ok(None) => self.any_record(*id),
            record => record,
        });
        let records = records.collect::<Result<Vec<_>, _>>()?;
        let references = self.references_of(ids.iter().copied());
        let all = records.into_iter().zip(references).zip(ids);
        all.map(|((record, references), id)| match (record, references) {
            (None, _) => Ok(None),
            (Some(record), Some(references)) => Ok(self.info_of(&record, references)),
            (Some(record), None) => Ok(self.info_of(&record, self.references(*id)?)),
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
        let record = self.any_record(id)?;
        let first = record.and_then(|record| record.locations.first().copied());
        Ok(first.map(|first| self.pool.tier_of(first.segment.device).unwrap_or(u8::MAX)))
    }

    /// References of a chunk, in blocks.
    pub(crate) fn references(&self, id: ChunkId) -> Result<i64, StoreError> {
        self.tree
            .get_count(&chunk_key(TABLE_REFERENCES, id))
            .map_err(meta_error)
    }
}
