//! `FrontEnds`: the mounts that are served from the budget, and the memory that they take for what they serve.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// See the module.
#[derive(Default)]
pub struct FrontEnds {
    mounts: AtomicUsize,
    bytes: Arc<AtomicU64>,
}

impl FrontEnds {
    /// One more is mounted; how many there are beside it.
    pub fn add(&self) -> usize {
        self.mounts.fetch_add(1, Relaxed)
    }

    /// One has ended.
    pub fn remove(&self) {
        self.mounts.fetch_sub(1, Relaxed);
    }

    /// The memory of all of them, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Where they count it.
    pub fn counter(&self) -> Arc<AtomicU64> {
        self.bytes.clone()
    }
}
