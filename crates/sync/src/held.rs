//! What the running thread holds, and whether it may take one more.
//!
//! Invariants: a lock is on the list from before it is waited for until it is given back, so that a thread that waits for
//! itself is found; the list is empty in builds without debug assertions, which pay nothing.

#[cfg(debug_assertions)]
use std::cell::RefCell;

use crate::rank::{Place, Rank};

#[cfg(debug_assertions)]
thread_local! {
    static HELD: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
    /// Which locks: those of the list above, and before them those of who waits while this thread stands in for others.
    static ADDRESSES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Which lock it is.
pub(crate) fn address<T: ?Sized>(lock: &T) -> usize {
    std::ptr::from_ref(lock).addr()
}

/// A lock on the list of its thread; off it once this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    level: usize,
    #[cfg(debug_assertions)]
    address: usize,
}

impl Held {
    /// Before a lock of this rank is waited for. Panics if the thread holds one that comes after it.
    #[inline]
    pub(crate) fn wait_for<R: Rank>(address: usize) -> Self {
        #[cfg(debug_assertions)]
        check(&R::PLACE, address);
        Self::have::<R>(address)
    }

    /// A lock of this rank was had without waiting: in any order.
    #[inline]
    pub(crate) fn have<R: Rank>(address: usize) -> Self {
        #[cfg(debug_assertions)]
        {
            ADDRESSES.with_borrow_mut(|addresses| addresses.push(address));
            HELD.with_borrow_mut(|held| {
                held.push(R::PLACE);
                crate::trace::taken(held);
            });
        }
        #[cfg(not(debug_assertions))]
        let _ = address;
        Self {
            #[cfg(debug_assertions)]
            level: R::PLACE.level,
            #[cfg(debug_assertions)]
            address,
        }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        // A thread that ends may drop guards after its list.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|place| place.level == self.level) {
                held.remove(at);
            }
        });
        #[cfg(debug_assertions)]
        let _ = ADDRESSES.try_with(|addresses| {
            let mut addresses = addresses.borrow_mut();
            if let Some(at) = addresses.iter().rposition(|address| *address == self.address) {
                addresses.remove(at);
            }
        });
    }
}

/// Runs what another thread would: it holds nothing, and cannot have what this one holds.
pub(crate) fn as_another_thread<T>(run: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    {
        let mine = HELD.take();
        let result = run();
        HELD.set(mine);
        result
    }
    #[cfg(not(debug_assertions))]
    run()
}

#[cfg(debug_assertions)]
fn check(next: &Place, address: usize) {
    let is_had = ADDRESSES.with_borrow(|addresses| addresses.contains(&address));
    assert!(
        !is_had,
        "'{}' is waited for by the thread that holds it",
        next.name
    );
    let before = HELD.with_borrow(|held| {
        let after = |place: &&Place| place.level > next.level || (place.level == next.level && !next.several);
        held.iter().find(after).copied()
    });
    if let Some(before) = before {
        panic!(
            "lock order: '{}' is taken while '{}' is held, which comes {} it in crates/sync/src/rank.rs",
            next.name,
            before.name,
            if before.level == next.level {
                "with"
            } else {
                "after"
            }
        );
    }
}

/// Called before a device is read, written, flushed or trimmed. Panics if the thread holds a lock that is never held
/// across device I/O.
#[inline]
pub fn about_to_do_io() {
    #[cfg(debug_assertions)]
    {
        let across = HELD.with_borrow(|held| held.iter().find(|place| !place.across_io).copied());
        if let Some(place) = across {
            panic!(
                "device I/O while the lock '{}' is held, which is never held across I/O",
                place.name
            );
        }
    }
}
