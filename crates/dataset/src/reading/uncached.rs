//! What large reads fetch past the cache, into the buffers of those who read.
//!
//! Invariants: nothing is fetched this way that is in RAM or on its way there; what cannot be had so is left to the read through
//! the cache, which says why.

use super::lookup::{Fetch, Lookup, Past};
use crate::live::DatasetState;
use terrace_store::{ChunkFill, ChunkId};

/// Fills what of these reads passes the cache by, in one request.
pub(crate) fn fetch_past<'a>(
    dataset: &DatasetState,
    reads: impl IntoIterator<Item = (&'a mut Lookup, &'a mut [u8])>,
) {
    let cache = &dataset.environment().cache;
    let mut reads = reads.into_iter().peekable();
    if reads.peek().is_none() || !cache.is_passed_by() {
        return;
    }
    let (mut passing, mut fills) = (Vec::new(), Vec::new());
    for (look, buffer) in reads {
        let chosen = mark(&mut look.fetches, |chunk, bytes| cache.passes(chunk, bytes));
        fills.reserve(chosen);
        split(&look.fetches, buffer, &mut fills);
        passing.push(look);
    }
    if fills.is_empty() {
        return;
    }
    cache.fetch_past(&**dataset.store(), &mut fills);
    let mut filled = fills.iter().map(|fill| fill.filled);
    let fetches = passing.into_iter().flat_map(|look| look.fetches.iter_mut());
    for fetch in fetches.filter(|fetch| fetch.past == Past::Coming) {
        fetch.past = filled.next().flatten().map_or(Past::No, Past::Filled);
    }
}

/// Marks the pieces of chunks that pass; how many. Each chunk is asked for once, with all that is wanted of it.
fn mark(fetches: &mut [Fetch], mut passes: impl FnMut(ChunkId, usize) -> bool) -> usize {
    let mut wanted: Vec<(ChunkId, usize)> = fetches.iter().map(|fetch| (fetch.chunk, fetch.length)).collect();
    wanted.sort_unstable();
    let chunks = wanted.chunk_by(|(one, _), (other, _)| one == other);
    let passing: Vec<ChunkId> = chunks
        .filter(|pieces| passes(pieces[0].0, pieces.iter().map(|(_, bytes)| bytes).sum()))
        .map(|pieces| pieces[0].0)
        .collect();
    let mut count = 0;
    for fetch in fetches {
        if passing.binary_search(&fetch.chunk).is_ok() {
            fetch.past = Past::Coming;
            count += 1;
        }
    }
    count
}

/// The places in `buffer` of those that come; pieces are in its order and apart.
fn split<'a>(fetches: &[Fetch], buffer: &'a mut [u8], fills: &mut Vec<ChunkFill<'a>>) {
    let (mut rest, mut at) = (buffer, 0);
    for fetch in fetches.iter().filter(|fetch| fetch.past == Past::Coming) {
        let (_, from) = std::mem::take(&mut rest).split_at_mut(fetch.at - at);
        let (target, behind) = from.split_at_mut(fetch.length);
        fills.push(ChunkFill::new(fetch.chunk, fetch.from, target));
        (rest, at) = (behind, fetch.at + fetch.length);
    }
}
