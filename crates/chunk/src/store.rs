//! `ChunkStore`: the real store.

use std::sync::Arc;

use bytes::Bytes;
use terrace_pool::{Pool, SegmentId};
use terrace_store::{
    Batch, ChunkId, ChunkInfo, Piece, Placement, Reservation, RewriteOutcome, Sequence, Space, Store,
    StoreError, Written,
};

use crate::{AuditReport, EvacuateProgress, FoundChunk, Options, ScrubCursor, ScrubProgress, Step};

/// Chunks and records on a pool. All methods may be called from any thread.
pub struct ChunkStore {
    pool: Arc<Pool>,
}

fn unfinished() -> StoreError {
    StoreError::Invalid("not built yet".into())
}

impl ChunkStore {
    /// Makes an empty store on a new pool and writes its first root.
    pub fn create(pool: Arc<Pool>, _options: Options) -> Result<Arc<Self>, StoreError> {
        Ok(Arc::new(Self { pool }))
    }

    /// Opens the store of a pool: newest root, then replay of the log. Takes time in proportion to the log and the
    /// number of segments, not to the data.
    pub fn open(pool: Arc<Pool>, options: Options) -> Result<Arc<Self>, StoreError> {
        Self::create(pool, options)
    }

    /// The pool below.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// One bounded step of background work: checkpoint, merge, reclaim, release, compaction, whatever is most
    /// needed. Any number of threads may call it; one does the work, the others get `Idle`.
    pub fn step(&self) -> Result<Step, StoreError> {
        Ok(Step::Idle)
    }

    /// Writes a checkpoint now: everything committed before the call is in the root afterwards and the log before
    /// it is given back.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        Err(unfinished())
    }

    /// A last checkpoint, before the pool is exported or the process ends. Later commits fail with `Stopped`.
    pub fn close(&self) -> Result<(), StoreError> {
        Err(unfinished())
    }

    /// Why the store accepts no more commits, if it does not.
    pub fn stopped(&self) -> Option<Arc<str>> {
        None
    }

    /// Reads and verifies about `budget_bytes` of live chunk copies and metadata, repairs what has a good copy.
    pub fn scrub_step(
        &self,
        _cursor: &mut ScrubCursor,
        _budget_bytes: u64,
    ) -> Result<ScrubProgress, StoreError> {
        Err(unfinished())
    }

    /// Walks everything: counts, live bytes, locations, overlaps. `expected` (from the floor above) is asked for
    /// each chunk's references: it calls back with (chunk, blocks), any number of times per chunk. Changes nothing;
    /// meant for a store at rest (tests, `verify`).
    #[allow(clippy::type_complexity)]
    pub fn audit(
        &self,
        _expected: Option<&dyn Fn(&mut dyn FnMut(ChunkId, i64)) -> Result<(), StoreError>>,
    ) -> Result<AuditReport, StoreError> {
        Err(unfinished())
    }

    /// The live chunks of a segment.
    pub fn chunks_in_segment(&self, _segment: SegmentId) -> Result<Vec<ChunkId>, StoreError> {
        Err(unfinished())
    }

    /// Moves about `budget_bytes` off a device that the pool was told to empty (so that nothing new lands there).
    pub fn evacuate_step(&self, _device: u16, _budget_bytes: u64) -> Result<EvacuateProgress, StoreError> {
        Err(unfinished())
    }

    /// Lists the self-describing chunks of one segment of a pool whose tables are gone; needs no open store.
    pub fn walk_segment(_pool: &Pool, _segment: SegmentId) -> Result<Vec<FoundChunk>, StoreError> {
        Err(unfinished())
    }
}

impl Store for ChunkStore {
    fn get(&self, _key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Err(unfinished())
    }
    fn scan(&self, _from: &[u8], _to: &[u8], _limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        Err(unfinished())
    }
    fn write_chunks(&self, _pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        Err(unfinished())
    }
    fn read_chunk(&self, _id: ChunkId) -> Result<Bytes, StoreError> {
        Err(unfinished())
    }
    fn chunk_info(&self, _id: ChunkId) -> Result<Option<ChunkInfo>, StoreError> {
        Err(unfinished())
    }
    fn commit(&self, _batch: Batch) -> Result<Sequence, StoreError> {
        Err(unfinished())
    }
    fn flush(&self, _sequence: Sequence) -> Result<(), StoreError> {
        Err(unfinished())
    }
    fn newest(&self) -> Sequence {
        Sequence(0)
    }
    fn reserve(&self, _bytes: u64) -> Result<Reservation, StoreError> {
        Err(unfinished())
    }
    fn space(&self) -> Space {
        Space::default()
    }
    fn rewrite(&self, _ids: &[ChunkId], _placement: Placement) -> Result<RewriteOutcome, StoreError> {
        Err(unfinished())
    }
}
