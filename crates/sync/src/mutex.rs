//! `Mutex`: a lock that has a place in the order of locks.
//!
//! Invariant: the rank is part of the type, so a lock without one does not compile.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    time::Duration,
};

use crate::{
    clock::{Clock, drive_until},
    held::{Held, address},
    rank::Rank,
    raw,
};

/// Protects `T`; taken only while the thread holds nothing that comes after `R`.
pub struct Mutex<T: ?Sized, R: Rank> {
    rank: PhantomData<fn() -> R>,
    lock: raw::Mutex<T>,
}

/// The lock is held while this lives.
pub struct MutexGuard<'a, T: ?Sized, R: Rank> {
    address: usize,
    pub(crate) guard: raw::MutexGuard<'a, T>,
    held: Option<Held>,
    rank: PhantomData<fn() -> R>,
}

impl<T, R: Rank> Mutex<T, R> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self {
            rank: PhantomData,
            lock: raw::Mutex::new(value),
        }
    }

    /// What it protects.
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: ?Sized, R: Rank> Mutex<T, R> {
    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T, R> {
        let held = Held::wait_for::<R>(address(self));
        MutexGuard {
            address: address(self),
            guard: self.lock.lock(),
            held: Some(held),
            rank: PhantomData,
        }
    }

    /// The lock if nobody holds it; allowed in any order, since nobody waits.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, R>> {
        let guard = self.lock.try_lock()?;
        Some(MutexGuard {
            address: address(self),
            guard,
            held: Some(Held::have::<R>(address(self))),
            rank: PhantomData,
        })
    }

    /// Waits for the lock as long as this at most. Where a [`Driver`](crate::Driver) moves the time, the others come on
    /// meanwhile, and the time passes.
    #[track_caller]
    pub fn lock_within(&self, clock: &dyn Clock, patience: Duration) -> Option<MutexGuard<'_, T, R>> {
        if clock.driver().is_none() {
            let held = Held::wait_for::<R>(address(self));
            let guard = self.lock.try_lock_for(patience)?;
            return Some(MutexGuard {
                address: address(self),
                guard,
                held: Some(held),
                rank: PhantomData,
            });
        }
        drive_until(clock, patience, || self.try_lock())
    }

    /// What it protects, of a lock that nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: ?Sized, R: Rank> MutexGuard<'_, T, R> {
    /// Gives the lock back for this call, and takes it again.
    #[track_caller]
    pub fn unlocked<V>(guard: &mut Self, then: impl FnOnce() -> V) -> V {
        guard.held = None;
        let result = raw::MutexGuard::unlocked(&mut guard.guard, then);
        guard.held = Some(Held::wait_for::<R>(guard.address));
        result
    }
}

impl<T: Default, R: Rank> Default for Mutex<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R: Rank> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

impl<T: ?Sized, R: Rank> Deref for MutexGuard<'_, T, R> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized, R: Rank> DerefMut for MutexGuard<'_, T, R> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
