//! `Stop`: whether the store still accepts work, and why not.
//!
//! Invariant: once it has stopped it does not go on.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use terrace_store::StoreError;
use terrace_sync::{Mutex, rank};

/// Whether the store accepts work. See the module.
pub(crate) struct Stop {
    cause: Mutex<Option<Arc<str>>, rank::Leaf>,
    stopping: AtomicBool,
}

impl Stop {
    /// Of these parts.
    pub(crate) fn new() -> Self {
        Self {
            cause: Mutex::new(None),
            stopping: AtomicBool::new(false),
        }
    }

    /// Why the store accepts no more commits, if it does not.
    pub(crate) fn stopped(&self) -> Option<Arc<str>> {
        self.cause.lock().clone()
    }

    pub(crate) fn check_running(&self) -> Result<(), StoreError> {
        if !self.stopping.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(StoreError::Stopped(
            self.stopped().unwrap_or_else(|| "it was closed".into()),
        ))
    }

    /// It was closed: from now on nothing is accepted.
    pub(crate) fn close(&self) {
        let mut cause = self.cause.lock();
        cause.get_or_insert_with(|| "it was closed".into());
        self.stopping.store(true, Ordering::Release);
    }

    /// Latches a failure: from now on nothing is accepted. Returns the error to be given to the caller.
    pub(crate) fn latch(&self, cause: &str) -> StoreError {
        let mut stop = self.cause.lock();
        let cause = stop.get_or_insert_with(|| cause.into()).clone();
        self.stopping.store(true, Ordering::Release);
        tracing::error!(%cause, "the store stopped accepting writes");
        StoreError::Stopped(cause)
    }
}
