//! Writing chunks: hash, deduplicate, compress, append.
//!
//! Invariants: hashing and compressing hold no lock; of equal pieces that are written at the same time one is stored
//! and the others refer to it; a dedup hint is believed only when the chunk's own record has the same hash.

use std::sync::{Arc, atomic::Ordering};

use parking_lot::Mutex;
use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId, Piece, Placement, StoreError, Written};

use crate::{
    books::{Claim, PinGuard},
    compress::{self, Scratch},
    header::ChunkHeader,
    record::{ChunkRecord, block_sums, dedup_key},
    store::ChunkStore,
    streams::StreamKey,
};

/// Batches of at least this much content are spread over threads, bytes.
const PARALLEL_BYTES: usize = 512 * 1024;
/// How often room that was made for a piece may be gone before it is written.
const ATTEMPTS: usize = 64;

impl ChunkStore {
    pub(crate) fn write_pieces(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        self.check_running()?;
        for piece in pieces {
            if piece.content.is_empty() || piece.content.len() > CHUNK_BYTES_MAX {
                return Err(StoreError::Invalid(format!(
                    "a chunk of {} bytes; chunks have 1 to {CHUNK_BYTES_MAX}",
                    piece.content.len()
                )));
            }
        }
        let total: usize = pieces.iter().map(|piece| piece.content.len()).sum();
        if self.crew.hands() < 2 || total < PARALLEL_BYTES || pieces.len() < 4 {
            let mut scratch = self.scratch.lock().pop().unwrap_or_default();
            let written = pieces
                .iter()
                .map(|piece| self.write_or_make_room(piece, &mut scratch))
                .collect();
            self.scratch.lock().push(scratch);
            return written;
        }
        self.write_parallel(pieces)
    }

    fn write_parallel(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        // Each thread takes the next run of a few pieces, so that what lies together is stored almost together.
        const RUN: usize = 4;
        let next = Mutex::new(0usize);
        let results: Vec<Mutex<Option<Result<Written, StoreError>>>> =
            pieces.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            let mut scratch = self.scratch.lock().pop().unwrap_or_default();
            loop {
                let start = {
                    let mut next = next.lock();
                    let start = *next;
                    *next += RUN;
                    start
                };
                let Some(run) = pieces
                    .get(start..(start + RUN).min(pieces.len()))
                    .filter(|run| !run.is_empty())
                else {
                    break;
                };
                for (index, piece) in run.iter().enumerate() {
                    let result = self.write_or_make_room(piece, &mut scratch);
                    if let Some(slot) = results.get(start + index) {
                        *slot.lock() = Some(result);
                    }
                }
            }
            self.scratch.lock().push(scratch);
        };
        self.crew.run(pieces.len(), work);
        results
            .into_iter()
            .map(|slot| slot.into_inner().unwrap_or(Err(StoreError::NoSpace)))
            .collect()
    }

    /// Writes a piece; when there is no room, reclaims and compacts until there is, or there is nothing to be had.
    fn write_or_make_room(&self, piece: &Piece<'_>, scratch: &mut Scratch) -> Result<Written, StoreError> {
        let mut result = self.write_piece(piece, scratch);
        if matches!(piece.placement, Placement::Tier { strict: true, .. }) {
            return result;
        }
        let floor = match piece.privileged {
            true => self.last_segments(),
            false => self.reserve_segments(),
        };
        for _ in 0..ATTEMPTS {
            if !matches!(result, Err(StoreError::NoSpace)) {
                break;
            }
            let copies = self.copies_at_most();
            if !self.make_room(|| self.pool.free_for_content() >= floor + copies)? {
                break;
            }
            // Others may be quicker to take it.
            result = self.write_piece(piece, scratch);
        }
        result
    }

    fn write_piece(&self, piece: &Piece<'_>, scratch: &mut Scratch) -> Result<Written, StoreError> {
        let hash = *blake3::hash(piece.content).as_bytes();
        if !piece.dedup {
            return self.store_piece(piece, hash, scratch);
        }
        let _claimed = match self.keeper.claim(&hash) {
            Claim::Known(id, pin) => return Ok(Written::new(id, true, pin)),
            Claim::Mine(claimed) => claimed,
        };
        match self.find_equal(&hash)? {
            Some((id, pin)) => Ok(Written::new(id, true, pin)),
            None => self.store_piece(piece, hash, scratch),
        }
    }

    /// A committed chunk with this hash, held.
    fn find_equal(&self, hash: &[u8; 32]) -> Result<Option<(ChunkId, Arc<PinGuard>)>, StoreError> {
        let hint = self
            .tree
            .get(&dedup_key(hash, self.options.hint_bytes))
            .map_err(crate::store::meta_error)?;
        let Some(id) = hint.and_then(|hint| <[u8; 8]>::try_from(&hint[..]).ok()) else {
            return Ok(None);
        };
        let id = ChunkId(u64::from_le_bytes(id));
        // Held first, looked at then: a chunk that is held cannot go away any more.
        let Some(pin) = self.keeper.pin(id) else {
            return Ok(None);
        };
        let equal = self.record(id)?.is_some_and(|record| record.hash == *hash);
        Ok(equal.then_some((id, pin)))
    }

    fn store_piece(
        &self,
        piece: &Piece<'_>,
        hash: [u8; 32],
        scratch: &mut Scratch,
    ) -> Result<Written, StoreError> {
        let content = piece.content;
        let code = compress::compress(content, piece.compression, scratch);
        let payload = if code == compress::RAW {
            content
        } else {
            &scratch.output[..]
        };
        let sums = if code == compress::RAW && content.len() > BLOCK_BYTES {
            block_sums(content)
        } else {
            Vec::new()
        };
        let id = ChunkId(self.next_chunk.fetch_add(1, Ordering::AcqRel));
        let header = ChunkHeader {
            id,
            owner: piece.owner,
            compression: code,
            length: content.len() as u32,
            payload: payload.len() as u32,
            hash,
        };
        let head = header.encode();
        let record = ChunkRecord {
            compression: code,
            length: header.length,
            payload: header.payload,
            hash,
            locations: Vec::new(),
            sums,
        };
        let mut record = Some(record);
        let mut pin = None;
        let key = StreamKey::of(piece.placement);
        self.append(key, piece.privileged, id, &[&head, payload], &mut |locations| {
            if let Some(mut record) = record.take() {
                record.locations = locations;
                pin = Some(self.keeper.enter(id, record));
            }
        })?;
        self.unlogged_bytes
            .fetch_add(u64::from(header.payload), Ordering::Relaxed);
        let pin = pin.ok_or(StoreError::NoSpace)?;
        Ok(Written::new(id, false, pin))
    }
}
