//! What happens to the machine: devices that fail by chance for a while, power cuts, the end of the process, and a clean
//! close.
//!
//! Invariant: from a storm on, what is checked allows for what it may have taken; nothing else excuses anything.

use terrace_store::{Batch, Store, StoreError};

use super::Run;
use crate::{ensure, run::Check, trace};

impl Run {
    /// Devices begin or stop to fail by chance.
    pub(super) fn weather(&mut self) -> Check {
        self.storm = !self.storm && self.random.chance(1, 2);
        let storm = self.storm;
        if storm {
            self.rig.machine.begin_storm(2500, &mut self.random);
        } else {
            self.rig.machine.end_storm();
        }
        self.scarred |= storm;
        self.stormed |= storm;
        self.healed &= !storm;
        // A device that failed a write is left out until the pool is opened again.
        self.hurt |= storm;
        trace!(self.trace, "storm: {storm}");
        self.check_copies()
    }

    pub(super) fn calm(&mut self) {
        self.rig.machine.repair();
        self.storm = false;
    }

    pub(super) fn plan_cut(&mut self) -> Check {
        self.rig.machine.plan_stop(400, &mut self.random);
        Ok(())
    }

    pub(super) fn cut(&mut self) -> Check {
        trace!(self.trace, "power cut");
        self.rig.machine.cut_power();
        self.recover(false)
    }

    pub(super) fn kill(&mut self) -> Check {
        trace!(self.trace, "kill");
        self.recover(false)
    }

    pub(super) fn close_and_open(&mut self) -> Check {
        let store = self.store()?;
        self.held.clear();
        match store.close() {
            Ok(()) => {
                trace!(self.trace, "closed");
                self.flushed(store.newest());
                self.model.is_everywhere();
                ensure!(
                    matches!(store.commit(Batch::new()), Ok(_) | Err(StoreError::Stopped(_))),
                    "a closed store answers a commit with something else"
                );
                self.recover(true)
            }
            Err(error) => {
                self.judge("close", &error)?;
                self.recover(false)
            }
        }
    }
}
