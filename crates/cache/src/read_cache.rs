//! `ReadCache`: content of chunks in RAM.
//!
//! Invariants: chunks are immutable, so nothing is ever invalidated; weight is bounded in bytes and the eviction
//! (S3-FIFO, of `quick_cache`) resists scans. A small read of a large chunk that is not cached fetches only the part;
//! the whole chunk is admitted when it is asked for again soon, so that random reads over much data neither amplify
//! reads nor push out what is hot.

use std::{
    hash::{BuildHasherDefault, Hasher},
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use quick_cache::{
    OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};
use terrace_store::{ChunkId, Store, StoreError};

/// Chunks up to this size are always fetched whole, bytes.
const SMALL_BYTES: usize = 16 * 1024;
/// Counters of recent touches.
const TOUCH_SLOTS: usize = 1 << 16;
/// Touches after which a large chunk is fetched whole while there is room.
const TOUCHES_WITH_ROOM: u8 = 2;
/// The same when the cache is full.
const TOUCHES_WHEN_FULL: u8 = 6;
/// Touches after which all counters are halved.
const AGING_INTERVAL: u64 = 4 * TOUCH_SLOTS as u64;

#[derive(Clone)]
struct Size;

impl Weighter<ChunkId, Bytes> for Size {
    fn weight(&self, _: &ChunkId, content: &Bytes) -> u64 {
        content.len() as u64 + 64
    }
}

/// Shards, on every machine the same: what is evicted is a function of what was read, as the simulator needs it.
const SHARDS: usize = 16;

/// Mixes a chunk's number (splitmix64). Numbers are the store's own, so no secret is needed.
#[derive(Clone, Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mut mixed = (self.0 ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = mixed ^ (mixed >> 31);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What the cache did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCacheCounters {
    /// Reads answered from RAM.
    pub hits: u64,
    /// Reads that went to the store.
    pub misses: u64,
    /// Bytes held.
    pub bytes: u64,
}

