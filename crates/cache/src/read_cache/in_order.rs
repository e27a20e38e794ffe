//! Chunks that are fetched together, for readers in order and before they ask.
//!
//! Invariants: a reader waits for a chunk that is on its way and fetches none twice; a fetch that fails or is dropped
//! leaves nobody waiting; errors are left to the read that really needs the chunk.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::Bytes;
use terrace_store::{CHUNK_BYTES_MAX, ChunkId, ChunkPart, Store, StoreError};

use super::{Filled, Key, ReadCache, cut, rescue::rescue};

/// A chunk, or some blocks of it, that was fetched.
struct Piece {
    id: ChunkId,
    /// Where in the chunk it begins.
    start: usize,
    whole: bool,
    content: Bytes,
}

/// What was fetched together, ascending.
#[derive(Default)]
pub struct Fetched(Vec<Piece>);

impl Fetched {
    /// As [`ReadCache::part`], if that is among it.
    pub fn part(&self, id: ChunkId, offset: usize, target: &mut [u8]) -> Option<usize> {
        let after = self
            .0
            .partition_point(|piece| (piece.id, piece.start) <= (id, offset));
        let piece = self.0[..after].last().filter(|piece| piece.id == id)?;
        let from = offset - piece.start;
        let there = piece.whole || from + target.len() <= piece.content.len();
        there.then(|| cut(&piece.content, from, target))
    }
}

/// Chunks that are about to be fetched for readers in order: until it is dropped, those wait for them.
pub struct Coming {
    cache: Arc<ReadCache>,
    ids: Vec<ChunkId>,
}

impl Coming {
    /// There is nothing to fetch.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// All of the chunks, to be fetched together with others.
    pub fn parts(&self) -> impl Iterator<Item = ChunkPart> {
        self.ids.iter().map(|id| ChunkPart { id: *id, range: None })
    }

    /// Fetches them.
    pub fn fetch(self, store: &dyn Store) {
        self.cache.fetch(store, self.parts().collect());
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.cache.ahead.ended(&self.ids);
        }
    }
}

impl ReadCache {
    /// How much content may be read ahead, bytes.
    pub fn ahead_bytes(&self) -> u64 {
        // Of the least chunks a sixteenth is what they take beside their content, and of large ones the first and the last
        // may reach beyond what is to be read.
        (self.ahead.capacity_bytes() / 16 * 15).saturating_sub(2 * CHUNK_BYTES_MAX as u64)
    }

    /// Whether the content is on its way to readers in order, or here for them.
    pub fn is_coming(&self, id: ChunkId) -> bool {
        self.ahead.knows(id)
    }

    /// Who fetched it has read of it: if it waits apart, it belongs to the cache afterwards.
    pub fn note_use(&self, id: ChunkId) {
        self.ahead.get(id);
    }

    /// Announces that those of `ids` that are neither here nor on their way will be fetched for readers in order.
    pub fn begin_fetch(self: &Arc<Self>, mut ids: Vec<ChunkId>) -> Coming {
        ids.retain(|id| self.chunks.peek(&Key::whole(*id)).is_none());
        if !ids.is_empty() {
            self.ahead.begin_fetch(&mut ids);
        }
        Coming {
            cache: self.clone(),
            ids,
        }
    }

    /// Keeps content that was fetched: apart if a reader in order expects it.
    fn insert_whole(&self, id: ChunkId, content: &Bytes) {
        match self.ahead.arrive(id, content) {
            Some(used) => self.insert_all(used),
            None => self.insert(id, content.clone()),
        }
    }

    /// As [`part`](Self::part), for readers in order: waits for a chunk that is on its way, fetches all of it if it is not
    /// here, and keeps it until they have passed.
    pub fn part_of_whole(
        self: &Arc<Self>,
        store: &dyn Store,
        id: ChunkId,
        offset: usize,
        target: &mut [u8],
    ) -> Result<Filled, StoreError> {
        let here = self
            .get(id)
            .or_else(|| self.ahead.wait_for(id))
            // It may have gone over meanwhile.
            .or_else(|| self.chunks.get(&Key::whole(id)));
        if let Some(content) = here {
            return Ok(Filled {
                bytes: cut(&content, offset, target),
                fetched: false,
            });
        }
        let coming = self.begin_fetch(vec![id]);
        self.misses.fetch_add(1, Relaxed);
        let bytes = match store.read_chunk(id) {
            Ok(content) => {
                self.insert_whole(id, &content);
                cut(&content, offset, target)
            }
            Err(error) => rescue(store, id, offset, target, error)?,
        };
        drop(coming);
        Ok(Filled { bytes, fetched: true })
    }

    /// Brings chunks in, as [`fetch`](Self::fetch), those of `ids` that are not here.
    pub fn read_ahead(&self, store: &dyn Store, ids: Vec<ChunkId>) -> Fetched {
        let missing = ids.into_iter().filter(|id| !self.contains(*id));
        self.fetch(store, missing.map(|id| ChunkPart { id, range: None }).collect())
    }

    /// Fetches parts of chunks in one call, so that neighbours on a device are read together. Returns them, as a full
    /// cache may not keep them until they are looked for. Errors are left to the read that really needs the chunk.
    pub fn fetch(&self, store: &dyn Store, mut parts: Vec<ChunkPart>) -> Fetched {
        // All of a chunk before its parts: those are not needed then.
        parts.sort_unstable_by_key(|part| {
            let range = part.range.as_ref();
            (
                part.id,
                range.map(|range| (range.start, std::cmp::Reverse(range.end))),
            )
        });
        parts.dedup_by(|part, kept| {
            part.id == kept.id
                && match (&part.range, &kept.range) {
                    (_, None) => true,
                    (None, _) => false,
                    (Some(part), Some(kept)) => part.end <= kept.end,
                }
        });
        if parts.is_empty() {
            return Fetched::default();
        }
        self.misses.fetch_add(parts.len() as u64, Relaxed);
        let mut fetched = Vec::with_capacity(parts.len());
        let contents = store.read_chunk_parts(&parts);
        for (ChunkPart { id, range }, content) in parts.into_iter().zip(contents) {
            let Ok(content) = content else { continue };
            match &range {
                None => self.insert_whole(id, &content),
                Some(range) => self.insert_blocks(id, range.start, &content),
            }
            fetched.push(Piece {
                id,
                start: range.as_ref().map_or(0, |range| range.start),
                whole: range.is_none(),
                content,
            });
        }
        Fetched(fetched)
    }
}
