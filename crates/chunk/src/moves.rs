//! Moving chunks: the mover's rewrite, compaction, evacuation, repair of bad copies.
//!
//! Invariants: what is moved was verified against its hash first, and is copied as it is stored; a move is one batch
//! that replaces the record only if the chunk is still where it was read; the old bytes stay until that is durable.

use terrace_pool::SegmentId;
use terrace_store::{ChunkId, Owner, Placement, RewriteOutcome, StoreError};

use crate::{
    compress,
    header::{ChunkHeader, HEADER_BYTES},
    record::{ChunkRecord, Location, TABLE_CHUNKS, chunk_key, chunk_of_key},
    store::{ChunkStore, meta_error},
    streams::StreamKey,
    survey::chunks_in,
};

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
        for id in ids {
            let Some(pin) = self.keeper.pin(*id) else {
                outcome.skipped += 1;
                continue;
            };
            let moved = self.move_chunk(*id, placement, from);
            drop(pin);
            match moved {
                Ok(Some(bytes)) => {
                    outcome.moved += 1;
                    outcome.moved_bytes += bytes;
                }
                Ok(None) | Err(StoreError::NoChunk(_)) => outcome.skipped += 1,
                Err(StoreError::Damaged { id, .. }) => outcome.failed.push(id),
                Err(error) => return Err(error),
            }
        }
        Ok(outcome)
    }

    fn move_chunk(
        &self,
        id: ChunkId,
        placement: Placement,
        from: Option<SegmentId>,
    ) -> Result<Option<u64>, StoreError> {
        let Some(mut record) = self.record(id)? else {
            return Ok(None);
        };
        let wanted = match from {
            Some(segment) => record
                .locations
                .iter()
                .any(|location| location.segment == segment),
            None => !self.lies_at(&record, placement),
        };
        if !wanted {
            return Ok(None);
        }
        if let Some(segment) = from {
            // A segment that still takes appends is not emptied: whoever empties it closes it first.
            if self.open_segments.find(segment).is_some() {
                return Ok(None);
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
                    _ => return Ok(None),
                }
            }
        }
        let (owner, payload) = self.verified_payload(id, &record)?;
        let header = ChunkHeader {
            id,
            owner,
            compression: record.compression,
            length: record.length,
            payload: record.payload,
            hash: record.hash,
        };
        let mut started = false;
        let mut places: Vec<Location> = Vec::new();
        self.append(
            StreamKey::of(placement),
            true,
            id,
            &[&header.encode(), &payload],
            &mut |locations| {
                places.clone_from(&locations);
                started = self.keeper.lock().start_move(
                    id,
                    ChunkRecord {
                        locations,
                        ..record.clone()
                    },
                );
            },
        )?;
        if !started {
            return Ok(None);
        }
        // Taken out and committed in one: a relocation in between would look for the chunk here.
        let moved = self.commit_move(id, &record.locations)?;
        Ok(moved.then(|| u64::from(record.stored())))
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
                let (head, payload) = stored.split_at(HEADER_BYTES);
                let content = compress::decompress(payload, record.compression, record.length as usize)?;
                let good = *blake3::hash(&content).as_bytes() == record.hash;
                // A damaged header loses the owner, not the data.
                let owner = ChunkHeader::decode(head)
                    .map(|header| header.owner)
                    .unwrap_or_default();
                good.then(|| (owner, payload.to_vec()))
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

    /// The live chunks of a segment.
    pub fn chunks_in_segment(&self, segment: SegmentId) -> Result<Vec<ChunkId>, StoreError> {
        let live = self
            .keeper
            .lock()
            .segments
            .get(&segment)
            .map_or(0, |state| state.live);
        let mut ids = Vec::new();
        let mut bytes = 0;
        // What cannot be read is looked up in the table instead.
        for found in chunks_in(&self.pool, segment) {
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
        if bytes == live {
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
