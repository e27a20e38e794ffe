//! Moving chunks: the mover's rewrite, compaction, evacuation, repair of bad copies.
//!
//! Invariants: what is moved was verified against its hash first, and is copied as it is stored; a move is one batch
//! that replaces the record only if the chunk is still where it was read; the old bytes stay until that is durable.
//! Chunks that lie together are read together (a disk, or a device that counts requests, is slow at one by one) and
//! appended in the order in which the caller names them.

use std::collections::HashMap;

use parking_lot::Mutex;
use terrace_pool::SegmentId;
use terrace_store::{ChunkId, Owner, Placement, RewriteOutcome, StoreError};

use crate::{
    compress,
    header::{ChunkHeader, HEADER_BYTES},
    record::{ChunkRecord, Location, TABLE_CHUNKS, chunk_key, chunk_of_key},
    spans::Stored,
    store::{ChunkStore, meta_error},
    streams::StreamKey,
    survey::chunks_in,
};

/// Stored bytes that are read ahead of a move at most, about.
const AHEAD_BYTES: usize = 4 << 20;

/// A payload that was read ahead, with the record that it was verified by.
type Ahead = HashMap<ChunkId, (ChunkRecord, Owner, Vec<u8>)>;

/// What became of one chunk.
enum Moved {
    /// It was moved: its stored bytes.
    Bytes(u64),
    /// It is there, gone, or not to be moved now.
    Skipped,
    /// Something else moves it, or did since it was looked at.
    Busy,
}

/// The payload of a stored chunk and the owner in its header, if it is what its record says.
fn good_payload(record: &ChunkRecord, stored: &[u8]) -> Option<(Owner, Vec<u8>)> {
    let (head, payload) = stored.split_at(HEADER_BYTES);
    let content = compress::decompress(payload, record.compression, record.length as usize)?;
    let good = *blake3::hash(&content).as_bytes() == record.hash;
    // A damaged header loses the owner, not the data.
    let owner = ChunkHeader::decode(head)
        .map(|header| header.owner)
        .unwrap_or_default();
    good.then(|| (owner, payload.to_vec()))
}

impl ChunkStore {
    /// Moves chunks to `placement`. `from`: only those with a copy in this segment, wherever they would go; without it
    /// chunks on the right tier already are skipped.
    pub(crate) fn move_chunks(
        &self,
        ids: &[ChunkId],
        placement: Placement,
        from: Option<SegmentId>,
    ) -> Result<RewriteOutcome, StoreError> {
        self.check_running()?;
        let mut outcome = RewriteOutcome::default();
        let mut ahead = Ahead::new();
        let mut looked_at = 0;
        for (at, id) in ids.iter().enumerate() {
            if at == looked_at {
                looked_at += self.read_together(&ids[at..], placement, from, &mut ahead)?;
            }
            let Some(pin) = self.keeper.pin(*id) else {
                outcome.skipped += 1;
                continue;
            };
            let moved = self.move_chunk(*id, placement, from, ahead.remove(id));
            drop(pin);
            match moved {
                Ok(Moved::Bytes(bytes)) => {
                    outcome.moved += 1;
                    outcome.moved_bytes += bytes;
                }
                Ok(Moved::Busy) => outcome.busy += 1,
                Ok(Moved::Skipped) | Err(StoreError::NoChunk(_)) => outcome.skipped += 1,
                Err(StoreError::Damaged { id, .. }) => outcome.failed.push(id),
                Err(error) => return Err(error),
            }
        }
        Ok(outcome)
    }

    /// Whether a chunk is to be moved at all.
    fn is_to_move(&self, record: &ChunkRecord, placement: Placement, from: Option<SegmentId>) -> bool {
        match from {
            Some(segment) => record
                .locations
                .iter()
                .any(|location| location.segment == segment),
            None => !self.lies_at(record, placement),
        }
    }

