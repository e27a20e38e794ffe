//! `ReadCache`: content of chunks in RAM.
//!
//! Invariants: chunks are immutable, so nothing is ever invalidated; weight is bounded in bytes and the eviction
//! (S3-FIFO, of `quick_cache`) resists scans. A small read of a large chunk that is not cached fetches and keeps only the
//! blocks asked for; the whole chunk is admitted when it is asked for again while there is room (`second_touch.rs`). In a full cache
//! never, however often it is asked for: blocks that are in use stay by themselves, and what else a whole chunk brings pushes out as much
//! of others, so that nothing is gained for what is read. Large reads
//! pass a full cache by, and are kept when they come again (`past.rs`). What was read ahead has a share of its own (`prefetched.rs`) until its reader comes.

pub(crate) mod in_order;
mod past;
mod prefetch_threads;
mod prefetched;
mod rescue;
mod scan_bypass;
mod second_touch;
mod sizes;

use std::{
    hash::BuildHasherDefault,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use quick_cache::{
    OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};
use terrace_codec::NumberHasher;
use terrace_store::{BLOCK_BYTES, ChunkId, ChunkPart, Store, StoreError};
use terrace_sync::{Mutex, rank};

pub use self::prefetch_threads::ReadAhead;
use self::{
    prefetched::{Ahead, Used},
    rescue::rescue,
    scan_bypass::Passing,
    second_touch::Touches,
    sizes::Sizes,
};

/// Tails of files up to this size are fetched whole at once, bytes.
const SMALL_BYTES: usize = 16 * 1024;
/// A read of this much of a chunk fetches all of it, bytes.
const LARGE_PART_BYTES: usize = 32 * 1024;

/// Part of the cache that is for what was read ahead, and the most of that, bytes.
const AHEAD_PART: u64 = 8;
const AHEAD_BYTES_MAX: u64 = 32 << 20;

/// A chunk, or one block of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    chunk: ChunkId,
    block: u32,
}

impl Key {
    /// All of it.
    fn whole(chunk: ChunkId) -> Self {
        Self {
            chunk,
            block: u32::MAX,
        }
    }

    fn block(chunk: ChunkId, block: usize) -> Self {
        Self {
            chunk,
            block: block as u32,
        }
    }
}

#[derive(Clone)]
struct Size;

impl Weighter<Key, Bytes> for Size {
    fn weight(&self, _: &Key, content: &Bytes) -> u64 {
        content.len() as u64 + ENTRY_BYTES
    }
}

/// What an entry takes beside its content, bytes.
const ENTRY_BYTES: u64 = 64;
/// Of the capacity, the part for the names of what was evicted lately: they are half as many as blocks would fit, and take
/// little more than an entry each. What is read again while its name is known gets into a full cache, everything else
/// leaves it soon: remembered by the number of large chunks, single blocks would never get in.
const NAMES_PART: u64 = 100;
/// Shards, on every machine the same: what is evicted is a function of what was read, as the simulator needs it. Fewer
/// where each would hold less than this, bytes: a chunk must fit into one, and others beside it.
const SHARDS: (u64, u64) = (2, 16);
const SHARD_BYTES_MIN: u64 = 2 << 20;

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

/// What a read was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// How much there was up to the content's end.
    pub bytes: usize,
    /// It was not in RAM.
    pub fetched: bool,
}

/// What a read found in RAM.
enum Look {
    Filled(Filled),
    /// Nothing: these blocks of the chunk, bytes, are to be fetched.
    Blocks(Range<usize>),
}

/// Fills `target` with the content from `offset` on, up to its end; returns how much there was.
fn cut(content: &[u8], offset: usize, target: &mut [u8]) -> usize {
    let from = offset.min(content.len());
    let length = target.len().min(content.len() - from);
    target[..length].copy_from_slice(&content[from..from + length]);
    length
}

