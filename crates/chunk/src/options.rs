//! `Options`: what a caller chooses when a store is made or opened.

use std::sync::Arc;

use terrace_sync::{Clock, SystemClock};

use crate::encoding::HINT_BYTES_MAX;

/// Settings of a [`ChunkStore`](crate::ChunkStore); none of them is written to the pool.
#[derive(Debug, Clone)]
pub struct Options {
    /// Memory of the metadata tree's memtables, bytes.
    pub memtable_bytes: usize,
    /// Memory of the metadata tree's block cache, bytes.
    pub block_cache_bytes: usize,
    /// Worker threads for hashing, compressing and parallel I/O; 0: everything inline in the calling thread, in a
    /// fixed order (for the simulator).
    pub threads: usize,
    /// What time it is; how long waits last.
    pub clock: Arc<dyn Clock>,
    /// Random for each opening: keeps entries of a dead log tail from ever being taken for new ones.
    pub nonce: u64,
    /// A checkpoint is due when the log since the last one is longer than this, bytes: what an opening after a crash has to
    /// replay.
    pub checkpoint_log_bytes: u64,
    /// How much of a hash the dedup index keeps, bytes, at most 16. Less makes other content meet under one hint, which
    /// is how the simulator sees what nobody will ever see with 16.
    pub hint_bytes: usize,
    /// Where the end of the log lies only on devices that are not there, or the log is damaged: give up what came after the last
    /// state that can be read, instead of refusing to open.
    pub rewind: bool,
    /// Of a store that is made: the format version of its pool.
    pub format_version: u8,
}

impl Default for Options {
    fn default() -> Self {
        use std::hash::{BuildHasher, Hasher};
        // The standard library seeds each RandomState differently; good enough for a number that must only differ.
        let nonce = std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish();
        Self {
            memtable_bytes: 32 << 20,
            block_cache_bytes: 64 << 20,
            threads: 2,
            clock: Arc::new(SystemClock::new()),
            nonce,
            checkpoint_log_bytes: 32 << 20,
            hint_bytes: HINT_BYTES_MAX,
            rewind: false,
            format_version: crate::encoding::FORMAT_NEWEST,
        }
    }
}

/// Whether a background step found more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Call again soon.
    More,
    /// Nothing to do until something changes.
    Idle,
}
