//! The records in which heat outlasts a restart.
//!
//! Invariants: heat is a hint: what cannot be kept, with the pool full or of an object that has too much of it, is in RAM only.

use terrace_dataset::keys;
use terrace_store::{Batch, StoreError};

use crate::mover::Mover;

/// Records that are kept: larger objects' heat is only in RAM.
const HEAT_BYTES_MAX: usize = 64 << 10;

impl Mover {
    /// Keeps all heat that changed: before the pool is closed.
    pub fn save(&self) -> Result<(), StoreError> {
        while self.keep_heat()? {}
        Ok(())
    }

    /// Keeps some of the heat that changed, so that it survives a restart; whether there was any.
    pub(crate) fn keep_heat(&self) -> Result<bool, StoreError> {
        let mut batch = Batch::new();
        let taken = self.environment.heat.take_changed(256);
        let any = !taken.is_empty();
        for (dataset, body, encoded) in taken {
            let known = self
                .datasets
                .state_by_number(dataset)
                .is_some_and(|state| !state.is_gone());
            if known && encoded.len() <= HEAT_BYTES_MAX {
                batch.put(keys::heat(dataset, body), encoded);
            }
        }
        if batch.is_empty() {
            return Ok(any);
        }
        match self.environment.store.commit(batch) {
            // Heat is a hint: a full pool does without.
            Err(StoreError::NoSpace) => Ok(false),
            other => other.map(|_| any),
        }
    }
}
