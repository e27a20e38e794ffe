//! What an error leads to, and opening the store again after a cut, a kill or an error.
//!
//! Invariants: the store opens whatever stopped it, however often the opening itself is cut; only reads that fail meanwhile
//! excuse an opening that is refused. After each opening everything is compared with the model, and a client may write again
//! what was lost.

use terrace_pool::DeviceState;
use terrace_store::StoreError;

use super::{
    disk_loss,
    recent_writes::Recent,
    world::{Consequence, StoreWorld},
};
use crate::{
    ensure,
    hardware::{Counted, FaultKind, Survivors},
    store::model::Value,
    trace,
    violation::Check,
};

impl StoreWorld {
    pub(crate) fn after_error(&mut self, doing: &str, error: &StoreError) -> Check {
        match self.judge(doing, error)? {
            Consequence::GoOn => Ok(()),
            Consequence::Reopen => self.recover(false),
        }
    }

    pub(crate) fn calm(&mut self) {
        self.rig.machine.repair();
        self.condition.storm = false;
    }

    pub(crate) fn plan_cut(&mut self) {
        self.rig.machine.plan_stop(400, &mut self.random);
    }

    pub(crate) fn cut(&mut self) -> Check {
        trace!(self.trace, "power cut");
        self.rig.machine.cut_power();
        self.recover(false)
    }

    /// The power goes at the next flush.
    pub(crate) fn stop_at_flush(&mut self, survivors: Survivors) {
        trace!(self.trace, "power goes at the next flush: {survivors:?}");
        self.rig.machine.survivors(survivors);
        self.rig.machine.cut_power_at(Counted::Flushes, 0);
    }

    /// Opens again after a cut, a kill or an error, and checks everything. The power may go again meanwhile.
    pub(crate) fn recover(&mut self, cleanly: bool) -> Check {
        if self.condition.lying {
            self.condition.broken = true;
            return Ok(());
        }
        // Within one turn it may be opened and end more than once, with metadata written while a disk was left out.
        self.look_at_mirrors();
        self.store = None;
        self.held.clear();
        (self.condition.mended, self.condition.healed) = (false, false);
        // Faults of single operations end here: what is checked below is what is on the disks.
        self.condition.ragged |= self.rig.machine.lacks_a_disk();
        self.calm();
        self.condition.hurt = false;
        let machine = self.rig.machine.clone();
        let cut = !machine.is_powered() || (!cleanly && self.random.chance(1, 4));
        self.condition.ragged |= cut;
        if cut {
            self.coverage.hit(FaultKind::PowerCut);
            machine.cut_power();
            machine.settle();
        } else {
            machine.kill();
        }
        self.lose_a_disk()?;
        for attempt in 0.. {
            let again = attempt < 4 && !cleanly && self.random.chance(1, 4);
            machine.cut_power_after(again.then(|| self.random.skewed(300)));
            let may_misread = !cut && attempt == 0 && !cleanly && !self.ending && self.leaving.chance(1, 4);
            let spoiled =
                may_misread && machine.spoil_for_opening(!self.condition.stormed, &mut self.leaving);
            match self.rig.open(false) {
                Ok(store) => {
                    machine.repair();
                    machine.cut_power_after(None);
                    if machine.is_powered() {
                        let outdated = store.pool().outdated();
                        ensure!(
                            outdated.is_empty() || self.condition.stormed,
                            "devices {outdated:?} count as old copies, and refused nothing"
                        );
                        // What could not be read too often is not used for anything new until the next opening.
                        let mut devices = store.pool().devices().into_iter();
                        self.condition.hurt = devices.any(|device| device.state != DeviceState::Online);
                        self.store = Some(store);
                        break;
                    }
                }
                Err(error) => {
                    machine.repair();
                    if spoiled && machine.is_powered() {
                        trace!(self.trace, "opening: {error}");
                        machine.kill();
                        continue;
                    }
                    ensure!(!machine.is_powered(), "the pool does not open: {error}");
                    trace!(self.trace, "opening, power went: {error}");
                }
            }
            self.condition.ragged = true;
            self.coverage.hit(FaultKind::PowerCutInRecovery);
            machine.cut_power();
            machine.settle();
        }
        self.check_all()?;
        self.write_again()?;
        if self.random.chance(1, 3) {
            self.plan_cut();
        }
        Ok(())
    }

    /// Now and then, before an opening: what would be if a disk were gone.
    pub(crate) fn lose_a_disk(&mut self) -> Check {
        let disks = self.rig.machine.disk_count();
        if disks < 2
            || self.condition.stormed
            || self.condition.single
            || self.condition.lying
            || !self.losing.chance(1, 4)
        {
            return Ok(());
        }
        let lost = self.losing.index(disks);
        trace!(self.trace, "trial: disk {lost} is lost");
        self.coverage.hit(FaultKind::LostForGood);
        let (mut model, ragged) = (self.model.clone(), self.condition.ragged);
        if lost == 0 && self.log_may_be_behind() {
            model.lose_the_newest();
        }
        let done = self
            .rig
            .try_out(|rig| disk_loss::open_without(rig, lost, model, ragged));
        trace!(self.trace, "the end of the trial");
        done
    }

    /// After a recovery a client writes again what was lost, as before, and may be cut off again at once.
    pub(crate) fn write_again(&mut self) -> Check {
        let newest = self.model.newest();
        let lost: Vec<Recent> = self.recent.take_lost(newest);
        if lost.is_empty() || self.random.chance(1, 2) {
            return Ok(());
        }
        trace!(self.trace, "{} writes are made again", lost.len());
        let flushes = self.random.chance(2, 3);
        for recent in &lost {
            let written = self.write_as(
                &recent.contents,
                recent.compression,
                recent.dedup,
                recent.placement,
                false,
            )?;
            let Some(written) = written else { return Ok(()) };
            self.held
                .extend(written.into_iter().zip(recent.contents.iter().copied()));
        }
        let key = self.key();
        self.commit(vec![(key, Some(Value::default()))], Vec::new(), false)?;
        if flushes {
            match self.random.chance(1, 2) {
                true => self.rig.machine.cut_power_after(Some(self.random.below(12))),
                false => self.stop_at_flush(Survivors::Oldest),
            }
            return self.flush();
        }
        self.cut()
    }
}
