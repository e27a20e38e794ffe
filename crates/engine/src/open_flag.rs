//! Whether the pool is open: asked by whatever changes it.
//!
//! Invariant: a pool that was closed stays so.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::EngineError;

/// See the module.
#[derive(Default)]
pub(crate) struct OpenFlag {
    closed: AtomicBool,
}

impl OpenFlag {
    /// Refuses what is asked of a closed pool.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(EngineError::Closed),
            false => Ok(()),
        }
    }

    /// From now on it is closed; whether it was open before.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }
}
