//! The records in which heat, and which regions lie in pieces, outlast a restart.
//!
//! Invariants: both are hints: what cannot be kept, with the pool full or of an object that has too much of it, is in RAM only;
//! of an object's heat that are its coldest regions.

use terrace_dataset::keys;
use terrace_store::{Batch, StoreError};

use crate::mover::Mover;

/// Of an object's heat so much is kept: the hottest 5,461 regions.
const HEAT_BYTES_MAX: usize = 64 << 10;
/// Objects whose records are written at once.
const OBJECTS: usize = 256;

impl Mover {
    /// Keeps all that changed: before the pool is closed.
    pub fn save(&self) -> Result<(), StoreError> {
        while self.keep_hints()? {}
        Ok(())
    }

    /// Keeps some of what changed, so that it survives a restart; whether there may be more.
    pub(crate) fn keep_hints(&self) -> Result<bool, StoreError> {
        let mut batch = Batch::new();
        let is_known = |dataset| {
            let state = self.datasets.state_by_number(dataset);
            state.is_some_and(|state| !state.is_gone())
        };
        let heat = self.environment.heat.take_changed(OBJECTS, HEAT_BYTES_MAX);
        let fragments = self.environment.fragments.take_changed(OBJECTS);
        let more = heat.len() == OBJECTS || fragments.len() == OBJECTS;
        for (dataset, body, encoded) in heat {
            if is_known(dataset) {
                batch.put(keys::heat(dataset, body), encoded);
            }
        }
        for record in fragments {
            let key = keys::fragments(record.dataset, record.body, record.object);
            match record.regions {
                _ if !is_known(record.dataset) => {}
                Some(regions) => batch.put(key, regions),
                None => batch.delete(key),
            }
        }
        if batch.is_empty() {
            return Ok(more);
        }
        match self.environment.store.commit(batch) {
            // They are hints: a full pool does without.
            Err(StoreError::NoSpace) => Ok(false),
            other => other.map(|_| more),
        }
    }
}