    /// Reads the next of `ids` that lie together with others; returns how many it looked at. What it does not bring is
    /// read by itself.
    fn read_together(
        &self,
        ids: &[ChunkId],
        placement: Placement,
        from: Option<SegmentId>,
        ahead: &mut Ahead,
    ) -> Result<usize, StoreError> {
        let (mut looked_at, mut bytes) = (0, 0);
        let mut records: Vec<(ChunkId, ChunkRecord)> = Vec::new();
        for id in ids {
            if bytes >= AHEAD_BYTES {
                break;
            }
            looked_at += 1;
            if let Some(record) = self.record(*id)?
                && !record.locations.is_empty()
                && self.is_to_move(&record, placement, from)
            {
                bytes += record.stored() as usize;
                records.push((*id, record));
            }
        }
        let stored = records
            .iter()
            .map(|(_, record)| (record.locations[0], record.payload));
        let stored: Vec<Stored> = stored.collect();
        let found = Mutex::new(ahead);
        self.read_spans(&stored, &|number, stored| {
            let (id, record) = &records[number];
            if let Some((owner, payload)) = good_payload(record, stored) {
                found.lock().insert(*id, (record.clone(), owner, payload));
            }
        });
        Ok(looked_at)
    }

    fn move_chunk(
        &self,
        id: ChunkId,
        placement: Placement,
        from: Option<SegmentId>,
        ahead: Option<(ChunkRecord, Owner, Vec<u8>)>,
    ) -> Result<Moved, StoreError> {
        let Some(mut record) = self.record(id)? else {
            return Ok(Moved::Skipped);
        };
        if !self.is_to_move(&record, placement, from) {
            return Ok(Moved::Skipped);
        }
        if let Some(segment) = from {
            // A segment that still takes appends is not emptied: whoever empties it closes it first.
            if self.open_segments.find(segment).is_some() {
                return Ok(Moved::Skipped);
            }
        } else {
            // Asked to lie elsewhere: the segment that it was just written to is finished first.
            let open = record
                .locations
                .iter()
                .filter_map(|location| self.open_segments.find(location.segment));
            let open: Vec<_> = open.collect();
            for open in &open {
                self.close_open(open)?;
            }
            if !open.is_empty() {
                match self.record(id)? {
                    Some(closed) if !self.lies_at(&closed, placement) => record = closed,
                    _ => return Ok(Moved::Skipped),
                }
            }
        }
        let (owner, payload) = match ahead {
            Some((seen, owner, payload)) if seen == record => (owner, payload),
            _ => self.verified_payload(id, &record)?,
        };
        let header = ChunkHeader {
            id,
            owner,
            compression: record.compression,
            length: record.length,
            payload: record.payload,
            hash: record.hash,
        };
        let (mut started, mut others) = (false, false);
        let mut places: Vec<Location> = Vec::new();
        self.append(
            StreamKey::of(placement),
            true,
            id,
            &[&header.encode(), &payload],
            &mut |locations| {
                places.clone_from(&locations);
                let mut books = self.keeper.lock();
                others = books.moving(id).is_some();
                started = books.start_move(
                    id,
                    ChunkRecord {
                        locations,
                        ..record.clone()
                    },
                );
            },
        )?;
        if !started {
            return Ok(if others { Moved::Busy } else { Moved::Skipped });
        }
        // Taken out and committed in one: a relocation in between would look for the chunk here.
        let moved = self.commit_move(id, &record.locations)?;
        Ok(match moved {
            true => Moved::Bytes(u64::from(record.stored())),
            false => Moved::Busy,
        })
    }

    fn lies_at(&self, record: &ChunkRecord, placement: Placement) -> bool {
        let Placement::Tier { tier, .. } = placement else {
            return false;
        };
        record
            .locations
            .iter()
            .all(|location| self.pool.tier_of(location.segment.device) == Some(tier))
    }

