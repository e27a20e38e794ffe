//! The locks below the ranks: those of `parking_lot`, or of `shuttle` in its tests, with one interface.

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "shuttle")]
pub(crate) use of_shuttle::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "shuttle")]
mod of_shuttle {
    use std::{
        ops::{Deref, DerefMut},
        time::Duration,
    };

    use shuttle::sync;

    pub(crate) use sync::{RwLockReadGuard, RwLockWriteGuard};

    /// These locks are given back after a panic, as those of `parking_lot` are.
    fn whole<T>(result: sync::LockResult<T>) -> T {
        result.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// As of `parking_lot`.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T: ?Sized>(sync::Mutex<T>);

    /// Empty only while a condition is waited for.
    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T: ?Sized> {
        lock: &'a sync::Mutex<T>,
        guard: Option<sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn into_inner(self) -> T {
            whole(self.0.into_inner())
        }
    }

    impl<T: ?Sized> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard {
                lock: &self.0,
                guard: Some(whole(self.0.lock())),
            }
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let guard = self.0.try_lock().ok()?;
            Some(MutexGuard {
                lock: &self.0,
                guard: Some(guard),
            })
        }

        /// A test has no time: it waits until it has the lock.
        pub(crate) fn try_lock_for(&self, _patience: Duration) -> Option<MutexGuard<'_, T>> {
            Some(self.lock())
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            whole(self.0.get_mut())
        }
    }

    impl<T: ?Sized> MutexGuard<'_, T> {
        pub(crate) fn unlocked<R>(&mut self, then: impl FnOnce() -> R) -> R {
            self.guard = None;
            let result = then();
            self.guard = Some(whole(self.lock.lock()));
            result
        }
    }

    impl<T: ?Sized> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.guard.as_ref().expect("held but while it is waited for")
        }
    }

    impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.guard.as_mut().expect("held but while it is waited for")
        }
    }

    /// As of `parking_lot`.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(sync::Condvar);

    /// Whether the time passed; it does not pass in these tests.
    pub(crate) struct Waited;

    impl Waited {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(crate) const fn new() -> Self {
            Self(sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.guard.take() {
                guard.guard = Some(whole(self.0.wait(held)));
            }
        }

        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: Duration) -> Waited {
            self.wait(guard);
            Waited
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// As of `parking_lot`.
    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T: ?Sized>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        pub(crate) fn into_inner(self) -> T {
            whole(self.0.into_inner())
        }
    }

    impl<T: ?Sized> RwLock<T> {
        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            whole(self.0.read())
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            whole(self.0.write())
        }

        /// A test has no time: it waits until it has the lock.
        pub(crate) fn try_write_for(&self, _patience: Duration) -> Option<RwLockWriteGuard<'_, T>> {
            Some(self.write())
        }

        pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }

        pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            whole(self.0.get_mut())
        }
    }
}
