//! What the engine does beside its clients: some background steps, or all there are, and checkpoints of the store.
//!
//! What must hold: whatever fails, what the newest root needs is still held; the background comes to rest.

use crate::{
    act::Act,
    fs::{
        checks::{RootHeld, RootHolders, ScrubClean},
        world::World,
    },
    trace, violation,
    violation::Check,
};

/// Steps of the background after which it must have come to rest.
const STEPS_MAX: u64 = 50_000;

/// Some steps.
pub(crate) struct Background;

impl Act<World> for Background {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        for _ in 0..world.rig.random.between(1, 16) {
            match engine.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return world.excuse("step", &error.to_string()),
            }
        }
        world.look_at_members()?;
        world.check(&RootHeld)?;
        world.check(&ScrubClean)
    }
}

/// Steps until there is nothing to do.
pub(crate) struct Rest;

impl Act<World> for Rest {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        let mut idle = 0;
        for _ in 0..STEPS_MAX {
            match engine.step() {
                Ok(true) => idle = 0,
                Ok(false) => idle += 1,
                Err(error) => return world.excuse("step", &error.to_string()),
            }
            if idle == 4 {
                return world.look_at_members();
            }
        }
        violation!("the background found no rest in {STEPS_MAX} steps")
    }
}

/// A checkpoint of the store.
pub(crate) struct StoreCheckpoint;

impl Act<World> for StoreCheckpoint {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        trace!(world.rig.trace, "store checkpoint");
        match engine.chunks().checkpoint() {
            Ok(()) => {
                world.check(&RootHolders)?;
                world.check(&RootHeld)
            }
            Err(error) => world.excuse("checkpoint", &error.to_string()),
        }
    }
}
