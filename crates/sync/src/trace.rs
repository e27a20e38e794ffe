//! Which locks an operation takes: recorded once somebody asks for it, to be written down (`terrace-sim --locks`).
//!
//! Builds without debug assertions record nothing. Of operations within one another the innermost counts.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Of each operation the names of the locks that it took.
pub type Taken = BTreeMap<&'static str, BTreeSet<&'static str>>;

static IS_ON: AtomicBool = AtomicBool::new(false);
static TAKEN: parking_lot::Mutex<Taken> = parking_lot::Mutex::new(Taken::new());

thread_local! {
    static OPERATION: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// From now on locks are recorded, of all threads.
pub fn record() {
    IS_ON.store(true, Relaxed);
}

/// What this thread does in `run` counts as this operation.
pub fn operation<T>(name: &'static str, run: impl FnOnce() -> T) -> T {
    during(Some(name), run)
}

/// What this thread does in `run` counts as none.
#[cfg(all(debug_assertions, not(feature = "shuttle")))]
pub(crate) fn outside<T>(run: impl FnOnce() -> T) -> T {
    during(None, run)
}

/// The operation from before, again, also after a panic.
struct Back(Option<&'static str>);

impl Drop for Back {
    fn drop(&mut self) {
        OPERATION.set(self.0);
    }
}

fn during<T>(name: Option<&'static str>, run: impl FnOnce() -> T) -> T {
    let before = OPERATION.replace(name);
    let _back = Back(before);
    run()
}

/// What was recorded so far.
pub fn taken() -> Taken {
    TAKEN.lock().clone()
}

#[cfg(all(debug_assertions, not(feature = "shuttle")))]
pub(crate) fn note(lock: &'static str) {
    if !IS_ON.load(Relaxed) {
        return;
    }
    // A thread that ends may take locks after its operation is gone.
    let Ok(Some(operation)) = OPERATION.try_with(Cell::get) else {
        return;
    };
    TAKEN.lock().entry(operation).or_default().insert(lock);
}
