//! What the running thread holds, and whether it may take one more.
//!
//! Invariants: a lock is on the list from before it is waited for until it is given back, so that a thread that waits for
//! itself is found; builds without debug assertions have no list, and pay nothing. Nor has a build for `shuttle`, whose threads
//! share one of the system.

#[cfg(all(debug_assertions, not(feature = "shuttle")))]
use std::{cell::RefCell, panic::Location};

use crate::rank::Rank;

/// A lock that is held.
#[cfg(all(debug_assertions, not(feature = "shuttle")))]
#[derive(Clone, Copy)]
struct Taken {
    place: crate::rank::Place,
    /// Which of those with this rank.
    address: usize,
    /// Where in the source.
    at: &'static Location<'static>,
}

#[cfg(all(debug_assertions, not(feature = "shuttle")))]
thread_local! {
    static HELD: RefCell<Vec<Taken>> = const { RefCell::new(Vec::new()) };
    /// What those hold who wait while this thread stands in for others.
    static WAITING: RefCell<Vec<Taken>> = const { RefCell::new(Vec::new()) };
}

/// Which lock it is.
pub(crate) fn address<T: ?Sized>(lock: &T) -> usize {
    std::ptr::from_ref(lock).cast::<()>().addr()
}

/// A lock on the list of its thread; off it once this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    #[cfg(all(debug_assertions, not(feature = "shuttle")))]
    address: usize,
}

impl Held {
    /// Before the lock there is waited for. Panics if the thread holds it, or one that comes after it.
    #[inline]
    #[track_caller]
    pub(crate) fn wait_for<R: Rank>(address: usize) -> Self {
        #[cfg(all(debug_assertions, not(feature = "shuttle")))]
        check(R::PLACE, address);
        Self::have::<R>(address)
    }

    /// The lock there was had without waiting: in any order.
    #[inline]
    #[track_caller]
    pub(crate) fn have<R: Rank>(address: usize) -> Self {
        #[cfg(all(debug_assertions, not(feature = "shuttle")))]
        {
            let taken = Taken {
                place: R::PLACE,
                address,
                at: Location::caller(),
            };
            HELD.with_borrow_mut(|held| held.push(taken));
            crate::trace::note(R::PLACE.name);
            Self { address }
        }
        #[cfg(any(not(debug_assertions), feature = "shuttle"))]
        {
            let _ = address;
            Self {}
        }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        #[cfg(all(debug_assertions, not(feature = "shuttle")))]
        // A thread that ends may drop guards after its list.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|taken| taken.address == self.address) {
                held.remove(at);
            }
        });
    }
}

/// What this thread holds, put aside until this is dropped, also by a panic.
#[cfg(all(debug_assertions, not(feature = "shuttle")))]
struct Aside {
    mine: Vec<Taken>,
}

#[cfg(all(debug_assertions, not(feature = "shuttle")))]
impl Aside {
    fn put() -> Self {
        let mine = HELD.take();
        WAITING.with_borrow_mut(|waiting| waiting.extend(&mine));
        Self { mine }
    }
}

#[cfg(all(debug_assertions, not(feature = "shuttle")))]
impl Drop for Aside {
    fn drop(&mut self) {
        let mine = std::mem::take(&mut self.mine);
        WAITING.with_borrow_mut(|waiting| waiting.truncate(waiting.len() - mine.len()));
        HELD.set(mine);
    }
}

/// Runs what another thread would: it holds nothing, and cannot have what this one holds. For a simulated device that does something else
/// while it is asked, too.
pub fn as_another_thread<T>(run: impl FnOnce() -> T) -> T {
    #[cfg(all(debug_assertions, not(feature = "shuttle")))]
    {
        let _aside = Aside::put();
        crate::trace::outside(run)
    }
    #[cfg(any(not(debug_assertions), feature = "shuttle"))]
    run()
}

#[cfg(all(debug_assertions, not(feature = "shuttle")))]
#[track_caller]
fn check(next: crate::rank::Place, address: usize) {
    let waits = WAITING.with_borrow(|waiting| waiting.iter().find(|taken| taken.address == address).copied());
    if let Some(Taken { at, .. }) = waits {
        panic!(
            "'{}' is waited for, and held since {at} by who waits meanwhile",
            next.name
        );
    }
    let is_before = |taken: &&Taken| {
        let level = taken.place.level;
        taken.address == address || level > next.level || (level == next.level && !next.several)
    };
    if let Some(Taken { place, at, .. }) = HELD.with_borrow(|held| held.iter().find(is_before).copied()) {
        panic!(
            "'{}' is waited for while '{}' is held, since {at}: crates/sync/src/rank.rs says the other way round",
            next.name, place.name
        );
    }
}

/// Called before a device is read, written, flushed or trimmed. Panics if the thread holds a lock that is never held
/// across device I/O.
#[inline]
#[track_caller]
pub fn about_to_do_io() {
    #[cfg(all(debug_assertions, not(feature = "shuttle")))]
    {
        let never = |taken: &&Taken| !taken.place.across_io;
        if let Some(Taken { place, at, .. }) = HELD.with_borrow(|held| held.iter().find(never).copied()) {
            panic!(
                "a device is asked while '{}' is held, since {at}: never across I/O",
                place.name
            );
        }
    }
}
