//! Memory: what nobody uses is lent to readers, and what the process holds is kept within the budget.
//!
//! Invariant: looked at once a second, from figures in memory.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use terrace_chunk::ChunkStore;
use terrace_dataset::Environment;
use terrace_pool::Pool;

use super::resident::{Resident, resident_bytes};
use crate::floors::{Floors, shares_of_store};

/// How often it is looked at which memory nobody uses, nanoseconds.
const LEND_NANOSECONDS: u64 = 1_000_000_000;
/// Of the fastest tier, the part that may be dirty in memory at a time, unless that is less than so many bytes: what overwrites
/// needs its room there before what it overwrites gives any back, and with much memory for a small tier the rest of it went to a
/// slower one.
const DIRTY_PART: u64 = 5;
const DIRTY_BYTES_MIN: u64 = 64 << 20;

/// See the module.
pub(super) struct Memory {
    pool: Arc<Pool>,
    chunks: Arc<ChunkStore>,
    environment: Arc<Environment>,
    /// When it was last looked at.
    lent_nanoseconds: AtomicU64,
    /// Of a process that serves this pool alone.
    resident: Option<Resident>,
}

impl Memory {
    pub(super) fn new(floors: &Floors, owns_process: bool) -> Self {
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            environment: floors.environment.clone(),
            lent_nanoseconds: AtomicU64::new(0),
            resident: owns_process.then(Resident::default),
        }
    }

    /// Lends readers what memory nobody else uses.
    pub(super) fn lend(&self, now: u64) {
        let last = self.lent_nanoseconds.load(Ordering::Relaxed);
        if now.saturating_sub(last) < LEND_NANOSECONDS {
            return;
        }
        self.lent_nanoseconds.store(now, Ordering::Relaxed);
        let mut sizes = self.pool.tiers().into_iter().map(|tier| tier.size_bytes);
        let fastest_bytes = sizes.find(|bytes| *bytes > 0).unwrap_or(u64::MAX);
        let dirty_most = (fastest_bytes / DIRTY_PART).max(DIRTY_BYTES_MIN);
        // What front ends keep, and what is known of chunks and segments, comes out of what would be lent.
        let others_bytes = self.environment.front_ends.bytes();
        let store_bytes = self.chunks.memory().total_bytes() + self.chunks.ledger_bytes();
        self.environment
            .lend_memory(store_bytes + others_bytes, dirty_most);
        self.environment.caches.relieve_all();
        self.keep_resident(now);
    }

    /// Keeps what the process holds within the budget, as far as it serves this pool alone.
    fn keep_resident(&self, now: u64) {
        let Some(resident) = &self.resident else { return };
        let requests = self.environment.foreground.requests();
        let held_bytes = resident_bytes();
        let verdict = resident.judge(&self.environment.budget, held_bytes, requests, now);
        if self.environment.set_excess_memory(verdict.excess_bytes) {
            let (memtable_bytes, block_cache_bytes) = shares_of_store(&self.environment.budget);
            self.chunks.set_memory(memtable_bytes, block_cache_bytes);
        }
        if verdict.trims {
            terrace_device::give_spare_memory_back();
        }
    }
}
