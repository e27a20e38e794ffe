//! `MemoryStore`: the contract in RAM, for tests of the floors above and as the model of the real store.
//!
//! Invariants: a batch is applied under one lock; a chunk is freed as soon as its count is 0 and nothing holds it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use terrace_sync::{Mutex, rank};

use crate::{
    Batch, CHUNK_BYTES_MAX, ChunkId, ChunkInfo, Compression, Dedup, FIRST_USER_TABLE, KEY_BYTES_MAX, Piece,
    Placement, Reservation, RewriteOutcome, Sequence, Space, Store, StoreError, TierUsage, Trial,
    VALUE_BYTES_MAX, Written,
};

struct Chunk {
    content: Bytes,
    hash: [u8; 32],
    references: i64,
    tier: u8,
    pin: Weak<()>,
}

#[derive(Default)]
struct State {
    records: BTreeMap<Bytes, Bytes>,
    chunks: BTreeMap<ChunkId, Chunk>,
    by_hash: HashMap<[u8; 32], ChunkId>,
    next_chunk: u64,
    sequence: u64,
}

impl State {
    fn free_if_dead(&mut self, id: ChunkId) {
        if let Some(chunk) = self.chunks.get(&id)
            && chunk.references == 0
            && chunk.pin.strong_count() == 0
        {
            self.by_hash.remove(&chunk.hash);
            self.chunks.remove(&id);
        }
    }

    /// Frees what nobody refers to and nobody holds: chunks that were written and never committed among it.
    fn free_dead(&mut self) {
        let State { chunks, by_hash, .. } = self;
        chunks.retain(|id, chunk| {
            let dead = chunk.references == 0 && chunk.pin.strong_count() == 0;
            if dead && by_hash.get(&chunk.hash) == Some(id) {
                by_hash.remove(&chunk.hash);
            }
            !dead
        });
    }

    fn stored_bytes(&self) -> u64 {
        self.chunks.values().map(|chunk| chunk.content.len() as u64).sum()
    }
}

/// A store in RAM with a size limit and two tiers.
pub struct MemoryStore {
    state: Mutex<State, rank::Leaf>,
    reserved: Arc<AtomicU64>,
    size_bytes: u64,
}

