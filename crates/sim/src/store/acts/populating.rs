//! A store that is filled while nothing fails: the beginning of a run in which something is damaged later.

use super::{
    background::{Background, Checkpoint, Rewrite},
    batches::CommitBatch,
};
use crate::{act::Act, store::world::StoreWorld, violation::Check};

/// So many turns; the disks remember their content now and then.
pub(crate) struct Populate(pub(crate) u64);

impl Act<StoreWorld> for Populate {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        for _ in 0..self.0 {
            if world.condition.broken {
                // A batch that failed may count for the model and not for the store: what came after it would not fit.
                world.held.clear();
                return Ok(());
            }
            match world.random.below(100) {
                0..=64 => CommitBatch.perform(world)?,
                65..=76 => world.flush()?,
                77..=89 => Background.perform(world)?,
                90..=94 => Checkpoint.perform(world)?,
                95..=97 => Rewrite.perform(world)?,
                _ => {
                    for disk in 0..world.rig.machine.disk_count() {
                        world.rig.machine.with_disk(disk, |disk, _| disk.remember());
                    }
                }
            }
        }
        world.held.clear();
        world.flush()
    }
}
