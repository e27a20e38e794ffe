//! The seam to time, so that a simulation decides what time it is.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Wall clock: nanoseconds since 1970-01-01T00:00:00Z. May jump when the system clock is set.
    fn now_nanoseconds(&self) -> u64;
    /// Nanoseconds since some fixed moment; never goes back.
    fn monotonic_nanoseconds(&self) -> u64;
}

/// The clock of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic side starts now.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_nanoseconds(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64)
    }

    fn monotonic_nanoseconds(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// A clock that moves only when told to: for tests and the simulator.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
    monotonic: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `now_nanoseconds` since 1970.
    pub fn new(now_nanoseconds: u64) -> Self {
        Self {
            now: AtomicU64::new(now_nanoseconds),
            monotonic: AtomicU64::new(0),
        }
    }

    /// Moves both sides forward.
    pub fn advance(&self, nanoseconds: u64) {
        self.now.fetch_add(nanoseconds, Ordering::SeqCst);
        self.monotonic.fetch_add(nanoseconds, Ordering::SeqCst);
    }

    /// Sets the wall clock alone, as an administrator would; may go back.
    pub fn set_now(&self, now_nanoseconds: u64) {
        self.now.store(now_nanoseconds, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_nanoseconds(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    fn monotonic_nanoseconds(&self) -> u64 {
        self.monotonic.load(Ordering::SeqCst)
    }
}
