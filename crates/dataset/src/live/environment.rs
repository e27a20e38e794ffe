//! `Environment`: what all datasets of a pool share: the store, the clock, the memory.

use std::sync::Arc;

use terrace_cache::{
    Admitted, Budget, ChunkHeat, Foreground, Heat, ReadAhead, ReadCache, ReuseSampler, Visits,
};
use terrace_device::Clock;
use terrace_store::{Reservation, Store};

use super::{
    fragmented_regions::Fragments, front_ends::FrontEnds, room_source::RoomRequests,
    write_ahead_queue::AheadTotals,
};
use crate::{
    objects::{CacheShare, ObjectPins},
    records::PoolRecords,
    settings::DatasetError,
};

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
    /// What is kept decoded of all datasets.
    pub caches: Arc<CacheShare>,
    /// Mounts that are served from the budget.
    pub front_ends: Arc<FrontEnds>,
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
    /// Whom those ask who find no room.
    pub room: RoomRequests,
}

impl Environment {
    /// Over a store and a clock.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self::with_budget(store, clock, Arc::new(Budget::new(DEFAULT_MEMORY_BYTES)))
    }

    /// Over a store and a clock, with the caches sized by a budget.
    pub fn with_budget(store: Arc<dyn Store>, clock: Arc<dyn Clock>, budget: Arc<Budget>) -> Self {
        let chunk_heat = ChunkHeat::new(chunk_heat_bytes(&budget));
        let visits = Visits::new(visits_bytes(&budget));
        let cache = Arc::new(ReadCache::new(cache_bytes(&budget, &chunk_heat)));
        let heat = Arc::new(Heat::new(warm_regions(&budget)));
        let caches = Arc::new(CacheShare::new(budget.object_bytes()));
        Self {
            store,
            clock,
            budget,
            cache,
            read_ahead: Arc::default(),
            heat,
            chunk_heat,
            visits,
            caches,
            front_ends: Arc::default(),
            owner: (0, 0),
            foreground: Foreground::default(),
            reuse: ReuseSampler::default(),
            pins: ObjectPins::default(),
            fragments: Fragments::default(),
            ahead: Arc::default(),
            room: RoomRequests::default(),
        }
    }

    /// Lets a writer in, as [`Budget::admit`]; what readers were lent of the memory that it takes they give back first.
    pub(crate) fn admit(&self, bytes: u64) -> Option<Admitted<'_>> {
        let admitted = self.budget.admit(bytes)?;
        self.take_back();
        Some(admitted)
    }

    /// The same as [`Budget::admit_always`].
    pub(crate) fn admit_always(&self, bytes: u64) -> Admitted<'_> {
        let admitted = self.budget.admit_always(bytes);
        self.take_back();
        admitted
    }

    fn take_back(&self) {
        if self.budget.take_back() {
            self.size_read_cache();
        }
    }

    /// Lends readers what memory the others leave: the store uses `store_bytes` of it now, and `dirty_most` bytes are to be dirty at
    /// most. To be called about once a second.
    pub fn lend_memory(&self, store_bytes: u64, dirty_most: u64) {
        let before = self.budget.dirty_limit_bytes();
        self.budget.set_dirty_most(dirty_most);
        if self.budget.lend(store_bytes) || before != self.budget.dirty_limit_bytes() {
            self.size_read_cache();
        }
    }

    /// Readers do without so many bytes of memory from now on, and caches of metadata in proportion; whether that is a change.
    pub fn set_excess_memory(&self, bytes: u64) -> bool {
        let is_change = self.budget.excess_bytes() != bytes;
        if is_change {
            self.budget.set_excess(bytes);
            self.size_read_cache();
            self.size_caches();
        }
        is_change
    }

    fn size_caches(&self) {
        let share_bytes = self.budget.object_bytes();
        self.caches.set_limit(self.budget.less_excess(share_bytes));
    }

    /// What is kept in memory of what datasets have and who uses it, bytes: objects, region records and names, heat, and what front
    /// ends keep.
    pub fn kept_bytes(&self) -> u64 {
        self.caches.used_bytes() + self.heat_bytes() + self.front_ends.bytes()
    }

    /// What says how often content is used, bytes.
    pub fn heat_bytes(&self) -> u64 {
        self.heat.memory_bytes() as u64 + self.chunk_heat.memory_bytes()
    }

    fn size_read_cache(&self) {
        self.cache
            .set_capacity(|| cache_bytes(&self.budget, &self.chunk_heat));
    }

    /// The budget has changed: so does the read cache, and what is known of who reads what.
    pub fn size_cache(&self) {
        self.chunk_heat.set_memory(chunk_heat_bytes(&self.budget));
        self.visits.set_memory(visits_bytes(&self.budget));
        self.heat.set_limit(warm_regions(&self.budget));
        self.size_caches();
        self.size_read_cache();
    }

    /// The records of all datasets.
    pub(crate) fn records(&self) -> PoolRecords<'_> {
        PoolRecords::of(self.store.as_ref())
    }

    /// Sets so much room aside, or tells what is missing: for what an administrator asks for. Holds no lock that a commit needs.
    pub(crate) fn set_aside(&self, bytes: u64) -> Result<Reservation, DatasetError> {
        self.room.set_aside(&self.store, bytes)
    }

    /// The time now.
    pub fn now(&self) -> crate::records::Time {
        crate::records::Time::from_nanos(i128::from(self.clock.now_nanoseconds()))
    }
}

fn chunk_heat_bytes(budget: &Budget) -> u64 {
    budget.limit_bytes() / CHUNK_HEAT_PART
}

fn visits_bytes(budget: &Budget) -> u64 {
    budget.object_bytes() / VISITS_PART
}

/// Regions of which heat is kept.
fn warm_regions(budget: &Budget) -> usize {
    (budget.object_bytes() / 256).clamp(4096, 4 << 20) as usize
}

/// What the read cache may take: the sketch comes out of its share, of which half is for content however small that is.
fn cache_bytes(budget: &Budget, chunk_heat: &ChunkHeat) -> u64 {
    let share = budget.read_cache_bytes();
    share.saturating_sub(chunk_heat.memory_bytes().min(share / 2))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use terrace_cache::Access;
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

    #[test]
    fn what_is_known_of_heat_takes_what_the_budget_says() {
        let store = || Arc::new(MemoryStore::new(1 << 30));
        let of = |bytes| {
            Environment::with_budget(
                store(),
                Arc::new(ManualClock::new(1)),
                Arc::new(Budget::new(bytes)),
            )
        };
        let (small, large) = (64 << 20, 4 << 30);
        let environment = of(large);
        let warm = |objects: u64| {
            (0..objects).for_each(|object| environment.heat.record(1, object, 0, Access::Read, 1.0, 1));
        };
        warm(200_000);
        for bytes in [small, large, small] {
            environment.budget.set_limit(bytes);
            environment.size_cache();
            assert_eq!(
                environment.chunk_heat.memory_bytes(),
                of(bytes).chunk_heat.memory_bytes()
            );
            let most = 16 * warm_regions(&environment.budget);
            assert!(environment.heat.memory_bytes() <= most, "{bytes}");
            warm(200_000);
            match bytes == small {
                true => assert!(environment.heat.memory_bytes() <= most),
                false => assert_eq!(environment.heat.regions(), 200_000),
            }
        }
    }
}
