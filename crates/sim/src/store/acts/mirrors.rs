//! Copies of the log and of tables: whether they lie on two disks, and when those of the log are alike.

use crate::{act::Act, store::world::StoreWorld, trace, violation::Check};

/// Notes whether something lies on one disk only.
pub(crate) struct LookAtMirrors;

impl Act<StoreWorld> for LookAtMirrors {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        world.look_at_mirrors();
        Ok(())
    }
}

/// The background brings the copy of the log on a slower disk up to date.
pub(crate) struct CatchUp;

impl Act<StoreWorld> for CatchUp {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let Some(store) = world.store.clone() else {
            return Ok(());
        };
        if world.losing.chance(1, 16) {
            store.catch_up();
            if world.rig.machine.is_powered() && !world.condition.storm {
                trace!(world.trace, "the copies of the log are alike");
                world.model.is_everywhere();
            }
        }
        Ok(())
    }
}
