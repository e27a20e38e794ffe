//! The contract between what keeps bytes safe (chunks, metadata, log: floors 1–3) and what gives them meaning
//! (datasets and above).
//!
//! A [`Store`] holds two things: *records* (an ordered map from byte keys to byte values) and *chunks* (immutable
//! pieces of data of at most [`CHUNK_BYTES_MAX`], named by a [`ChunkId`], counted by references in blocks). Both
//! change only by [`Store::commit`], which is atomic and ordered: after a crash the store is the result of a prefix
//! of the committed batches, and every batch up to a successful [`Store::flush`] is in that prefix.
//!
//! [`MemoryStore`] is the same contract in a few dozen lines of RAM: the reference that tests of the floors above
//! run on, and that the real store (`terrace-chunk`) is compared with.

mod batch;
mod chunk;
mod error;
mod in_memory;
mod memory;
mod pace;
mod rates;
mod space;

pub use batch::Batch;
pub use chunk::{
    BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkFill, ChunkId, ChunkInfo, ChunkPart, Compression, Dedup, Flow, Owner,
    Piece, Placement, RewriteOutcome, Trial, Written,
};
pub use error::StoreError;
pub use memory::MemoryStore;
pub use rates::{MoveRates, tier_bit};
pub use space::{DeviceUsage, Reservation, Space, StoreMemory, TierUsage};

use std::collections::BTreeMap;

use bytes::Bytes;

/// Numbers the batches of a store in the order in which they were committed; grows, survives reopening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

/// Keys whose first byte is below this belong to the store itself; a batch that touches one is refused.
pub const FIRST_USER_TABLE: u8 = 0x20;
/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value, bytes.
pub const VALUE_BYTES_MAX: usize = 128 * 1024;

/// Records and chunks, with atomic, ordered, durable commits. All methods may be called from any thread.
pub trait Store: Send + Sync {
    /// The newest value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// The newest values of `keys`, in their order: many are looked up faster together.
    ///
    /// # Errors
    /// The first one that [`get`](Self::get) of one of them has.
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>, StoreError> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// The records with `from <= key < to` (an empty `to`: no upper bound), ascending, at most `limit` of them.
    /// To go on, call again from the last key with a zero byte appended. Sees all batches committed before the call.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError>;

    /// Hashes, deduplicates, compresses and appends pieces of data; returns one [`Written`] each, in order. Each
    /// `Written` holds its chunk alive until it is passed to a batch that is committed, or dropped. Nothing
    /// survives a crash until a batch that refers to it was flushed. Fails with `NoSpace` when no device has room
    /// beyond the reserve; `privileged` pieces (the mover, metadata of deletions) may use the reserve.
    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError>;

    /// Whether it would pay to compress some content, by samples: for who cuts what compresses into other chunks than the
    /// rest ([`Piece::trial`] passes the answer on). Equal content always has the same answer.
    fn try_compression(&self, _content: &[u8], _compression: Compression) -> Trial {
        Trial::Untried
    }

    /// The whole content of a chunk, verified against its hash.
    fn read_chunk(&self, id: ChunkId) -> Result<Bytes, StoreError>;

    /// Several chunks at once: neighbours on a device are fetched in one read. One result each, in order.
    fn read_chunks(&self, ids: &[ChunkId]) -> Vec<Result<Bytes, StoreError>> {
        ids.iter().map(|id| self.read_chunk(*id)).collect()
    }

    /// Part of a chunk, `offset..offset + length` of its content, verified; reads no more of the device than it
    /// must. Out of range: `Invalid`.
    fn read_chunk_part(&self, id: ChunkId, offset: usize, length: usize) -> Result<Bytes, StoreError> {
        let whole = self.read_chunk(id)?;
        if offset.checked_add(length).is_none_or(|end| end > whole.len()) {
            return Err(StoreError::Invalid(format!(
                "chunk {id} has {} bytes, not {offset}+{length}",
                whole.len()
            )));
        }
        Ok(whole.slice(offset..offset + length))
    }

    /// Several chunks, or parts of chunks, at once, as [`read_chunks`](Self::read_chunks). One result each, in order.
    fn read_chunk_parts(&self, parts: &[ChunkPart]) -> Vec<Result<Bytes, StoreError>> {
        parts
            .iter()
            .map(|part| match &part.range {
                None => self.read_chunk(part.id),
                Some(range) => self.read_chunk_part(part.id, range.start, range.len()),
            })
            .collect()
    }

