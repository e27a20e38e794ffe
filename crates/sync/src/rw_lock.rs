//! `RwLock`: many readers or one writer, with a place in the order of locks.
//!
//! Invariant: a thread that reads does not begin to read once more: a writer that waits between the two would stop it.

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
pub struct RwLock<T: ?Sized, R: Rank> {
    rank: PhantomData<fn() -> R>,
    lock: raw::RwLock<T>,
}

/// The lock is held for reading while this lives.
pub struct RwLockReadGuard<'a, T: ?Sized, R: Rank> {
    guard: raw::RwLockReadGuard<'a, T>,
    _held: Held,
    rank: PhantomData<fn() -> R>,
}

/// The lock is held for writing while this lives.
pub struct RwLockWriteGuard<'a, T: ?Sized, R: Rank> {
    guard: raw::RwLockWriteGuard<'a, T>,
    _held: Held,
    rank: PhantomData<fn() -> R>,
}

impl<T, R: Rank> RwLock<T, R> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self {
            rank: PhantomData,
            lock: raw::RwLock::new(value),
        }
    }

    /// What it protects.
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: ?Sized, R: Rank> RwLock<T, R> {
    /// Waits until nobody writes.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T, R> {
        let held = Held::wait_for::<R>(address(self));
        RwLockReadGuard {
            guard: self.lock.read(),
            _held: held,
            rank: PhantomData,
        }
    }

    /// Waits until nobody reads or writes.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, R> {
        let held = Held::wait_for::<R>(address(self));
        RwLockWriteGuard {
            guard: self.lock.write(),
            _held: held,
            rank: PhantomData,
        }
    }

    /// To read, if nobody writes; allowed in any order.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, R>> {
        let guard = self.lock.try_read()?;
        Some(RwLockReadGuard {
            guard,
            _held: Held::have::<R>(address(self)),
            rank: PhantomData,
        })
    }

    /// To write, if nobody reads or writes; allowed in any order.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, R>> {
        let guard = self.lock.try_write()?;
        Some(RwLockWriteGuard {
            guard,
            _held: Held::have::<R>(address(self)),
            rank: PhantomData,
        })
    }

    /// Waits to write as long as this at most, as [`Mutex::lock_within`](crate::Mutex::lock_within) does.
    #[track_caller]
    pub fn write_within(&self, clock: &dyn Clock, patience: Duration) -> Option<RwLockWriteGuard<'_, T, R>> {
        if clock.driver().is_none() {
            let held = Held::wait_for::<R>(address(self));
            let guard = self.lock.try_write_for(patience)?;
            return Some(RwLockWriteGuard {
                guard,
                _held: held,
                rank: PhantomData,
            });
        }
        drive_until(clock, patience, || self.try_write())
    }

    /// What it protects, of a lock that nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: Default, R: Rank> Default for RwLock<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R: Rank> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

impl<T: ?Sized, R: Rank> Deref for RwLockReadGuard<'_, T, R> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized, R: Rank> Deref for RwLockWriteGuard<'_, T, R> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized, R: Rank> DerefMut for RwLockWriteGuard<'_, T, R> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
