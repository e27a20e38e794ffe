//! `Environment`: what all datasets of a pool share: the store, the clock, the memory.

use std::sync::Arc;

use terrace_cache::{Budget, Foreground, Heat, ReadCache, ReuseSampler};
use terrace_device::Clock;
use terrace_store::Store;

use crate::object_pins::ObjectPins;

/// Memory budget when none is named, bytes.
const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;

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
    /// How often regions are used.
    pub heat: Arc<Heat>,
    /// User and group that own the root directory of a new filesystem: those who run the pool.
    pub owner: (u32, u32),
    /// Whether users do something.
    pub foreground: Foreground,
    /// What other sizes of the fast tier would be worth.
    pub reuse: ReuseSampler,
    /// Tiers of single objects.
    pub pins: ObjectPins,
}

impl Environment {
    /// Over a store and a clock.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self::with_budget(store, clock, Arc::new(Budget::new(DEFAULT_MEMORY_BYTES)))
    }

    /// Over a store and a clock, with the caches sized by a budget.
    pub fn with_budget(store: Arc<dyn Store>, clock: Arc<dyn Clock>, budget: Arc<Budget>) -> Self {
        let cache = Arc::new(ReadCache::new(budget.read_cache_bytes()));
        let heat = Arc::new(Heat::new(
            (budget.object_bytes() / 256).clamp(4096, 4 << 20) as usize
        ));
        Self {
            store,
            clock,
            budget,
            cache,
            heat,
            owner: (0, 0),
            foreground: Foreground::default(),
            reuse: ReuseSampler::default(),
            pins: ObjectPins::default(),
        }
    }

    /// The time now.
    pub fn now(&self) -> crate::inode::Time {
        crate::inode::Time::from_nanos(i128::from(self.clock.now_nanoseconds()))
    }
}
