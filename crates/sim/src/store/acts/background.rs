//! What the store does beside its clients: background steps, checkpoints, scrubs, moves between tiers.
//!
//! What must hold: the background comes to rest, and at rest no chunk is kept that nothing refers to, unless a writer holds
//! it.

use terrace_chunk::{ScrubCursor, Step};
use terrace_store::{ChunkId, Placement, Store};

use crate::{act::Act, ensure, store::world::StoreWorld, trace, violation, violation::Check};

/// Steps of the background after which it must have come to rest.
const STEPS_MAX: u64 = 20_000;

/// Some steps of the background.
pub(crate) struct Background;

impl Act<StoreWorld> for Background {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let store = world.store()?;
        // Work that is left half done while clients go on matters most where much is written.
        let steps = match world.wordy && world.random.chance(2, 3) {
            true => 1,
            false => world.random.between(1, 12),
        };
        for _ in 0..steps {
            match store.step() {
                Ok(Step::More) => {}
                Ok(Step::Idle) => break,
                Err(error) => return world.after_error("step", &error),
            }
        }
        world.audit_root()
    }
}

/// Steps until there is nothing to do.
pub(crate) struct Rest;

impl Act<StoreWorld> for Rest {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let store = world.store()?;
        for _ in 0..STEPS_MAX {
            match store.step() {
                Ok(Step::More) => {}
                Ok(Step::Idle) => return Self::check_rested(world),
                Err(error) => return world.after_error("step", &error),
            }
        }
        violation!("the background found no rest in {STEPS_MAX} steps")
    }
}

impl Rest {
    /// At rest there is no chunk that nothing refers to, unless a writer holds it.
    fn check_rested(world: &StoreWorld) -> Check {
        let chunks = world.store()?.space().chunks;
        let wanted = world.model.references().len() as u64;
        ensure!(
            chunks == wanted || !world.held.is_empty() || world.is_explained(),
            "{chunks} chunks are kept at rest, {wanted} are referred to"
        );
        Ok(())
    }
}

/// A checkpoint of the store.
pub(crate) struct Checkpoint;

impl Act<StoreWorld> for Checkpoint {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let store = world.store()?;
        trace!(world.trace, "checkpoint");
        match store.checkpoint() {
            Ok(()) => {
                world.flushed(store.newest());
                world.model.is_everywhere();
                world.condition.checkpointed();
                world.audit_root()
            }
            Err(error) => world.after_error("checkpoint", &error),
        }
    }
}

/// A whole scrub.
pub(crate) struct Scrub;

impl Act<StoreWorld> for Scrub {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let store = world.store()?;
        trace!(world.trace, "scrub");
        let mut cursor = ScrubCursor::default();
        for _ in 0..STEPS_MAX {
            match store.scrub_step(&mut cursor, 1 << 20) {
                Ok(progress) => {
                    ensure!(
                        (progress.damaged.is_empty()
                            && (progress.damaged_metadata.is_empty() || world.condition.scarred))
                            || world.is_explained(),
                        "scrub found damage where there is none: {:?} {:?}",
                        progress.damaged,
                        progress.damaged_metadata
                    );
                    if progress.finished {
                        // What had lost a copy has it again.
                        world.condition.scrubbed(world.is_explained());
                        return Ok(());
                    }
                }
                Err(error) => return world.after_error("scrub", &error),
            }
        }
        violation!("a scrub has no end")
    }
}

/// Chunks are moved to a tier.
pub(crate) struct Rewrite;

impl Act<StoreWorld> for Rewrite {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let store = world.store()?;
        let ids: Vec<ChunkId> = world.model.references().into_keys().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let count = world.random.between(1, 20);
        let chosen: Vec<ChunkId> = (0..count).map(|_| *world.random.pick(&ids)).collect();
        let tier = world.random.below(world.rig.shape.tiers.len() as u64) as u8;
        let strict = world.random.chance(1, 2);
        match store.rewrite(&chosen, Placement::Tier { tier, strict }) {
            Ok(outcome) => {
                trace!(
                    world.trace,
                    "rewrite to tier {tier}: {} moved, {} skipped", outcome.moved, outcome.skipped
                );
                if outcome.moved > 0 && tier > 0 {
                    world.moved_to_slower_tier();
                }
                ensure!(
                    outcome.failed.is_empty() || world.is_explained(),
                    "rewrite could not read {:?}",
                    outcome.failed
                );
                Ok(())
            }
            Err(error) => {
                world.note_full(&error);
                world.after_error("rewrite", &error)
            }
        }
    }
}