/// Content of chunks by id.
pub struct ReadCache {
    chunks: Cache<ChunkId, Bytes, Size, BuildHasherDefault<NumberHasher>>,
    capacity_bytes: AtomicU64,
    touches: Box<[AtomicU8]>,
    touched: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl ReadCache {
    /// Holds at most `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        let expected = (capacity_bytes / (64 * 1024)).clamp(64, 1 << 20) as usize;
        let options = OptionsBuilder::new()
            .shards(SHARDS)
            .estimated_items_capacity(expected)
            .weight_capacity(capacity_bytes)
            .build()
            .unwrap_or_else(|_| unreachable!("both required options are given"));
        let chunks = Cache::with_options(
            options,
            Size,
            BuildHasherDefault::default(),
            DefaultLifecycle::default(),
        );
        Self {
            chunks,
            capacity_bytes: AtomicU64::new(capacity_bytes),
            touches: (0..TOUCH_SLOTS).map(|_| AtomicU8::new(0)).collect(),
            touched: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Changes the limit.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        self.capacity_bytes.store(capacity_bytes, Relaxed);
        self.chunks.set_capacity(capacity_bytes);
    }

    /// The content, if it is here.
    pub fn get(&self, id: ChunkId) -> Option<Bytes> {
        let found = self.chunks.get(&id);
        if found.is_some() {
            self.hits.fetch_add(1, Relaxed);
        }
        found
    }

    /// Whether the content is here; does not count as a use.
    pub fn contains(&self, id: ChunkId) -> bool {
        self.chunks.peek(&id).is_some()
    }

    /// Keeps content that was just read or written.
    pub fn insert(&self, id: ChunkId, content: Bytes) {
        self.chunks.insert(id, content);
    }

    /// The whole chunk.
    pub fn whole(&self, store: &dyn Store, id: ChunkId) -> Result<Bytes, StoreError> {
        if let Some(content) = self.get(id) {
            return Ok(content);
        }
        self.misses.fetch_add(1, Relaxed);
        let content = store.read_chunk(id)?;
        self.insert(id, content.clone());
        Ok(content)
    }

    /// `content[offset..offset + length]`, cut at the content's end (empty if `offset` is behind it). `chunk_bytes`
    /// is how large the chunk is at most, as far as the caller knows; `exact` that a part of just this range exists.
    pub fn part(
        &self,
        store: &dyn Store,
        id: ChunkId,
        offset: usize,
        length: usize,
        chunk_bytes: usize,
    ) -> Result<Bytes, StoreError> {
        let cut = |content: Bytes| {
            let from = offset.min(content.len());
            content.slice(from..(offset.saturating_add(length)).min(content.len()))
        };
        if let Some(content) = self.get(id) {
            return Ok(cut(content));
        }
        if length * 2 >= chunk_bytes || chunk_bytes <= SMALL_BYTES || self.touch(id) {
            return self.whole(store, id).map(cut);
        }
        self.misses.fetch_add(1, Relaxed);
        match store.read_chunk_part(id, offset, length) {
            // The last chunk of a file is shorter than its blocks: fetch it whole and cut.
            Err(StoreError::Invalid(_)) => self.whole(store, id).map(cut),
            other => other,
        }
    }

    /// Brings chunks in that will be asked for soon: those not here are fetched in one call, so that neighbours on
    /// a device are read together. Errors are left to the read that really needs the chunk.
    pub fn read_ahead(&self, store: &dyn Store, ids: &[ChunkId]) {
        let missing: Vec<ChunkId> = ids.iter().copied().filter(|id| !self.contains(*id)).collect();
        if missing.is_empty() {
            return;
        }
        self.misses.fetch_add(missing.len() as u64, Relaxed);
        for (id, content) in missing.iter().zip(store.read_chunks(&missing)) {
            if let Ok(content) = content {
                self.insert(*id, content);
            }
        }
    }

    /// Hits, misses, bytes.
    pub fn counters(&self) -> ReadCacheCounters {
        ReadCacheCounters {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            bytes: self.chunks.weight(),
        }
    }

    /// Counts a touch; whether the chunk has earned its place.
    fn touch(&self, id: ChunkId) -> bool {
        let slot = (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % TOUCH_SLOTS;
        if self.touched.fetch_add(1, Relaxed) % AGING_INTERVAL == AGING_INTERVAL - 1 {
            self.touches
                .iter()
                .for_each(|count| count.store(count.load(Relaxed) / 2, Relaxed));
        }
        let count = self.touches[slot].load(Relaxed).saturating_add(1);
        self.touches[slot].store(count, Relaxed);
        let room = self.chunks.weight() + SMALL_BYTES as u64 * 8 < self.capacity_bytes.load(Relaxed);
        count
            >= if room {
                TOUCHES_WITH_ROOM
            } else {
                TOUCHES_WHEN_FULL
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_store::{Compression, MemoryStore, Owner, Piece, Placement, Written};

    fn chunk(store: &MemoryStore, content: &[u8]) -> Written {
        let piece = Piece {
            content,
            compression: Compression::Off,
            dedup: false,
            placement: Placement::Landing(Default::default()),
            owner: Owner::default(),
            privileged: false,
        };
        store.write_chunks(&[piece]).unwrap().remove(0)
    }

    #[test]
    fn a_large_chunk_is_admitted_on_its_second_touch() {
        let store = MemoryStore::new(1 << 20);
        let content: Vec<u8> = (0..128 * 1024u32).map(|at| at as u8).collect();
        let written = chunk(&store, &content);
        let cache = ReadCache::new(1 << 20);
        let part = cache.part(&store, written.id, 4096, 4096, content.len()).unwrap();
        assert_eq!(&part[..], &content[4096..8192]);
        assert!(!cache.contains(written.id));
        cache.part(&store, written.id, 8192, 4096, content.len()).unwrap();
        assert!(cache.contains(written.id));
    }

    #[test]
    fn a_short_last_chunk_is_cut() {
        let store = MemoryStore::new(1 << 20);
        let written = chunk(&store, b"tail");
        let cache = ReadCache::new(1 << 20);
        assert_eq!(&cache.part(&store, written.id, 2, 4096, 4096).unwrap()[..], b"il");
        assert_eq!(
            cache.part(&store, written.id, 9, 4096, 128 << 10).unwrap().len(),
            0
        );
    }

    #[test]
    fn the_weight_stays_below_the_capacity() {
        let store = MemoryStore::new(64 << 20);
        let cache = ReadCache::new(1 << 20);
        for at in 0..64u8 {
            let written = chunk(&store, &vec![at + 1; 128 * 1024]);
            cache.read_ahead(&store, &[written.id]);
        }
        assert!(cache.counters().bytes <= 1 << 20);
        assert!(cache.counters().bytes > 0);
    }
}
