//! `Condvar`: waits for what another thread does, until a moment at most.
//!
//! Invariants: whoever waits looks at his condition again afterwards; where a [`Driver`](crate::Driver) moves the time
//! there is one thread, so waiting lets the others come on and the time pass instead of stopping it.

use std::time::Duration;

use crate::{clock::Clock, mutex::MutexGuard, rank::Rank, raw};

/// Threads that wait for a change of what a [`Mutex`](crate::Mutex) protects.
#[derive(Debug, Default)]
pub struct Condvar(raw::Condvar);

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Self {
        Self(raw::Condvar::new())
    }

    /// Waits until it is told of a change. For threads that serve: whatever the simulator runs uses [`Self::wait_within`].
    pub fn wait<T, R: Rank>(&self, guard: &mut MutexGuard<'_, T, R>) {
        self.0.wait(&mut guard.guard);
    }

    /// Waits until it is told of a change, or this long; whether the time has passed.
    pub fn wait_within<T, R: Rank>(
        &self,
        clock: &dyn Clock,
        guard: &mut MutexGuard<'_, T, R>,
        time: Duration,
    ) -> bool {
        if clock.driver().is_none() {
            return self.0.wait_for(&mut guard.guard, time).timed_out();
        }
        let deadline = clock.deadline(time);
        MutexGuard::unlocked(guard, || clock.drive(deadline));
        clock.monotonic_nanoseconds() >= deadline
    }

    /// Tells one of those who wait.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Tells all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
