//! What is fetched together for a read, and ahead of a reader in order.
//!
//! Invariants: what is read ahead is bounded, by bytes and by chunks, and by the room that the cache has for it; nobody
//! fetches what is here or on its way.

use super::{
    lookup::{BLOCK, Fetch, Lookup, PER_REGION},
    read::ContentReader,
};
use crate::{live::Fragment, objects::Object, posix::FsError};
use std::{ops::Range, sync::Arc};

use terrace_cache::Coming;
use terrace_store::{ChunkId, ChunkPart};

/// Reads from this size on need nobody to read ahead of them.
pub(crate) const LARGE_READ_BYTES: usize = 256 << 10;

/// The most that is fetched ahead of a sequential reader at a time, bytes and chunks: where they are small there are many.
const AHEAD_BYTES: u64 = 2 << 20;
const AHEAD_CHUNKS: usize = 64;

/// A chunk of which a read wants this part or more is fetched whole together with the others.
const WHOLE_PART: usize = 4;

impl ContentReader {
    /// A reader in order waits for the pieces of this region.
    pub(crate) fn note_read_in_order(&self, object: &Object, body: u64, region: u64) {
        self.dataset.environment().fragments.note_read(Fragment {
            dataset: self.dataset.number(),
            body,
            region,
            object: object.number,
        });
    }

    /// Whether others read ahead of a sequential reader, and how far at a time, bytes.
    pub(crate) fn stretch(&self) -> (bool, u64) {
        let environment = self.dataset.environment();
        let served = environment.read_ahead.is_served();
        // Beside the stretch that is being used there is room for the one that is being fetched.
        let stretch = environment.cache.ahead_bytes() / if served { 2 } else { 1 };
        (served, (stretch / BLOCK * BLOCK).clamp(BLOCK, AHEAD_BYTES))
    }

    /// What is to be fetched for a read, and ahead of it if nobody else does that: then until the fetch has ended what it
    /// returns is to be held, and not longer.
    pub(crate) fn parts(
        &self,
        object: &Arc<Object>,
        look: &Lookup,
        parts: &mut Vec<ChunkPart>,
    ) -> Result<Option<Coming>, FsError> {
        let environment = self.dataset.environment();
        let cache = &environment.cache;
        let fetches = &look.fetches;
        // Of a reader in order: what it wants itself, and what it fetches ahead.
        let mut expected: Vec<ChunkId> = Vec::new();
        if let Some(ahead) = &look.ahead {
            let served = environment.read_ahead.is_served();
            // Who reads ahead for itself does when it reaches something that is not here: a batch at a time, not a chunk
            // at a time.
            let here = |fetch: &Fetch| cache.contains(fetch.chunk) || cache.is_coming(fetch.chunk);
            let mut reached = ahead.start;
            if served || !fetches.iter().all(here) {
                let mut chunks = Vec::new();
                reached = self.ahead(object, look.body, ahead.clone(), &mut chunks)?;
                if served {
                    // What it wants itself it fetches itself.
                    chunks.retain(|chunk| fetches.iter().all(|fetch| fetch.chunk != *chunk));
                    if !self.is_fetched_by_others(chunks) {
                        reached = ahead.start;
                    }
                } else {
                    expected = chunks;
                }
            }
            // Where chunks are many, or nothing was lacking, the stretch that was announced is not all fetched.
            if reached < ahead.end {
                let mut state = object.state();
                if state.ahead_to == ahead.end {
                    state.ahead_to = reached;
                }
            }
        }
        if look.sequential && look.length < LARGE_READ_BYTES {
            expected.extend(fetches.iter().map(|fetch| fetch.chunk));
            let coming = cache.begin_fetch(expected);
            parts.extend(coming.parts());
            return Ok(Some(coming));
        }
        let fetches = || fetches.iter().filter(|fetch| !fetch.past.is_filled());
        let mut whole = Vec::new();
        if look.sequential {
            // So large a read uses them up at once: nobody need keep them for what comes after it.
            whole.extend(fetches().map(|fetch| fetch.chunk));
            whole.sort_unstable();
            whole.dedup();
        } else if look.fetches.len() > 1 {
            whole.extend(fetched_whole(fetches()));
        }
        for fetch in fetches() {
            if whole.binary_search(&fetch.chunk).is_err() {
                parts.extend(cache.missing(fetch.chunk, fetch.from, fetch.chunk_bytes, fetch.length));
            }
        }
        let here = |id: &ChunkId| cache.contains(*id) || (look.sequential && cache.is_coming(*id));
        let whole = whole.into_iter().filter(|id| !here(id));
        parts.extend(whole.map(|id| ChunkPart { id, range: None }));
        Ok(None)
    }