    /// The stored payload of a chunk, verified, and the owner in its header.
    fn verified_payload(&self, id: ChunkId, record: &ChunkRecord) -> Result<(Owner, Vec<u8>), StoreError> {
        let mut bad = Vec::new();
        for location in &record.locations {
            let read = self.with_stored(*location, 0, record.stored() as usize, |stored| {
                good_payload(record, stored)
            });
            match read {
                Ok(Some(found)) => {
                    if !bad.is_empty() {
                        self.note_bad_copies(id, record, &bad);
                    }
                    return Ok(found);
                }
                Ok(None) => bad.push((*location, "its bytes do not match its hash".into())),
                Err(cause) => bad.push((*location, cause)),
            }
        }
        self.note_bad_copies(id, record, &bad);
        let cause = bad
            .into_iter()
            .next()
            .map_or_else(|| "it has no copy".into(), |(_, cause)| cause);
        Err(StoreError::Damaged { id, cause })
    }

    /// Replaces the bad copies of remembered chunks by moving them; whether there was anything to do.
    pub(crate) fn repair_step(&self) -> Result<bool, StoreError> {
        let Some(id) = self.repairs.lock().pop_first() else {
            return Ok(false);
        };
        if let Some(record) = self.record(id)?
            && let Some(first) = record.locations.first()
        {
            let tier = self.pool.tier_of(first.segment.device).unwrap_or(0);
            let placement = Placement::Tier { tier, strict: false };
            match self.move_chunks(&[id], placement, Some(first.segment)) {
                // Another time: what comes after this in a step may be what makes room.
                Err(StoreError::NoSpace) => {
                    self.repairs.lock().insert(id);
                    return Ok(false);
                }
                outcome => outcome.map(drop)?,
            }
        }
        Ok(true)
    }

    /// The live chunks that the headers in a segment tell of, and whether these are all.
    pub(crate) fn chunks_by_headers(&self, segment: SegmentId) -> Result<(Vec<ChunkId>, bool), StoreError> {
        let live = self
            .keeper
            .lock()
            .segments
            .get(&segment)
            .map_or(0, |state| state.live);
        let mut ids = Vec::new();
        let mut bytes = 0;
        // What cannot be read is looked up in the table instead.
        let tier = self.pool.tier_of(segment.device).unwrap_or(0);
        for found in chunks_in(&self.pool, segment, &|| self.rest_beside_users(tier)) {
            if let Some(record) = self.record(found.id)?
                && record.locations.contains(&Location {
                    segment,
                    offset: found.offset,
                })
                && ids.last() != Some(&found.id)
            {
                ids.push(found.id);
                bytes += i64::from(record.stored());
            }
        }
        Ok((ids, bytes == live))
    }

    /// The live chunks of a segment.
    pub fn chunks_in_segment(&self, segment: SegmentId) -> Result<Vec<ChunkId>, StoreError> {
        let (ids, whole) = self.chunks_by_headers(segment)?;
        if whole {
            return Ok(ids);
        }
        // Headers are damaged (or chunks came and went meanwhile): ask the table of all chunks.
        let mut ids = Vec::new();
        let mut from = vec![TABLE_CHUNKS];
        loop {
            let records = self
                .tree
                .scan(&from, &[TABLE_CHUNKS + 1], 1024)
                .map_err(meta_error)?;
            let Some((last, _)) = records.last() else {
                return Ok(ids);
            };
            from = last.to_vec();
            from.push(0);
            for (key, value) in &records {
                let Some(id) = chunk_of_key(key) else { continue };
                let here = ChunkRecord::decode(value)
                    .is_ok_and(|r| r.locations.iter().any(|l| l.segment == segment));
                if here {
                    ids.push(id);
                }
            }
        }
    }

    /// Key and value of a chunk's record as they are in the table, for reports.
    pub(crate) fn chunk_exists(&self, id: ChunkId) -> Result<bool, StoreError> {
        Ok(self
            .tree
            .get(&chunk_key(TABLE_CHUNKS, id))
            .map_err(meta_error)?
            .is_some())
    }
}
