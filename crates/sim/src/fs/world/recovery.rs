//! Opening again after a cut, a kill or an error, and the comparison of everything with the models that follows.
//!
//! What must hold: a pool opens again whatever stopped it, and however often the opening itself is cut; only reads that
//! fail meanwhile excuse an opening that does not come through, and then the next one has to.

use terrace_pool::DeviceState;

use super::world::World;
use terrace_sync::trace::operation;

use crate::{
    ensure,
    fs::checks::{
        Audit, DeviceSizes, FilesystemFound, GuestsFound, Invariant, PastShown, RetainedFound, SettingsKept,
        Shortage, SnapshotNames, SnapshotsSettled, Tables, VolumeSizes, VolumeSnapshots, VolumesFound,
    },
    hardware::FaultKind,
    trace, violation,
    violation::Check,
};

/// What must hold after every opening, before and behind the filesystems.
const BEFORE_FILESYSTEMS: [&dyn Invariant; 2] = [&SnapshotsSettled, &SnapshotNames];
const BEHIND_FILESYSTEMS: [&dyn Invariant; 8] = [
    &VolumesFound,
    &VolumeSnapshots,
    &GuestsFound,
    &VolumeSizes,
    &DeviceSizes,
    &SettingsKept,
    &Tables,
    &Audit,
];

impl World {
    /// Opens again after a cut (always with `cut`, else by chance or if the power went), a kill or an error.
    pub(crate) fn recover(&mut self, cut: bool) -> Check {
        let cut = cut || !self.rig.is_powered() || self.rig.random.chance(1, 4);
        self.reopen(cut, true)
    }

    /// Stops the machine by a power cut or a kill, and opens the pool again; the opening is interrupted by chance.
    pub(crate) fn reopen(&mut self, cut: bool, interrupted: bool) -> Check {
        operation("Open", || self.open_after_stop(cut, interrupted))
    }

    fn open_after_stop(&mut self, cut: bool, interrupted: bool) -> Check {
        self.stop(cut);
        self.open_again(cut, interrupted)?;
        self.members_after_opening()?;
        self.check(&Shortage)?;
        self.compare_everything()?;
        self.models.tick_failed = false;
        if interrupted && self.rig.random.chance(1, 4) {
            self.plan_cut();
        }
        Ok(())
    }

    /// A stop is planned.
    pub(crate) fn plan_cut(&mut self) {
        self.rig.machine.plan_stop(500, &mut self.rig.random);
    }

    /// Closes the pool and ends the process: everything is written, on whole devices. `false` if the pool is too full for that.
    pub(crate) fn at_rest(&mut self) -> Check<bool> {
        let rig = &mut self.rig;
        let engine = rig.engine()?;
        rig.handles.close_all();
        let closed = engine.close();
        drop(engine);
        rig.engine = None;
        rig.machine.kill();
        match closed {
            Ok(()) => Ok(true),
            Err(error) if error.to_string().contains("is full") => {
                trace!(rig.trace, "close: {error}");
                Ok(false)
            }
            Err(error) => violation!("cannot close: {error}"),
        }
    }

    fn stop(&mut self, cut: bool) {
        let rig = &mut self.rig;
        rig.engine = None;
        rig.handles.close_all();
        self.models.stopped();
        rig.machine.repair();
        rig.condition.storm = false;
        rig.condition.hurt = false;
        rig.condition.filled = false;
        if cut {
            trace!(rig.trace, "power cut");
            rig.coverage.hit(FaultKind::PowerCut);
            rig.machine.cut_power();
            rig.machine.settle();
        } else {
            trace!(rig.trace, "end of the process");
            rig.machine.kill();
        }
    }

    fn open_again(&mut self, cut: bool, interrupted: bool) -> Check {
        let rig = &mut self.rig;
        let machine = rig.machine.clone();
        for attempt in 0.. {
            let again = interrupted && attempt < 4 && rig.random.chance(1, 4);
            machine.cut_power_after(again.then(|| rig.random.skewed(400)));
            let doubled = rig.members.pulled().is_none();
            let mut troubled = interrupted && attempt < 4 && rig.random.chance(1, 6) && doubled;
            if troubled {
                machine.trouble_reads(&mut rig.random);
            }
            if interrupted && !cut && attempt == 0 && doubled && self.misreading.chance(1, 4) {
                troubled |= machine.spoil_for_opening(!rig.condition.scarred, &mut self.misreading);
            }
            let opened = rig.open(!doubled);
            machine.repair();
            match opened {
                Ok(engine) => {
                    machine.cut_power_after(None);
                    if machine.is_powered() {
                        // What could not be read too often is not used for anything new until the next opening.
                        let devices = engine.pool().devices().into_iter();
                        let mut ill = devices.filter(|device| device.state != DeviceState::Online);
                        rig.condition.hurt = ill.any(|device| !rig.members.explains(&device));
                        rig.engine = Some(engine);
                        break;
                    }
                }
                Err(error) => {
                    trace!(rig.trace, "opening: {error}");
                    if machine.is_powered() {
                        ensure!(troubled, "the pool does not open: {error}");
                        machine.kill();
                        continue;
                    }
                }
            }
            rig.coverage.hit(FaultKind::PowerCutInRecovery);
            machine.cut_power();
            machine.settle();
        }
        Ok(())
    }

    /// Everything against the models.
    fn compare_everything(&mut self) -> Check {
        for invariant in BEFORE_FILESYSTEMS {
            self.check(invariant)?;
        }
        for index in 0..self.models.filesystems.len() {
            self.compare_filesystem(index)?;
        }
        for invariant in BEHIND_FILESYSTEMS {
            self.check(invariant)?;
        }
        Ok(())
    }

    /// A filesystem, and some of its snapshots and checkpoints.
    fn compare_filesystem(&mut self, index: usize) -> Check {
        let names: Vec<String> = self.models.filesystems[index].snapshots.keys().cloned().collect();
        self.check(&FilesystemFound(index))?;
        for short in names {
            let is_known = self.models.filesystems[index].snapshots.contains_key(&short);
            if is_known
                && self.rig.random.chance(1, 2)
                && let Some(snapshot) = PastShown::of_snapshot(&self.models, index, &short)
            {
                self.check(&snapshot)?;
            }
        }
        self.check(&RetainedFound(index))?;
        let checkpoints: Vec<u64> = self.models.filesystems[index].retained.keys().copied().collect();
        for checkpoint in checkpoints {
            if self.rig.random.chance(1, 3)
                && let Some(retained) = PastShown::of_checkpoint(&self.models, index, checkpoint)
            {
                self.check(&retained)?;
            }
        }
        Ok(())
    }
}
