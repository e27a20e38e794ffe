//! Writing chunks: hash, deduplicate, compress, append.
//!
//! Invariants: hashing and compressing hold no lock; of equal pieces that are written at the same time one is stored
//! and the others refer to it; a dedup hint is believed only when the chunk's own record has the same hash. What is stored
//! apart is found by nobody else: it may have to be written over without its content living on.

use std::{ops::Range, sync::Arc};

use terrace_meta::Tree;
use terrace_store::{
    CHUNK_BYTES_MAX, ChunkId, Compression, Dedup, Piece, Placement, StoreError, Trial, Written,
};
use terrace_sync::{Mutex, rank};

use crate::{
    Handles, Options,
    admission::Admission,
    buffers::Chunk,
    catalog::Catalog,
    encoding::{ChunkHeader, ChunkRecord, JOINED, Scratch, block_sums, compression, dedup_key},
    errors::meta_error,
    ledger::{Claim, Ledger, PinGuard},
    space::{SpaceView, StreamKey},
    stop::Stop,
    worker_pool::Crew,
};

/// Batches of at least this much content are spread over threads, bytes.
const PARALLEL_BYTES: usize = 512 * 1024;

/// A committed chunk with some content, held.
type Equal = (ChunkId, Arc<PinGuard>);

/// What was found of several pieces together.
struct Looked {
    /// Up to which sequence records were in tables before the look: what was committed since is in memory as long as that holds.
    flushed: u64,
    found: Vec<Option<Equal>>,
}

/// What was found of one piece.
enum Known {
    Equal(Equal),
    /// Nothing, when records up to this sequence were in tables.
    Nothing {
        flushed: u64,
    },
}

impl Looked {
    fn take(&mut self, at: usize) -> Option<Known> {
        let found = self.found.get_mut(at)?.take();
        let flushed = self.flushed;
        Some(found.map_or(Known::Nothing { flushed }, Known::Equal))
    }
}

/// Pieces that a thread takes at once: as many as make up these bytes, but a few at least. What lies together is stored almost
/// together, and what is known of their hashes is looked up at once.
const RUN_BYTES: usize = 256 * 1024;
const RUN_PIECES: Range<usize> = 4..33;

/// Makes chunks of content.
pub(crate) struct ChunkWriter {
    pub(super) options: Options,
    pub(super) tree: Arc<Tree>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) crew: Arc<Crew>,
    pub(super) stop: Arc<Stop>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) admission: Arc<Admission>,
    pub(super) scratch: Mutex<Vec<Scratch>, rank::Leaf>,
}

impl ChunkWriter {
    /// Of these parts.
    pub(crate) fn new(
        handles: &Handles,
        stop: &Arc<Stop>,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
        admission: &Arc<Admission>,
    ) -> Self {
        Self {
            options: handles.options.clone(),
            tree: handles.tree.clone(),
            ledger: handles.ledger.clone(),
            crew: handles.crew.clone(),
            stop: stop.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            admission: admission.clone(),
            scratch: Mutex::default(),
        }
    }

