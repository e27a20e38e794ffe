//! `Current`: the state that readers see, and its exchange for the next one.
//!
//! Invariant: a state never changes, but for the newest memtable, which takes batches; whoever holds one reads what it held,
//! whatever happens meanwhile.

use std::sync::Arc;

use terrace_sync::{RwLock, RwLockReadGuard, rank};

use crate::{
    entries::Memtable,
    runs::{Version, Wanted},
};

/// What a reader sees: memory and tables at one moment.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) active: Arc<Memtable>,
    /// Newest first.
    pub(crate) sealed: Vec<Arc<Memtable>>,
    pub(crate) version: Arc<Version>,
}

impl State {
    /// The memtables, newest first.
    pub(super) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.sealed)
    }

    /// Memory of records that are not yet in tables, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memtables().map(|memtable| memtable.bytes()).sum()
    }

    /// What the memtables say of a key; whether nothing older can matter.
    pub(super) fn look_in_memory(&self, wanted: &mut Wanted<'_>) -> bool {
        for memtable in self.memtables() {
            wanted.look_in(memtable);
            if wanted.is_settled() {
                break;
            }
        }
        wanted.is_settled()
    }
}

/// See the module.
pub(crate) struct Current {
    state: RwLock<Arc<State>, rank::meta::Versions>,
}

impl Current {
    /// Nothing in memory but an empty memtable.
    pub(crate) fn new(version: Version, active: Memtable) -> Self {
        let state = State {
            active: Arc::new(active),
            sealed: Vec::new(),
            version: Arc::new(version),
        };
        Self {
            state: RwLock::new(Arc::new(state)),
        }
    }

    /// The state now.
    pub(crate) fn now(&self) -> Arc<State> {
        self.state.read().clone()
    }

    /// The same for a short look: who exchanges it waits.
    pub(super) fn look(&self) -> RwLockReadGuard<'_, Arc<State>, rank::meta::Versions> {
        self.state.read()
    }

    /// Makes a new state from the current one. `change` must be short: readers wait for it.
    pub(crate) fn install(&self, change: impl FnOnce(&mut State)) {
        let before = {
            let mut guard = self.state.write();
            let mut state = State::clone(&guard);
            change(&mut state);
            std::mem::replace(&mut *guard, Arc::new(state))
        };
        // Freeing a memtable can take long; not under the lock.
        drop(before);
    }
}
