//! `Environment`: what all datasets of a pool share: the store, the clock, the memory.

use std::sync::Arc;

use terrace_cache::{Budget, ChunkHeat, Foreground, Heat, ReadAhead, ReadCache, ReuseSampler, Visits};
use terrace_device::Clock;
use terrace_store::Store;

use crate::{fragments::Fragments, object_pins::ObjectPins, relief::Relief, write_ahead::AheadTotals};

/// Memory budget when none is named, bytes.
const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;
/// Part of the memory that says how often single chunks are read.
const CHUNK_HEAT_PART: u64 = 128;
/// Of the share of objects, the part that says who reads which files.
const VISITS_PART: u64 = 64;

/// Shared by all datasets of a pool.
pub struct Environment {
    /// Records and chunks.
    pub store: Arc<dyn Store>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The one RAM budget.
    pub budget: Arc<Budget>,
    /// Content of chunks.
    pub cache: Arc<ReadCache>,
    /// Who fetches content before it is asked for.
    pub read_ahead: Arc<ReadAhead>,
    /// How often regions are used.
    pub heat: Arc<Heat>,
    /// How often single chunks are read.
    pub chunk_heat: ChunkHeat,
    /// Who reads which files.
    pub visits: Visits,
    /// User and group that own the root directory of a new filesystem: those who run the pool.
    pub owner: (u32, u32),
    /// Whether users do something.
    pub foreground: Foreground,
    /// What other sizes of the fast tier would be worth.
    pub reuse: ReuseSampler,
    /// Tiers of single objects.
    pub pins: ObjectPins,
    /// Regions that lie in many pieces.
    pub fragments: Fragments,
    /// What was written ahead of its commit.
    pub ahead: Arc<AheadTotals>,
    /// What is done for those who find no room.
    pub relief: Relief,
}

impl Environment {
    /// Over a store and a clock.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self::with_budget(store, clock, Arc::new(Budget::new(DEFAULT_MEMORY_BYTES)))
    }

    /// Over a store and a clock, with the caches sized by a budget.
    pub fn with_budget(store: Arc<dyn Store>, clock: Arc<dyn Clock>, budget: Arc<Budget>) -> Self {
        let chunk_heat = ChunkHeat::new(budget.limit_bytes() / CHUNK_HEAT_PART);
        let visits = Visits::new(budget.object_bytes() / VISITS_PART);
        let cache = Arc::new(ReadCache::new(cache_bytes(&budget, &chunk_heat)));
        let heat = Arc::new(Heat::new(
            (budget.object_bytes() / 256).clamp(4096, 4 << 20) as usize
        ));
        Self {
            store,
            clock,
            budget,
            cache,
            read_ahead: Arc::default(),
            heat,
            chunk_heat,
            visits,
            owner: (0, 0),
            foreground: Foreground::default(),
            reuse: ReuseSampler::default(),
            pins: ObjectPins::default(),
            fragments: Fragments::default(),
            ahead: Arc::default(),
            relief: Relief::default(),
        }
    }

    /// The budget has changed: so does the read cache.
    pub fn size_cache(&self) {
        self.cache
            .set_capacity(cache_bytes(&self.budget, &self.chunk_heat));
    }

    /// The time now.
    pub fn now(&self) -> crate::inode::Time {
        crate::inode::Time::from_nanos(i128::from(self.clock.now_nanoseconds()))
    }
}

/// What the read cache may take: the sketch, which keeps its size, comes out of its share. Small beside that at first, it
/// may be all of it once the budget is much less than the pool was opened with: half is for content even then, until the
/// next start makes a smaller one.
fn cache_bytes(budget: &Budget, chunk_heat: &ChunkHeat) -> u64 {
    let share = budget.read_cache_bytes();
    share.saturating_sub(chunk_heat.memory_bytes().min(share / 2))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use terrace_device::ManualClock;
    use terrace_store::{ChunkId, MemoryStore};

    use super::*;

    #[test]
    fn content_is_kept_after_the_budget_has_shrunk_to_a_small_part() {
        let budget = Arc::new(Budget::new(4 << 30));
        let clock = Arc::new(ManualClock::new(1));
        let environment =
            Environment::with_budget(Arc::new(MemoryStore::new(1 << 30)), clock, budget.clone());
        budget.set_limit(64 << 20);
        environment.size_cache();
        environment
            .cache
            .insert(ChunkId(1), Bytes::from(vec![1; 128 << 10]));
        assert!(environment.cache.contains(ChunkId(1)));
    }
}
