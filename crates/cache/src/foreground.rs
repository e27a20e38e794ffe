//! `Foreground`: whether somebody uses the pool at the moment, so that background work can step back.
//!
//! Invariant: counting costs one addition; nobody ever waits here.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Operations of users, counted.
#[derive(Debug, Default)]
pub struct Foreground {
    operations: AtomicU64,
}

impl Foreground {
    /// A user does something.
    pub fn note(&self) {
        self.operations.fetch_add(1, Relaxed);
    }

    /// How often users did something so far.
    pub fn operations(&self) -> u64 {
        self.operations.load(Relaxed)
    }
}