    pub(crate) fn write_pieces(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        self.stop.check_running()?;
        for piece in pieces {
            if piece.content.is_empty() || piece.content.len() > CHUNK_BYTES_MAX {
                return Err(StoreError::Invalid(format!(
                    "a chunk of {} bytes; chunks have 1 to {CHUNK_BYTES_MAX}",
                    piece.content.len()
                )));
            }
        }
        let total: usize = pieces.iter().map(|piece| piece.content.len()).sum();
        let mean = (total / pieces.len().max(1)).max(1);
        let run = (RUN_BYTES / mean).clamp(RUN_PIECES.start, RUN_PIECES.end - 1);
        let results: Vec<Mutex<Option<Result<Written, StoreError>>, rank::Leaf>> =
            pieces.iter().map(|_| Mutex::new(None)).collect();
        let runs: Vec<(&[Piece<'_>], &[_])> = pieces.chunks(run).zip(results.chunks(run)).collect();
        let rest = Mutex::<_, rank::Leaf>::new(runs.into_iter());
        let work = || {
            let mut scratch = self.scratch.lock().pop().unwrap_or_default();
            loop {
                let Some((pieces, results)) = rest.lock().next() else {
                    break;
                };
                self.write_run(pieces, results, &mut scratch);
            }
            self.scratch.lock().push(scratch);
        };
        match total < PARALLEL_BYTES {
            true => work(),
            false => self.crew.run(pieces.len().div_ceil(run), work),
        }
        results
            .into_iter()
            .map(|slot| slot.into_inner().unwrap_or(Err(StoreError::NoSpace)))
            .collect()
    }

    pub(crate) fn try_samples(&self, content: &[u8], compression: Compression) -> Trial {
        let mut scratch = self.scratch.lock().pop().unwrap_or_default();
        let trial = compression::try_samples(content, compression, &mut scratch);
        self.scratch.lock().push(scratch);
        trial
    }

    /// Writes pieces one after the other; after one that fails no more.
    fn write_run(
        &self,
        pieces: &[Piece<'_>],
        results: &[Mutex<Option<Result<Written, StoreError>>, rank::Leaf>],
        scratch: &mut Scratch,
    ) {
        let hashes: Vec<[u8; 32]> = pieces
            .iter()
            .map(|piece| *blake3::hash(piece.content).as_bytes())
            .collect();
        let mut known = self.find_many(pieces, &hashes);
        for (at, (piece, slot)) in pieces.iter().zip(results).enumerate() {
            let known = known.as_mut().and_then(|known| known.take(at));
            let result = self.write_or_make_room(piece, &hashes[at], known, scratch);
            let failed = result.is_err();
            *slot.lock() = Some(result);
            if failed {
                break;
            }
        }
    }

    /// Writes a piece; when there is no segment, reclaims and compacts until there is one, or there is nothing to be had. What it writes
    /// has its reservation; that counts bytes beyond the reserve in all of the pool, which may lie in segments yet to be emptied, or
    /// have gone with a device since.
    fn write_or_make_room(
        &self,
        piece: &Piece<'_>,
        hash: &[u8; 32],
        known: Option<Known>,
        scratch: &mut Scratch,
    ) -> Result<Written, StoreError> {
        if matches!(piece.placement, Placement::Tier { strict: true, .. }) {
            return self.write_piece(piece, hash, known, scratch);
        }
        // Of its content nothing is claimed while room is made.
        let mut known = known;
        let enough = || self.space.has_segments(piece.privileged);
        let write = || self.write_piece(piece, hash, known.take(), scratch);
        self.admission.retry_with_room(enough, write)
    }

    /// `known`: what was found of its content a moment ago, if that was looked for.
    fn write_piece(
        &self,
        piece: &Piece<'_>,
        hash: &[u8; 32],
        known: Option<Known>,
        scratch: &mut Scratch,
    ) -> Result<Written, StoreError> {
        if piece.dedup != Dedup::On {
            return self.store_piece(piece, *hash, scratch);
        }
        let flushed = match known {
            Some(Known::Equal((id, pin))) => return Ok(Written::new(id, true, pin)),
            Some(Known::Nothing { flushed }) => Some(flushed),
            None => None,
        };
        let _claimed = match self.ledger.claim(hash) {
            Claim::Known(id, pin) => return Ok(Written::new(id, true, pin)),
            Claim::Mine(claimed) => claimed,
        };
        let key = dedup_key(hash, self.options.hint_bytes);
        // What was committed since that look is in memory, mostly.
        let hint = match flushed.and_then(|flushed| self.tree.recent_since(&key, flushed)) {
            Some(hint) => hint,
            None => self.tree.get(&key).map_err(meta_error)?,
        };
        match self.equal_of(hint.as_deref(), hash)? {
            Some((id, pin)) => Ok(Written::new(id, true, pin)),
            None => self.store_piece(piece, *hash, scratch),
        }
    }

    /// What the hints for several pieces lead to, looked up together; `None` if that failed, or is not worth it.
    fn find_many(&self, pieces: &[Piece<'_>], hashes: &[[u8; 32]]) -> Option<Looked> {
        if pieces.len() < RUN_PIECES.start || !pieces.iter().all(|piece| piece.dedup == Dedup::On) {
            return None;
        }
        let keys: Vec<_> = hashes
            .iter()
            .map(|hash| dedup_key(hash, self.options.hint_bytes))
            .collect();
        let flushed = self.tree.flushed_sequence();
        let hints = self.tree.get_many(&keys).ok()?;
        let found = hints.into_iter().zip(hashes);
        let found = found.map(|(hint, hash)| self.equal_of(hint.as_deref(), hash).ok());
        Some(Looked {
            flushed,
            found: found.collect::<Option<_>>()?,
        })
    }

    /// The committed chunk to which a hint leads, held, if it has this hash.
    fn equal_of(&self, hint: Option<&[u8]>, hash: &[u8; 32]) -> Result<Option<Equal>, StoreError> {
        let Some(id) = hint.and_then(|hint| <[u8; 8]>::try_from(hint).ok()) else {
            return Ok(None);
        };
        let id = ChunkId(u64::from_le_bytes(id));
        // Held first, looked at then: a chunk that is held cannot go away any more.
        let Some(pin) = self.ledger.pin(id) else {
            return Ok(None);
        };
        let equal = self
            .catalog
            .record(id)?
            .is_some_and(|record| record.hash == *hash);
        Ok(equal.then_some((id, pin)))
    }

    fn store_piece(
        &self,
        piece: &Piece<'_>,
        hash: [u8; 32],
        scratch: &mut Scratch,
    ) -> Result<Written, StoreError> {
        let content = piece.content;
        let code = compression::compress(content, piece.compression, piece.trial, scratch);
        let payload = if code == compression::RAW {
            content
        } else {
            &scratch.output[..]
        };
        let id = self.catalog.take_chunk_id();
        let header = ChunkHeader {
            id,
            owner: piece.owner,
            compression: code,
            length: content.len() as u32,
            payload: payload.len() as u32,
            hash,
            distance: JOINED,
        };
        let record = ChunkRecord {
            compression: code,
            length: header.length,
            payload: header.payload,
            hash,
            locations: Vec::new(),
            sums: block_sums(content),
        };
        let mut record = Some(record);
        let mut pin = None;
        let key = StreamKey::of(piece.placement);
        let chunk = Chunk {
            header: &header,
            payload,
        };
        self.admission
            .append(key, piece.privileged, &chunk, &mut |locations| {
                if let Some(mut record) = record.take() {
                    record.locations = locations;
                    pin = Some(self.ledger.enter(id, record, piece.dedup != Dedup::Apart));
                }
            })?;
        self.catalog.note_unlogged(header.payload);
        self.space.note_written(u64::from(header.payload));
        // What was appended was placed: no want of space comes here.
        let pin =
            pin.ok_or_else(|| StoreError::Invalid("a chunk was appended, and placed nowhere".into()))?;
        Ok(Written::new(id, false, pin))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use terrace_store::{Batch, Compression, Dedup, Flow, Owner, Store};

    use super::*;
    use crate::ChunkStore;
    use crate::{Options, store_in_memory::store_in_memory};

    fn store() -> Arc<ChunkStore> {
        let options = Options {
            memtable_bytes: 1 << 20,
            block_cache_bytes: 1 << 20,
            ..Options::default()
        };
        store_in_memory(64 << 20, options)
    }

    #[test]
    fn what_was_committed_since_several_were_looked_up_is_found_also_in_tables() {
        let store = store();
        let contents: Vec<Vec<u8>> = (1..=4u8).map(|fill| vec![fill; 5000]).collect();
        let hashes: Vec<[u8; 32]> = contents
            .iter()
            .map(|content| *blake3::hash(content).as_bytes())
            .collect();
        let pieces: Vec<Piece<'_>> = contents
            .iter()
            .map(|content| Piece {
                content,
                compression: Compression::Lz4,
                trial: Trial::Untried,
                dedup: Dedup::On,
                placement: Placement::Landing(Flow::Random),
                owner: Owner::default(),
                privileged: false,
            })
            .collect();
        for in_tables in [false, true] {
            let at = usize::from(in_tables);
            // One writer looks; before he writes, another one has committed the same, and let it go.
            let mut looked = store.chunk_writer().find_many(&pieces, &hashes).unwrap();
            let written = store.write_chunks(&pieces[at..=at]).unwrap().remove(0);
            let first = written.id;
            let mut batch = Batch::new();
            batch.reference(first, 2);
            batch.hold(written);
            store.commit(batch).unwrap();
            if in_tables {
                store.checkpoint().unwrap();
            }
            let known = looked.take(at);
            assert!(matches!(known, Some(Known::Nothing { .. })));
            let mut scratch = Scratch::default();
            let second = store
                .chunk_writer()
                .write_piece(&pieces[at], &hashes[at], known, &mut scratch)
                .unwrap();
            assert_eq!(second.id, first, "stored twice, in tables: {in_tables}");
        }
    }
}