impl MemoryStore {
    /// An empty store that takes `size_bytes` of chunk content.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            state: Mutex::new(State {
                next_chunk: 1,
                ..State::default()
            }),
            reserved: Arc::new(AtomicU64::new(0)),
            size_bytes,
        }
    }

    /// All chunks with their references, for tests that compare with a full walk.
    pub fn references(&self) -> BTreeMap<ChunkId, i64> {
        let mut state = self.state.lock();
        let ids: Vec<_> = state.chunks.keys().copied().collect();
        ids.into_iter().for_each(|id| state.free_if_dead(id));
        state
            .chunks
            .iter()
            .map(|(id, chunk)| (*id, chunk.references))
            .collect()
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.state.lock().records.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let state = self.state.lock();
        let records = state.records.range(Bytes::copy_from_slice(from)..);
        let within = records.take_while(|(key, _)| to.is_empty() || &key[..] < to);
        Ok(within
            .take(limit)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect())
    }

    /// It compresses nothing; what begins by saying the same twice would be.
    fn try_compression(&self, content: &[u8], compression: Compression) -> Trial {
        let repeats = content.len() >= 32 && content[..16] == content[16..32];
        match repeats && compression != Compression::Off {
            true => Trial::Pays,
            false => Trial::Vain,
        }
    }

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        let mut state = self.state.lock();
        let mut written = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if piece.content.is_empty() || piece.content.len() > CHUNK_BYTES_MAX {
                return Err(StoreError::Invalid(format!(
                    "a chunk of {} bytes",
                    piece.content.len()
                )));
            }
            let hash = *blake3::hash(piece.content).as_bytes();
            let pin = Arc::new(());
            let known = state
                .by_hash
                .get(&hash)
                .copied()
                .filter(|_| piece.dedup == Dedup::On);
            if let Some(id) = known
                && let Some(chunk) = state.chunks.get_mut(&id)
            {
                let pin = chunk.pin.upgrade().unwrap_or(pin);
                chunk.pin = Arc::downgrade(&pin);
                written.push(Written::new(id, true, pin));
                continue;
            }
            if !piece.privileged && state.stored_bytes() + piece.content.len() as u64 > self.size_bytes {
                return Err(StoreError::NoSpace);
            }
            let id = ChunkId(state.next_chunk);
            state.next_chunk += 1;
            let tier = if let Placement::Tier { tier, .. } = piece.placement {
                tier
            } else {
                0
            };
            let content = Bytes::copy_from_slice(piece.content);
            let chunk = Chunk {
                content,
                hash,
                references: 0,
                tier,
                pin: Arc::downgrade(&pin),
            };
            state.chunks.insert(id, chunk);
            if piece.dedup != Dedup::Apart {
                state.by_hash.insert(hash, id);
            }
            written.push(Written::new(id, false, pin));
        }
        Ok(written)
    }

    fn read_chunk(&self, id: ChunkId) -> Result<Bytes, StoreError> {
        let state = self.state.lock();
        state
            .chunks
            .get(&id)
            .map(|chunk| chunk.content.clone())
            .ok_or(StoreError::NoChunk(id))
    }

    fn chunk_info(&self, id: ChunkId) -> Result<Option<ChunkInfo>, StoreError> {
        let state = self.state.lock();
        Ok(state.chunks.get(&id).map(|chunk| ChunkInfo {
            length: chunk.content.len() as u32,
            stored: chunk.content.len() as u32,
            tier: chunk.tier,
            device: u16::from(chunk.tier),
            segment: 0,
            offset: 0,
            references: chunk.references,
            hash: chunk.hash,
        }))
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        for (key, value) in batch.records() {
            if key.first().is_none_or(|table| *table < FIRST_USER_TABLE) || key.len() > KEY_BYTES_MAX {
                return Err(StoreError::Invalid(
                    "a key outside the user's tables, or too long".into(),
                ));
            }
            if value.as_ref().is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
                return Err(StoreError::Invalid("a value that is too long".into()));
            }
        }
        let mut state = self.state.lock();
        if let Some((id, _)) = batch
            .references()
            .iter()
            .find(|(id, _)| !state.chunks.contains_key(id))
        {
            return Err(StoreError::NoChunk(*id));
        }
        let (records, references, pins) = batch.into_parts();
        for (key, value) in records {
            match value {
                Some(value) => state.records.insert(key.into(), value.into()),
                None => state.records.remove(&key[..]),
            };
        }
        for (id, blocks) in &references {
            if let Some(chunk) = state.chunks.get_mut(id) {
                chunk.references += blocks;
            }
        }
        drop(pins);
        state.free_dead();
        state.sequence += 1;
        Ok(Sequence(state.sequence))
    }

    fn flush(&self, _sequence: Sequence) -> Result<(), StoreError> {
        Ok(())
    }

    fn next_chunk(&self) -> ChunkId {
        ChunkId(self.state.lock().next_chunk)
    }

    fn newest(&self) -> Sequence {
        Sequence(self.state.lock().sequence)
    }

    fn reserve_beside(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        let used = self.state.lock().stored_bytes();
        let reservation = self.reserve_always(bytes);
        let others = self.reserved.load(Ordering::Relaxed).saturating_sub(own());
        if used + others > self.size_bytes {
            Err(StoreError::NoSpace)
        } else {
            Ok(reservation)
        }
    }

    fn reserve_always(&self, bytes: u64) -> Reservation {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        let reserved = self.reserved.clone();
        let give_back = move |bytes| {
            reserved.fetch_sub(bytes, Ordering::Relaxed);
        };
        Reservation::new(bytes, Arc::new(give_back))
    }

    fn space(&self) -> Space {
        let state = self.state.lock();
        let stored = state.stored_bytes();
        let tier = |name: &str, number| {
            let live = state.chunks.values().filter(|chunk| chunk.tier == number);
            let live_bytes = live.map(|chunk| chunk.content.len() as u64).sum();
            TierUsage {
                name: name.into(),
                size_bytes: self.size_bytes,
                used_bytes: live_bytes,
                live_bytes,
                ..TierUsage::default()
            }
        };
        Space {
            size_bytes: self.size_bytes,
            used_bytes: stored,
            logical_bytes: Space::logical(
                stored,
                state
                    .chunks
                    .values()
                    .map(|chunk| chunk.references.max(0) as u64)
                    .sum(),
                state
                    .chunks
                    .values()
                    .map(|chunk| chunk.content.len().div_ceil(4096) as u64)
                    .sum(),
            ),
            unique_bytes: stored,
            stored_bytes: stored,
            chunk_stored_bytes: stored,
            room_bytes: self.size_bytes.saturating_sub(stored),
            set_aside_bytes: self.reserved.load(Ordering::Relaxed),
            available_bytes: self
                .size_bytes
                .saturating_sub(stored + self.reserved.load(Ordering::Relaxed)),
            chunks: state.chunks.len() as u64,
            tiers: vec![tier("fast", 0), tier("slow", 1)],
            ..Space::default()
        }
    }

    fn rewrite(&self, ids: &[ChunkId], placement: Placement) -> Result<RewriteOutcome, StoreError> {
        let mut state = self.state.lock();
        let target = if let Placement::Tier { tier, .. } = placement {
            tier
        } else {
            0
        };
        let mut outcome = RewriteOutcome::default();
        for id in ids {
            match state.chunks.get_mut(id) {
                Some(chunk) if chunk.tier != target => {
                    let left = std::mem::replace(&mut chunk.tier, target);
                    let bytes = chunk.content.len() as u64;
                    outcome.moved += 1;
                    outcome.moved_bytes += bytes;
                    for tier in [left, target] {
                        *outcome.tier_bytes.entry(tier).or_default() += bytes;
                    }
                }
                _ => outcome.skipped += 1,
            }
        }
        Ok(outcome)
    }
}