/// Whether a read of `length` bytes of a chunk of at most `chunk_bytes` takes all of it.
fn is_wanted_whole(chunk_bytes: usize, length: usize) -> bool {
    let large = length >= LARGE_PART_BYTES && length * 2 >= chunk_bytes;
    // What ends within a block is the end of a file: there is no part to be had.
    let tail = chunk_bytes <= SMALL_BYTES && !length.is_multiple_of(BLOCK_BYTES);
    large || tail
}

/// What is for content that was read ahead, and what is left for other content, bytes.
fn shares(capacity_bytes: u64) -> (u64, u64) {
    let ahead = (capacity_bytes / AHEAD_PART).min(AHEAD_BYTES_MAX);
    (ahead, capacity_bytes - ahead - capacity_bytes / NAMES_PART)
}

/// Content of chunks by id.
pub struct ReadCache {
    chunks: Cache<Key, Bytes, Size, BuildHasherDefault<NumberHasher>>,
    ahead: Ahead,
    capacity_bytes: AtomicU64,
    sizes: Mutex<Sizes, rank::cache::ReadCache>,
    touches: Touches,
    passing: Passing,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl ReadCache {
    /// Holds at most `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        let (ahead_bytes, capacity_bytes) = shares(capacity_bytes);
        let blocks = (capacity_bytes / (BLOCK_BYTES as u64 + ENTRY_BYTES)).max(64);
        let shards = (capacity_bytes / SHARD_BYTES_MIN).clamp(SHARDS.0, SHARDS.1);
        let options = OptionsBuilder::new()
            .shards(1 << shards.ilog2())
            .estimated_items_capacity(usize::try_from(blocks).unwrap_or(usize::MAX))
            .ghost_allocation(sizes::NAMES_RATIO)
            .weight_capacity(capacity_bytes)
            .build()
            .unwrap_or_else(|_| unreachable!("both required options are given"));
        let chunks = Cache::with_options(
            options,
            Size,
            BuildHasherDefault::default(),
            DefaultLifecycle::default(),
        );
        let sizes = Sizes::new(chunks.num_shards() as u64, blocks, capacity_bytes);
        Self {
            chunks,
            ahead: Ahead::new(ahead_bytes),
            capacity_bytes: AtomicU64::new(capacity_bytes),
            sizes: Mutex::new(sizes),
            touches: Touches::new(),
            passing: Passing::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Changes the limit to what `capacity_bytes` says; what is too much leaves at once. It is asked while nobody else changes the
    /// limit, so that the last of several who do so at a time sets what is right then.
    pub fn set_capacity(&self, capacity_bytes: impl FnOnce() -> u64) {
        let mut sizes = self.sizes.lock();
        let (ahead_bytes, wanted_bytes) = shares(capacity_bytes());
        let used = self.ahead.set_capacity(ahead_bytes);
        let capacity_bytes = sizes.change(wanted_bytes);
        self.capacity_bytes.store(capacity_bytes, Relaxed);
        self.chunks.set_capacity(capacity_bytes);
        drop(sizes);
        self.insert_all(used);
    }

    /// Drops all content, for who wants reads to come from devices: tests and the simulator.
    pub fn clear(&self) {
        let sizes = self.sizes.lock();
        let ahead_bytes = self.ahead.capacity_bytes();
        drop((self.ahead.set_capacity(0), self.ahead.set_capacity(ahead_bytes)));
        self.chunks.clear();
        drop(sizes);
    }

    /// The content, if it is here.
    pub fn get(&self, id: ChunkId) -> Option<Bytes> {
        let found = self.chunks.get(&Key::whole(id)).or_else(|| self.ahead.get(id));
        if found.is_some() {
            self.hits.fetch_add(1, Relaxed);
        }
        found
    }

    /// A block of a chunk, if it is here; does not count as a use. Shorter than a block where the chunk ends in it.
    pub fn block(&self, id: ChunkId, block: usize) -> Option<Bytes> {
        if let Some(content) = self.chunks.peek(&Key::whole(id)) {
            let from = (block * BLOCK_BYTES).min(content.len());
            let bytes = BLOCK_BYTES.min(content.len() - from);
            return (bytes > 0).then(|| content.slice(from..from + bytes));
        }
        self.chunks.peek(&Key::block(id, block))
    }

    /// A block of a chunk has moved to a chunk of its own, with others or alone: what was kept of it is read there from now on.
    pub fn moved(&self, (old, block): (ChunkId, usize), new: ChunkId, content: Bytes) {
        self.chunks.remove(&Key::block(old, block));
        self.insert(new, content);
    }

    /// Whether the content is here; does not count as a use.
    pub fn contains(&self, id: ChunkId) -> bool {
        self.chunks.peek(&Key::whole(id)).is_some() || self.ahead.has(id)
    }

    /// Keeps content that was just read or written.
    pub fn insert(&self, id: ChunkId, content: Bytes) {
        self.chunks.insert(Key::whole(id), content);
    }

    /// What was read ahead, and then read, belongs to the cache.
    fn insert_all(&self, used: Used) {
        for (id, content) in used {
            self.insert(id, content);
        }
    }

    /// Fills `target` from the whole chunk, which is not here.
    fn fetch_whole(
        &self,
        store: &dyn Store,
        id: ChunkId,
        offset: usize,
        target: &mut [u8],
    ) -> Result<Filled, StoreError> {
        self.misses.fetch_add(1, Relaxed);
        let bytes = match store.read_chunk(id) {
            Ok(content) => {
                self.insert(id, content.clone());
                cut(&content, offset, target)
            }
            Err(error) => rescue(store, id, offset, target, error)?,
        };
        Ok(Filled { bytes, fetched: true })
    }

    /// Fills `target` with the content from `offset` on.
    /// `chunk_bytes` is how large the chunk is at most, as far as the caller knows.
    pub fn part(
        &self,
        store: &dyn Store,
        id: ChunkId,
        offset: usize,
        chunk_bytes: usize,
        target: &mut [u8],
    ) -> Result<Filled, StoreError> {
        match self.look(store, id, offset, chunk_bytes, target)? {
            Look::Filled(filled) => Ok(filled),
            Look::Blocks(blocks) => self.fetch_blocks(store, id, offset, blocks, target),
        }
    }

    /// Fills `target` from RAM, or with the whole chunk where that is wanted; else says which blocks of it are.
    fn look(
        &self,
        store: &dyn Store,
        id: ChunkId,
        offset: usize,
        chunk_bytes: usize,
        target: &mut [u8],
    ) -> Result<Look, StoreError> {
        let here = |bytes| {
            Look::Filled(Filled {
                bytes,
                fetched: false,
            })
        };
        if let Some(content) = self.get(id) {
            return Ok(here(cut(&content, offset, target)));
        }
        if is_wanted_whole(chunk_bytes, target.len()) {
            return self.fetch_whole(store, id, offset, target).map(Look::Filled);
        }
        if self.blocks(id, offset, target) {
            self.hits.fetch_add(1, Relaxed);
            return Ok(here(target.len()));
        }
        match self.blocks_wanted(id, offset, chunk_bytes, target.len()) {
            Some(blocks) => Ok(Look::Blocks(blocks)),
            None => self.fetch_whole(store, id, offset, target).map(Look::Filled),
        }
    }

    /// Fills `target` from blocks of a chunk that are not here.
    fn fetch_blocks(
        &self,
        store: &dyn Store,
        id: ChunkId,
        offset: usize,
        Range { start, end }: Range<usize>,
        target: &mut [u8],
    ) -> Result<Filled, StoreError> {
        match store.read_chunk_part(id, start, end - start) {
            // The last chunk of a file is shorter than its blocks: fetch it whole and cut.
            Err(StoreError::Invalid(_)) => self.fetch_whole(store, id, offset, target),
            Err(error) => Ok(Filled {
                bytes: rescue(store, id, offset, target, error)?,
                fetched: true,
            }),
            Ok(part) => Ok(self.take_blocks(id, offset, start, &part, target)),
        }
    }

    /// Fills `target` from blocks that were read, from `start` on, and keeps them.
    fn take_blocks(
        &self,
        id: ChunkId,
        offset: usize,
        start: usize,
        part: &Bytes,
        target: &mut [u8],
    ) -> Filled {
        self.misses.fetch_add(1, Relaxed);
        target.copy_from_slice(&part[offset - start..offset - start + target.len()]);
        self.insert_blocks(id, start, part);
        Filled {
            bytes: target.len(),
            fetched: true,
        }
    }

    /// Which blocks a read of a part wants, if not the whole chunk, as it was asked for often enough.
    fn blocks_wanted(
        &self,
        id: ChunkId,
        offset: usize,
        chunk_bytes: usize,
        length: usize,
    ) -> Option<Range<usize>> {
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = (offset + length).next_multiple_of(BLOCK_BYTES).min(chunk_bytes);
        // Of a chunk that has nothing more, as far as the caller knows, there is no more to be had.
        let earned = end.saturating_sub(start) < chunk_bytes && self.touch(id);
        (!earned).then_some(start..end.max(start))
    }

    /// Keeps blocks of a chunk, of which `part` has those from `start` on.
    fn insert_blocks(&self, id: ChunkId, start: usize, part: &Bytes) {
        for (index, block) in part.chunks_exact(BLOCK_BYTES).enumerate() {
            // A copy, unless there is nothing else in that memory: or one block would keep all of it.
            let alone = part.len() == BLOCK_BYTES;
            let block = if alone {
                part.clone()
            } else {
                Bytes::copy_from_slice(block)
            };
            let key = Key::block(id, start / BLOCK_BYTES + index);
            self.chunks.insert(key, block);
        }
    }

    /// What is to be fetched so that a read, as [`part`](Self::part), finds it; `None` if it is here.
    pub fn missing(
        &self,
        id: ChunkId,
        offset: usize,
        chunk_bytes: usize,
        length: usize,
    ) -> Option<ChunkPart> {
        if self.contains(id) {
            return None;
        }
        if is_wanted_whole(chunk_bytes, length) {
            return Some(ChunkPart { id, range: None });
        }
        let mut blocks = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES);
        if blocks.all(|block| self.chunks.peek(&Key::block(id, block)).is_some()) {
            return None;
        }
        let range = self.blocks_wanted(id, offset, chunk_bytes, length);
        Some(ChunkPart { id, range })
    }

    /// Fills `target` from single blocks, if all of them are here.
    fn blocks(&self, id: ChunkId, offset: usize, target: &mut [u8]) -> bool {
        let mut done = 0;
        while done < target.len() {
            let at = offset + done;
            let Some(block) = self.chunks.get(&Key::block(id, at / BLOCK_BYTES)) else {
                return false;
            };
            let from = at % BLOCK_BYTES;
            let length = (BLOCK_BYTES - from).min(target.len() - done);
            target[done..done + length].copy_from_slice(&block[from..from + length]);
            done += length;
        }
        true
    }

    /// Hits, misses, bytes.
    pub fn counters(&self) -> ReadCacheCounters {
        ReadCacheCounters {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            bytes: self.chunks.weight() + self.ahead.bytes(),
        }
    }

    /// Whether there is room for more before something is evicted.
    fn has_room(&self) -> bool {
        // Each shard evicts for itself: a cache that is full is so on average, not to the last byte.
        self.chunks.weight() < self.capacity_bytes.load(Relaxed) / 4 * 3
    }

    /// Whether the chunk has earned its place with this touch.
    fn touch(&self, id: ChunkId) -> bool {
        self.has_room() && self.touches.count(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_store::{Compression, Dedup, MemoryStore, Owner, Piece, Placement, Trial, Written};

    fn chunk(store: &MemoryStore, content: &[u8]) -> Written {
        let piece = Piece {
            content,
            compression: Compression::Off,
            trial: Trial::Untried,
            dedup: Dedup::Off,
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
        let mut part = [0; 4096];
        cache
            .part(&store, written.id, 4096, content.len(), &mut part)
            .unwrap();
        assert_eq!(&part[..], &content[4096..8192]);
        assert!(!cache.contains(written.id));
        cache
            .part(&store, written.id, 8192, content.len(), &mut part)
            .unwrap();
        assert!(cache.contains(written.id));
    }

    #[test]
    fn a_short_last_chunk_is_cut() {
        let store = MemoryStore::new(1 << 20);
        let written = chunk(&store, b"tail");
        let cache = ReadCache::new(1 << 20);
        let mut part = [0; 4096];
        let filled = |bytes, fetched| Filled { bytes, fetched };
        let first = cache.part(&store, written.id, 2, 4096, &mut part).unwrap();
        assert_eq!((first, &part[..2]), (filled(2, true), &b"il"[..]));
        assert_eq!(
            cache.part(&store, written.id, 9, 128 << 10, &mut part).unwrap(),
            filled(0, false)
        );
    }

    /// With the cache full of other chunks, blocks are kept by themselves: asked for again they are not fetched again, and
    /// nothing else of the chunk is.
    #[test]
    fn a_full_cache_keeps_the_blocks_that_were_asked_for() {
        let store = MemoryStore::new(64 << 20);
        let content =
            |seed: u32| -> Vec<u8> { (0..128 * 1024u32).map(|at| (at / 4096 + seed) as u8).collect() };
        let cache = ReadCache::new(2 << 20);
        for seed in 0..64 {
            cache.read_ahead(&store, vec![chunk(&store, &content(100 + seed)).id]);
        }
        let wanted = content(7);
        let id = chunk(&store, &wanted).id;
        let mut part = vec![0; 5000];
        for _ in 0..4 {
            let before = cache.counters();
            // Two blocks, from within the first.
            cache.part(&store, id, 8000, wanted.len(), &mut part).unwrap();
            assert_eq!(part, &wanted[8000..13000]);
            let now = cache.counters();
            assert!(now.hits > before.hits || before.misses == 64, "asked for again");
        }
        assert_eq!(cache.counters().misses, 65);
        for block in 4..32 {
            let part = &mut part[..4096];
            cache.part(&store, id, block * 4096, wanted.len(), part).unwrap();
            assert!(!cache.contains(id));
        }
        assert_eq!(cache.counters().misses, 65 + 28);
    }

    #[test]
    fn parts_that_are_fetched_together_are_found_by_the_reads_that_want_them() {
        let store = MemoryStore::new(64 << 20);
        let content: Vec<u8> = (0..128 * 1024u32).map(|at| (at / 1000) as u8).collect();
        let (one, two) = (chunk(&store, &content).id, chunk(&store, b"tail").id);
        // Full, so that only blocks are asked for.
        let cache = ReadCache::new(2 << 20);
        for seed in 0..64u8 {
            cache.read_ahead(&store, vec![chunk(&store, &vec![seed; 128 * 1024]).id]);
        }
        let missing = |offset, length| cache.missing(one, offset, content.len(), length);
        let parts: Vec<ChunkPart> = [missing(5000, 100), missing(4096, 8192), missing(40_960, 4096)]
            .into_iter()
            .flatten()
            .chain(cache.missing(two, 0, 4096, 3))
            .collect();
        let ranges: Vec<_> = parts.iter().map(|part| part.range.clone()).collect();
        assert_eq!(
            ranges,
            [Some(4096..8192), Some(4096..12_288), Some(40_960..45_056), None]
        );
        let before = cache.counters().misses;
        let fetched = cache.fetch(&store, parts);
        assert_eq!(
            cache.counters().misses,
            before + 3,
            "what lies within another part comes with it"
        );
        let mut target = [0; 6000];
        for (offset, length) in [(5000, 100), (4096, 6000), (6000, 6000), (41_000, 4000)] {
            assert_eq!(fetched.part(one, offset, &mut target[..length]), Some(length));
            assert_eq!(target[..length], content[offset..offset + length]);
        }
        // What was not asked for, or only in part.
        for (id, offset, length) in [
            (one, 0, 100),
            (one, 12_000, 1000),
            (one, 45_000, 100),
            (ChunkId(999), 0, 1),
        ] {
            assert_eq!(fetched.part(id, offset, &mut target[..length]), None);
        }
        assert_eq!(fetched.part(two, 1, &mut target), Some(3));
        assert_eq!(&target[..3], b"ail");
        assert_eq!(
            cache.missing(one, 4096, content.len(), 8192),
            None,
            "it is here now"
        );
    }

    /// Reads chunks of a size in order; how many of them were here.
    fn hits(cache: &ReadCache, ids: Range<u64>, content: &Bytes) -> u64 {
        let is_here = |id: &u64| {
            let found = cache.get(ChunkId(*id)).is_some();
            if !found {
                cache.insert(ChunkId(*id), content.clone());
            }
            found
        };
        ids.filter(is_here).count() as u64
    }

    #[test]
    fn what_is_read_again_gets_into_a_full_cache_and_what_passes_once_does_not() {
        for bytes in [4 << 10, 16 << 10, 128 << 10] {
            let content = Bytes::from(vec![1; bytes]);
            let cache = ReadCache::new(16 << 20);
            let fit = (16 << 20) / 8 * 7 / bytes as u64;
            hits(&cache, 0..2 * fit, &content);
            let held = cache.counters().bytes;
            assert!(
                held > (16 << 20) / 16 * 13,
                "{held} bytes of chunks of {bytes} are a full cache"
            );
            let second = 1_000_000..1_000_000 + fit / 4;
            let rounds = [(); 4].map(|()| hits(&cache, second.clone(), &content));
            assert_eq!(rounds[3], fit / 4, "chunks of {bytes}, round by round {rounds:?}");
            // It is used; what is read once beside it does not push it out.
            hits(&cache, 2_000_000..2_000_000 + fit * 8, &content);
            assert_eq!(hits(&cache, second, &content), fit / 4, "chunks of {bytes}");
        }
    }

    #[test]
    fn a_cache_that_was_resized_often_keeps_what_is_read_again() {
        let content = Bytes::from(vec![1; 4 << 10]);
        let cache = ReadCache::new(16 << 20);
        for round in 0..5000 {
            cache.set_capacity(|| (16 << 20) + ((round % 7) << 20));
        }
        cache.set_capacity(|| 16 << 20);
        let fit = (16 << 20) / 8 * 7 / (4 << 10);
        hits(&cache, 0..2 * fit, &content);
        let second = 1_000_000..1_000_000 + fit / 4;
        for _ in 0..3 {
            hits(&cache, second.clone(), &content);
        }
        assert_eq!(hits(&cache, second, &content), fit / 4);
    }

    #[test]
    fn a_large_chunk_fits_into_a_small_cache_of_any_size() {
        let content = Bytes::from(vec![1; 128 << 10]);
        for capacity in (512..8192).step_by(8) {
            let cache = ReadCache::new(capacity << 10);
            cache.insert(ChunkId(1), content.clone());
            assert!(cache.contains(ChunkId(1)), "{capacity} KiB");
        }
    }

    #[test]
    fn the_weight_stays_below_the_capacity() {
        let store = MemoryStore::new(64 << 20);
        let cache = ReadCache::new(1 << 20);
        for at in 0..64u8 {
            let written = chunk(&store, &vec![at + 1; 128 * 1024]);
            cache.read_ahead(&store, vec![written.id]);
        }
        assert!(cache.counters().bytes <= 1 << 20);
        assert!(cache.counters().bytes > 0);
    }
}
