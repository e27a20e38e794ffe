//! What happens to the machine: devices that fail by chance for a while, power cuts, the end of the process, and a clean
//! close.
//!
//! Invariant: from a storm on, what is checked allows for what it may have taken; nothing else excuses anything.

use terrace_store::{Batch, Store, StoreError};

use super::batches::CommitBatch;
use crate::{act::Act, ensure, hardware::Survivors, store::world::StoreWorld, trace, violation::Check};

/// Devices begin or stop to fail by chance.
pub(crate) struct Weather;

impl Act<StoreWorld> for Weather {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let storm = !world.condition.storm && world.random.chance(1, 2);
        match storm {
            true => world.rig.machine.begin_storm(2500, &mut world.random),
            false => world.rig.machine.end_storm(),
        }
        world.condition.set_storm(storm);
        trace!(world.trace, "storm: {storm}");
        world.check_copies()
    }
}

/// A stop is planned.
pub(crate) struct PlanCut;

impl Act<StoreWorld> for PlanCut {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        world.plan_cut();
        Ok(())
    }
}

/// The power goes.
pub(crate) struct Cut;

impl Act<StoreWorld> for Cut {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        world.cut()
    }
}

/// The process ends.
pub(crate) struct Kill;

impl Act<StoreWorld> for Kill {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        trace!(world.trace, "kill");
        world.recover(false)
    }
}

/// A clean close, and the opening after it.
pub(crate) struct CloseAndOpen;

impl Act<StoreWorld> for CloseAndOpen {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        let store = world.store()?;
        world.held.clear();
        match store.close() {
            Ok(()) => {
                trace!(world.trace, "closed");
                world.flushed(store.newest());
                world.model.is_everywhere();
                ensure!(
                    matches!(store.commit(Batch::new()), Ok(_) | Err(StoreError::Stopped(_))),
                    "a closed store answers a commit with something else"
                );
                world.recover(true)
            }
            Err(error) => {
                world.judge("close", &error)?;
                world.recover(false)
            }
        }
    }
}

/// Cut off at the flush of what was written first after an opening, so that the log is there and its data is not;
/// and again while a client writes the same at the same place, so that the data is there and the log is the old one.
pub(crate) struct CutOffTwice;

impl Act<StoreWorld> for CutOffTwice {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        if world.condition.storm {
            return Ok(());
        }
        world.flush()?;
        world.held.clear();
        world.recent.clear();
        Kill.perform(world)?;
        world.rig.machine.cut_power_after(None);
        for _ in 0..world.random.between(1, 3) {
            CommitBatch.perform(world)?;
        }
        world.stop_at_flush(Survivors::Newest);
        world.flush()
    }
}