    /// Has others fetch chunks ahead; false if nobody is free to.
    fn is_fetched_by_others(&self, chunks: Vec<ChunkId>) -> bool {
        let environment = self.dataset.environment();
        let coming = environment.cache.begin_fetch(chunks);
        let store = self.dataset.store().clone();
        coming.is_empty() || environment.read_ahead.offer(move || coming.fetch(&*store))
    }

    /// The chunks that a sequential reader wants next; returns where those that were taken end, bytes.
    pub(crate) fn ahead(
        &self,
        object: &Object,
        body: u64,
        range: Range<u64>,
        chunks: &mut Vec<ChunkId>,
    ) -> Result<u64, FsError> {
        let (first, last) = (range.start / BLOCK, range.end / BLOCK);
        let most = chunks.len() + AHEAD_CHUNKS;
        for region in first / PER_REGION..=(last - 1) / PER_REGION {
            let cached = self.table.region(body, region)?;
            let Some(record) = &cached.record else {
                break;
            };
            self.note_read_in_order(object, body, region);
            let start = region * PER_REGION;
            let (from, to) = (first.max(start) - start, last.min(start + PER_REGION) - start);
            for run in record.range(from as u32, to as u32) {
                if chunks.len() >= most {
                    return Ok((start + u64::from(run.block)) * BLOCK);
                }
                // Cut up by what was written over, or moved up by itself, it comes in many runs.
                if !chunks.contains(&run.chunk) {
                    chunks.push(run.chunk);
                }
            }
        }
        Ok(last * BLOCK)
    }
}

/// The chunks of which a read wants a good part, each once. (Overwritten here and there, a chunk is wanted in many small
/// pieces.)
fn fetched_whole<'a>(fetches: impl Iterator<Item = &'a Fetch>) -> Vec<ChunkId> {
    let mut pieces: Vec<(ChunkId, usize, usize)> = fetches
        .map(|fetch| (fetch.chunk, fetch.length, fetch.chunk_bytes))
        .collect();
    pieces.sort_unstable_by_key(|(chunk, ..)| *chunk);
    pieces
        .chunk_by(|(one, ..), (other, ..)| one == other)
        .filter(|pieces| {
            let wanted: usize = pieces.iter().map(|(_, length, _)| length).sum();
            let whole = pieces.iter().map(|(.., bytes)| *bytes).max();
            whole.is_some_and(|whole| wanted * WHOLE_PART >= whole)
        })
        .map(|pieces| pieces[0].0)
        .collect()
}

/// What to read ahead of a sequential read, if anything, when everything up to `ahead_to` is here or on its way. `served`:
/// others do it, so that the next stretch is fetched while the last one is used.
pub(crate) fn next_stretch(
    ahead_to: u64,
    read: Range<u64>,
    stretch: u64,
    served: bool,
) -> Option<Range<u64>> {
    // Who reads with several requests at a time is not to fetch a stretch several times.
    let reach = if served { 2 * stretch } else { stretch };
    let under_way = (read.start..=read.start + reach).contains(&ahead_to);
    let from = match (under_way, served) {
        (true, true) => ahead_to.max(read.end),
        (true, false) if ahead_to != read.start => return None,
        _ => read.end,
    };
    let is_near = from - read.end < stretch;
    is_near.then(|| from..(from / BLOCK * BLOCK).saturating_add(stretch))
}