    /// Fills memory from stretches of chunks, verified, and keeps nothing of them. What cannot be had this way is left with
    /// `None`: who reads it by itself learns why.
    fn fill_from_chunks(&self, fills: &mut [ChunkFill<'_>]) {
        let mut ids: Vec<ChunkId> = fills.iter().map(|fill| fill.id).collect();
        ids.sort_unstable();
        ids.dedup();
        let parts: Vec<ChunkPart> = ids.iter().map(|id| ChunkPart { id: *id, range: None }).collect();
        let contents = self.read_chunk_parts(&parts);
        for fill in fills {
            let content = ids.binary_search(&fill.id).ok().and_then(|at| contents.get(at));
            let Some(Ok(content)) = content else { continue };
            let from = fill.offset.min(content.len());
            let length = fill.target.len().min(content.len() - from);
            fill.target[..length].copy_from_slice(&content[from..from + length]);
            fill.filled = Some(length);
        }
    }

    /// Where a chunk lies and what it takes; `None` if there is no such chunk.
    fn chunk_info(&self, id: ChunkId) -> Result<Option<ChunkInfo>, StoreError>;

    /// The same of each of `ids`, in their order; quicker than one by one, most of all where they ascend.
    fn chunk_infos(&self, ids: &[ChunkId]) -> Result<Vec<Option<ChunkInfo>>, StoreError> {
        ids.iter().map(|id| self.chunk_info(*id)).collect()
    }

    /// The tier of a chunk that was just read, of its first copy, and nothing else: for who counts which tiers answer reads.
    /// May answer for a chunk that is gone.
    fn chunk_tier(&self, id: ChunkId) -> Result<Option<u8>, StoreError> {
        Ok(self.chunk_info(id)?.map(|info| info.tier))
    }

    /// Applies a batch: visible to every later call at once, durable after `flush` of the returned sequence.
    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError>;

    /// Returns when everything up to `sequence` is durable. Concurrent calls share one device flush. After a
    /// failure the store accepts no more commits ([`StoreError::Stopped`]): what failed is never later reported
    /// as a success.
    fn flush(&self, sequence: Sequence) -> Result<(), StoreError>;

    /// Returns an error if work that began at `since`, monotonic nanoseconds, may be blocked by a silent device. Callers that wait for another thread's work
    /// poll this, so that they do not wait as long as the kernel does.
    fn check_answers(&self, _since: u64) -> Result<(), StoreError> {
        Ok(())
    }

    /// The sequence of the newest committed batch.
    fn newest(&self) -> Sequence;

    /// The number that no chunk has which was made until now: those of chunks made later are not below it.
    fn next_chunk(&self) -> ChunkId {
        ChunkId(u64::MAX)
    }

    /// Whether the pool's format version has preallocated ranges.
    fn has_preallocation(&self) -> bool {
        true
    }

    /// Sets room aside for `bytes` of data that will be written; `NoSpace` when the pool could not hold them.
    /// Dropping the reservation gives the room back. This is how ENOSPC reaches the writer and not the flusher.
    fn reserve(&self, bytes: u64) -> Result<Reservation, StoreError> {
        self.reserve_beside(bytes, &|| 0)
    }

    /// The same for somebody for whom `own` bytes are set aside already: these do not stand in the way of the new ones, even
    /// if more is set aside in all than there is room for. `own` is asked again after each wait.
    fn reserve_beside(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError>;

    /// The same as a last resort of somebody to whom the room was promised: some of the reserve may be used, if metadata
    /// grew into what was set aside.
    fn reserve_promised(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        self.reserve_beside(bytes, own)
    }

    /// The same for what gives back more than it takes, whatever is set aside: more of the reserve may be used, but for what
    /// bringing back needs itself.
    fn reserve_to_gain(&self, bytes: u64) -> Result<Reservation, StoreError> {
        Ok(self.reserve_always(bytes))
    }

    /// Whether so many eighths of the reserve are left, also once the records in memory lie on devices. Asked before changes that are
    /// taken without room being set aside for them; waits for nothing.
    fn is_reserve_left(&self, _eighths: u64) -> bool {
        true
    }

    /// Works until that is so, or nothing more can be had; whether it is.
    fn restore_reserve(&self, eighths: u64) -> Result<bool, StoreError> {
        Ok(self.is_reserve_left(eighths))
    }

    /// Sets `bytes` aside whether there is room for them or not: nobody else gets room before there is. For what was promised
    /// before, and is being freed.
    fn reserve_always(&self, bytes: u64) -> Reservation;

    /// Sizes and counters, from memory.
    fn space(&self) -> Space;

    /// Room that writers can still get, bytes: of [`Space`] this alone, for those who ask often.
    fn available_bytes(&self) -> u64 {
        self.space().available_bytes
    }

    /// Whether writers, and the commits that they hold up, wait until content sinks for them: whoever is to move it does nothing else
    /// meanwhile, least of all wait for a commit.
    fn waits_for_sinking(&self) -> bool {
        false
    }

    /// The tier where small writes land, if there is too little room there for so many `bytes` of them: of garbage, what is beyond one
    /// part in `garbage_part` of the live content counts as room. On the slowest tier, room beyond what is kept for metadata.
    fn short_landing_tier(&self, _bytes: u64, _garbage_part: u64) -> Option<u8> {
        None
    }

    /// Brings garbage back where small writes land, if they would go to a slower tier for want of it; on the slowest tier who sets room
    /// aside does. Reads, writes and flushes.
    fn bring_garbage_back(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// So many bytes were written anew on these tiers for those who write: their rates count it, and it waited for none.
    fn moved_in_need(&self, _tier_bytes: &BTreeMap<u8, u64>) {}

    /// Rewrites live chunks to `placement` (promotion, demotion, evacuation): the one mechanism of the mover. Chunks
    /// already there, gone, unreadable or on their way elsewhere are counted in the outcome, not moved.
    fn rewrite(&self, ids: &[ChunkId], placement: Placement) -> Result<RewriteOutcome, StoreError>;
}
