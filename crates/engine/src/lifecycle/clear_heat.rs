//! Heat that somebody wants forgotten.
//!
//! Invariants: what was forgotten does not come back with a crash; what nothing is known of since counts as used when it was
//! forgotten, also after a restart, or `demote_after` would take all of it for the oldest there is.

use terrace_dataset::keys;
use terrace_store::{Batch, Store};

use super::lifecycle::Lifecycle;
use crate::EngineError;

/// The labels' property that keeps when all heat was forgotten, minutes.
const CLEARED: &str = "heat.cleared_minutes";
/// Records dropped in one batch.
const DROPPED_AT_ONCE: usize = 1000;

impl Lifecycle {
    /// Forgets all heat; of how many objects some was known. After an error what is known in RAM is forgotten, and may come back
    /// with a restart.
    pub(crate) fn clear_heat(&self) -> Result<usize, EngineError> {
        self.open.check()?;
        let environment = &self.environment;
        let minutes = self.mover.minutes();
        self.pool.set_property(CLEARED, Some(&minutes.to_string()))?;
        environment.heat.note_cleared(minutes);
        environment.reuse.clear();
        environment.chunk_heat.clear();
        let objects = environment.heat.clear();
        self.mover.forget_hot()?;
        for some in objects.chunks(DROPPED_AT_ONCE) {
            let mut batch = Batch::new();
            batch.privileged();
            for (dataset, body) in some {
                batch.delete(keys::heat(*dataset, *body));
            }
            self.chunks.commit(batch)?;
        }
        self.chunks.flush(self.chunks.newest())?;
        Ok(objects.len())
    }

    /// Says to who counts heat when it was forgotten, as the labels have it.
    pub(super) fn recall_cleared_heat(&self) {
        let minutes = self
            .pool
            .property(CLEARED)
            .and_then(|minutes| minutes.parse().ok());
        if let Some(minutes) = minutes {
            // A clock that was ahead then does not keep everything where it is until that time comes.
            let minutes = self.mover.minutes().min(minutes);
            self.environment.heat.note_cleared(minutes);
        }
    }
}
