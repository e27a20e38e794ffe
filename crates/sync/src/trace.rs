//! Which locks an operation takes, one below the other: recorded while somebody asks for it.
//!
//! Used for `terrace-sim --locks`, which writes `docs/internals/locks.md`. Builds without debug assertions record nothing.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    mem,
};

/// Of each operation the chains of locks that were held together, outermost first, by their names.
pub type Chains = BTreeMap<&'static str, BTreeSet<Vec<&'static str>>>;

thread_local! {
    static RECORDED: RefCell<Recorded> = RefCell::default();
}

#[derive(Default)]
struct Recorded {
    operation: Option<&'static str>,
    chains: Chains,
}

/// What this thread does in `run` counts as this operation.
pub fn operation<T>(name: &'static str, run: impl FnOnce() -> T) -> T {
    let before = RECORDED.with_borrow_mut(|recorded| recorded.operation.replace(name));
    let result = run();
    RECORDED.with_borrow_mut(|recorded| recorded.operation = before);
    result
}

/// What was recorded on this thread so far; nothing of it is kept.
pub fn take() -> Chains {
    RECORDED.with_borrow_mut(|recorded| mem::take(&mut recorded.chains))
}

#[cfg_attr(
    not(debug_assertions),
    expect(dead_code, reason = "only builds that check have something to tell")
)]
pub(crate) fn taken(chain: impl FnOnce() -> Vec<&'static str>) {
    // A thread that ends may take locks after what it recorded is gone.
    let _ = RECORDED.try_with(|recorded| {
        let mut recorded = recorded.borrow_mut();
        let Some(operation) = recorded.operation else {
            return;
        };
        recorded.chains.entry(operation).or_default().insert(chain());
    });
}
