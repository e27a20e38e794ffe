//! What happens to the machine, devices that fail by chance for a while and planned power cuts, and opening again after
//! a cut, a kill or an error.
//!
//! What must hold: a pool opens again whatever stopped it, and however often the opening itself is cut; only reads that
//! fail meanwhile excuse an opening that does not come through, and then the next one has to.

use terrace_pool::DeviceState;

use super::Run;
use crate::{ensure, hardware::FaultKind, trace, violation::Check};

impl Run {
    pub(super) fn weather(&mut self) -> Check {
        let begins = !self.storm && self.random.chance(1, 2);
        self.storm = begins && self.absence.pulled().is_none();
        let storm = self.storm;
        if storm {
            self.rig.machine.begin_storm(2500, &mut self.random);
        } else {
            self.rig.machine.end_storm();
        }
        self.hurt |= storm;
        self.scarred |= storm;
        trace!(self.trace, "storm: {storm}");
        Ok(())
    }

    fn calm(&mut self) {
        self.rig.machine.repair();
        self.storm = false;
    }

    pub(super) fn plan_cut(&mut self) -> Check {
        self.rig.machine.plan_stop(500, &mut self.random);
        Ok(())
    }

    /// Opens again after a cut (always with `cut`, else by chance or if the power went), a kill or an error.
    pub(crate) fn recover(&mut self, cut: bool) -> Check {
        let cut = cut || !self.rig.machine.is_powered() || self.random.chance(1, 4);
        self.reopen(cut, true)
    }

    pub(crate) fn reopen(&mut self, cut: bool, interrupted: bool) -> Check {
        self.engine = None;
        for filesystem in &mut self.filesystems {
            filesystem.handle = None;
            filesystem.held.clear();
            filesystem.quota_slack_bytes = 0;
        }
        for volume in &mut self.volumes {
            volume.handle = None;
        }
        self.calm();
        self.hurt = false;
        self.filled = false;
        self.accepted_bytes = 0;
        let machine = self.rig.machine.clone();
        if cut {
            trace!(self.trace, "power cut");
            self.coverage.hit(FaultKind::PowerCut);
            machine.cut_power();
            machine.settle();
        } else {
            trace!(self.trace, "end of the process");
            machine.kill();
        }
        for attempt in 0.. {
            let again = interrupted && attempt < 4 && self.random.chance(1, 4);
            machine.cut_power_after(again.then(|| self.random.skewed(400)));
            let doubled = self.absence.pulled().is_none();
            let mut troubled = interrupted && attempt < 4 && self.random.chance(1, 6) && doubled;
            if troubled {
                machine.trouble_reads(&mut self.random);
            }
            if interrupted && !cut && attempt == 0 && doubled && self.misreading.chance(1, 4) {
                troubled |= machine.spoil_for_opening(!self.scarred, &mut self.misreading);
            }
            let opened = self.rig.open(!doubled);
            machine.repair();
            match opened {
                Ok(engine) => {
                    machine.cut_power_after(None);
                    if machine.is_powered() {
                        // What could not be read too often is not used for anything new until the next opening.
                        let devices = engine.pool().devices().into_iter();
                        let mut ill = devices.filter(|device| device.state != DeviceState::Online);
                        self.hurt = ill.any(|device| !self.absence.explains(&device));
                        self.engine = Some(engine);
                        break;
                    }
                }
                Err(error) => {
                    trace!(self.trace, "opening: {error}");
                    if machine.is_powered() {
                        ensure!(troubled, "the pool does not open: {error}");
                        machine.kill();
                        continue;
                    }
                }
            }
            self.coverage.hit(FaultKind::PowerCutInRecovery);
            machine.cut_power();
            machine.settle();
        }
        self.members_after_opening()?;
        self.note_shortage()?;
        self.check_all()?;
        self.tick_failed = false;
        if interrupted && self.random.chance(1, 4) {
            self.plan_cut()?;
        }
        Ok(())
    }
}
