//! The contract of a store, as the components keep it.

use std::collections::BTreeMap;

use bytes::Bytes;
use terrace_meta::Value;
use terrace_store::{
    Batch, ChunkFill, ChunkId, ChunkInfo, ChunkPart, Compression, Piece, Placement, Reservation,
    RewriteOutcome, Sequence, Space, Store, StoreError, Trial, Written,
};

use super::ChunkStore;
use crate::{
    errors::meta_error,
    space::{Purpose, StreamKey},
};

impl Store for ChunkStore {
    fn check_answers(&self, since: u64) -> Result<(), StoreError> {
        self.journal.refuse_to_wait_for(since)
    }

    fn waits_for_sinking(&self) -> bool {
        self.admission.is_demotion_waited_for()
    }

    fn short_landing_tier(&self, bytes: u64, garbage_part: u64) -> Option<u8> {
        self.space.short_tier_for(bytes, garbage_part)
    }

    fn bring_garbage_back(&self) -> Result<(), StoreError> {
        self.admission.relieve(StreamKey::Random, &|| false)
    }

    fn moved_in_need(&self, tier_bytes: &BTreeMap<u8, u64>) {
        self.space.rates().take_in_need(tier_bytes);
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.handles.tree.get(key).map_err(meta_error)
    }

    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let values = self.handles.tree.get_many(keys).map_err(meta_error)?;
        let copy = |value: Value| Bytes::copy_from_slice(&value);
        Ok(values.into_iter().map(|value| value.map(copy)).collect())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.handles.tree.scan(from, to, limit).map_err(meta_error)
    }

    fn try_compression(&self, content: &[u8], compression: Compression) -> Trial {
        self.chunk_writer.try_samples(content, compression)
    }

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        self.chunk_writer.write_pieces(pieces)
    }

    fn read_chunk(&self, id: ChunkId) -> Result<Bytes, StoreError> {
        self.reader.read_whole(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Vec<Result<Bytes, StoreError>> {
        let whole = |id: &ChunkId| ChunkPart { id: *id, range: None };
        self.reader.read_parts(&ids.iter().map(whole).collect::<Vec<_>>())
    }

    fn read_chunk_parts(&self, parts: &[ChunkPart]) -> Vec<Result<Bytes, StoreError>> {
        self.reader.read_parts(parts)
    }

    fn fill_from_chunks(&self, fills: &mut [ChunkFill<'_>]) {
        self.reader.read_into(fills);
    }

    fn read_chunk_part(&self, id: ChunkId, offset: usize, length: usize) -> Result<Bytes, StoreError> {
        self.reader.read_part(id, offset, length)
    }

    fn chunk_info(&self, id: ChunkId) -> Result<Option<ChunkInfo>, StoreError> {
        self.reader.info(id)
    }

    fn chunk_infos(&self, ids: &[ChunkId]) -> Result<Vec<Option<ChunkInfo>>, StoreError> {
        self.reader.infos(ids)
    }

    fn chunk_tier(&self, id: ChunkId) -> Result<Option<u8>, StoreError> {
        self.reader.tier_of(id)
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.admission.commit_batch(batch)
    }

    fn flush(&self, sequence: Sequence) -> Result<(), StoreError> {
        self.journal.flush_until(sequence.0)
    }

    fn newest(&self) -> Sequence {
        Sequence(self.catalog.newest())
    }

    fn reserve_beside(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        self.admission.set_aside(bytes, own, Purpose::Content)
    }

    fn reserve_promised(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        self.admission.set_aside(bytes, own, Purpose::Promised)
    }

    fn reserve_to_gain(&self, bytes: u64) -> Result<Reservation, StoreError> {
        let all = || self.space.reserved();
        self.admission.set_aside(bytes, &all, Purpose::Gain)
    }

    fn is_reserve_left(&self, eighths: u64) -> bool {
        self.space.has_reserve(eighths)
    }

    fn restore_reserve(&self, eighths: u64) -> Result<bool, StoreError> {
        self.stop.check_running()?;
        self.admission.make_room(|| self.space.has_reserve(eighths))
    }

    fn next_chunk(&self) -> ChunkId {
        ChunkId(self.catalog.next_chunk_id())
    }

    fn has_preallocation(&self) -> bool {
        self.journal.format().has_preallocation()
    }

    fn reserve_always(&self, bytes: u64) -> Reservation {
        self.space.reserve_always(bytes)
    }

    fn space(&self) -> Space {
        self.measure()
    }

    fn available_bytes(&self) -> u64 {
        self.space.available()
    }

    fn rewrite(&self, ids: &[ChunkId], placement: Placement) -> Result<RewriteOutcome, StoreError> {
        let fits = match placement {
            Placement::Tier { tier, strict: true } => self.space.may_move_to(tier),
            _ => true,
        };
        if !fits || self.journal.is_log_short() {
            return Err(StoreError::NoSpace);
        }
        self.relocator.move_chunks(ids, placement, None)
    }
}
