//! Large reads that pass the cache by: what they fetch goes to where they want it, and nowhere else.
//!
//! Invariants: what is here, or on its way to readers in order, is not fetched a second time; while there is room everything is
//! kept, and later what is read again before as much as the cache holds has passed (`scan_bypass.rs`).

use std::sync::atomic::Ordering::Relaxed;

use terrace_store::{ChunkFill, ChunkId, Store};

use super::ReadCache;

impl ReadCache {
    /// Whether large reads may pass it by now; to be asked once for each of them.
    pub fn is_passed_by(&self) -> bool {
        !self.has_room()
    }

    /// Whether `bytes` of a chunk are to be fetched past the cache for a large read; to be asked once for each chunk that it
    /// reads, if [`is_passed_by`](Self::is_passed_by).
    pub fn passes(&self, id: ChunkId, bytes: usize) -> bool {
        let is_here = self.contains(id) || self.is_coming(id);
        !is_here && !self.passing.note(id, bytes, self.capacity_bytes.load(Relaxed))
    }

    /// Fetches what passes. What is left without is for the read itself to ask for.
    pub fn fetch_past(&self, store: &dyn Store, fills: &mut [ChunkFill<'_>]) {
        self.misses.fetch_add(fills.len() as u64, Relaxed);
        store.fill_from_chunks(fills);
    }
}
