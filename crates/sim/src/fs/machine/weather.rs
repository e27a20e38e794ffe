//! What happens to the machine: devices that fail by chance for a while, planned stops, power cuts and kills.

use crate::{act::Act, fs::world::World, trace, violation::Check};

/// Devices begin or stop to fail by chance.
pub(crate) struct Weather;

impl Act<World> for Weather {
    fn perform(&mut self, world: &mut World) -> Check {
        let rig = &mut world.rig;
        let begins = !rig.condition.storm && rig.random.chance(1, 2);
        let storm = begins && rig.members.pulled().is_none();
        match storm {
            true => rig.machine.begin_storm(2500, &mut rig.random),
            false => rig.machine.end_storm(),
        }
        rig.condition.storm = storm;
        rig.condition.hurt |= storm;
        rig.condition.scarred |= storm;
        trace!(rig.trace, "storm: {storm}");
        Ok(())
    }
}

/// A stop is planned.
pub(crate) struct PlanCut;

impl Act<World> for PlanCut {
    fn perform(&mut self, world: &mut World) -> Check {
        world.plan_cut();
        Ok(())
    }
}

/// The power goes.
pub(crate) struct Cut;

impl Act<World> for Cut {
    fn perform(&mut self, world: &mut World) -> Check {
        world.recover(true)
    }
}

/// The process ends; by chance the power goes with it.
pub(crate) struct Kill;

impl Act<World> for Kill {
    fn perform(&mut self, world: &mut World) -> Check {
        world.recover(false)
    }
}
