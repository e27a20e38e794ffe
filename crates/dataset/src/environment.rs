//! `Environment`: what all datasets of a pool share: the store, the clock, the memory.

use std::sync::Arc;

use terrace_device::Clock;
use terrace_store::Store;

/// Shared by all datasets of a pool.
pub struct Environment {
    /// Records and chunks.
    pub store: Arc<dyn Store>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl Environment {
    /// Over a store and a clock.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// The time now.
    pub fn now(&self) -> crate::inode::Time {
        crate::inode::Time::from_nanos(i128::from(self.clock.now_nanoseconds()))
    }
}
