//! `ReplaceDisks`: which runs replace missing disks, and when.

use terrace_engine::EngineError;
use terrace_mover::MoverError;
use terrace_pool::{DeviceInfo, DeviceState, Presence};

use super::{
    super::{
        copies::{Copies, Dispensable},
        devices::ReplaceDevice,
    },
    Gone, Replacement, add_fresh_disk, replacement_job,
};
use crate::{
    act::Act,
    ensure,
    fs::{
        background::{Rest, Tick},
        world::World,
    },
    hardware::{FaultKind, Random},
    trace, violation,
    violation::{Check, Violation},
};

/// Disks that a machine has at most.
const DISKS_MAX: usize = 9;

/// Now and then a disk that is away is replaced, or its replacement given up; and a run may end with one that is gone for
/// good.
pub(crate) struct ReplaceDisks {
    /// Chance of its own, so that it does not change what else a seed does.
    random: Random,
    /// Disks that are pulled while the pool is used are replaced now and then.
    in_use: bool,
    /// The run ends with a disk that is gone for good and replaced.
    at_end: bool,
    /// Of a disk that was replaced it is to be seen that everything has its copies.
    unchecked: bool,
}

impl Act<World> for ReplaceDisks {
    fn perform(&mut self, world: &mut World) -> Check {
        if !self.in_use || !world.rig.is_powered() {
            return Ok(());
        }
        let Some(away) = world.rig.members.pulled() else {
            self.unchecked = false;
            return Ok(());
        };
        if !world.rig.members.contains(away) {
            return match self.unchecked && self.random.chance(1, 3) {
                true => self.has_all_copies(world),
                false => Ok(()),
            };
        }
        let Some(number) = world.rig.members.number(away) else {
            return Ok(());
        };
        match self.random.below(14) {
            0 | 1 if world.rig.machine.disk_count() < DISKS_MAX => {
                let fresh = add_fresh_disk(&world.rig, &mut self.random);
                if self.random.chance(1, 4) {
                    let after = self.random.skewed(300);
                    world.rig.machine.cut_power_after(Some(after));
                }
                world.rig.coverage.hit(FaultKind::Replaced);
                self.unchecked = true;
                let member = format!("/simulated/disk{away}");
                ReplaceDevice { member, disk: fresh }.perform(world)
            }
            2 => Self::cancel(world, number),
            3 | 4 => {
                Tick.perform(world)?;
                Rest.perform(world)
            }
            _ => Ok(()),
        }
    }

    /// A disk is gone for good and is replaced.
    fn end(&mut self, world: &mut World) -> Check<bool> {
        if !self.at_end || world.rig.members.disks().len() < 2 || world.rig.condition.is_failing() {
            return Ok(false);
        }
        // As for a disk that is pulled: what an opening shows is on all disks that it is to be on.
        let mut covered = None;
        if Dispensable.find(world)?.is_some() {
            world.reopen(self.random.clone().chance(1, 2), false)?;
            covered = Dispensable.find(world)?;
        }
        if !world.rig.is_powered() || world.rig.condition.hurt || world.rig.members.disks().len() < 2 {
            return Ok(false);
        }
        if self.random.chance(1, 4) {
            covered = None;
        }
        let members: Vec<usize> = world.rig.members.disks();
        let disk = covered.unwrap_or_else(|| *self.random.pick(&members));
        let Some(number) = world.rig.members.number(disk) else {
            return Ok(false);
        };
        self.lose(world, disk, number, covered.is_some())
    }
}

impl ReplaceDisks {
    pub(crate) fn new(seed: u64, happens: bool) -> Self {
        // A number with which the seeds that are kept do as they did.
        let mut random = Random::new(seed ^ 0x2E91_0002_6000);
        Self {
            in_use: random.chance(1, 2) && happens,
            at_end: random.chance(1, 6) && happens,
            random,
            unchecked: false,
        }
    }

    /// The replacement of a disk is given up.
    fn cancel(world: &mut World, number: u16) -> Check {
        let engine = world.rig.engine()?;
        let Some(job) = replacement_job(&engine, number) else {
            return Ok(());
        };
        let cancelled = engine.job_action(job, "cancel");
        trace!(
            world.rig.trace,
            "replacement of {number} is given up: {}",
            cancelled.is_ok()
        );
        drop(engine);
        match cancelled {
            Err(EngineError::Mover(MoverError::Store(error))) => {
                world.excuse("giving up a replacement", &error.to_string())
            }
            // It was over already, perhaps.
            Ok(()) | Err(EngineError::Mover(_)) => world.look_at_members(),
            Err(error) => world.excuse("giving up a replacement", &error.to_string()),
        }
    }

    /// The pool has left a disk behind that was away: once the background rests no copy is missing.
    fn has_all_copies(&mut self, world: &mut World) -> Check {
        self.unchecked = false;
        for _ in 0..40 {
            Tick.perform(world)?;
            Rest.perform(world)?;
            let engine = world.rig.engine()?;
            let behind = |info: &DeviceInfo| info.presence != Presence::Whole;
            if !engine.pool().devices().iter().any(behind) {
                break;
            }
        }
        if !world.rig.is_powered()
            || world.rig.condition.is_failing()
            || world.rig.condition.filled
            || world.rig.condition.owed
        {
            return Ok(());
        }
        let devices = world.rig.engine()?.pool().devices();
        let whole = devices
            .iter()
            .all(|info| info.state == DeviceState::Online && info.presence == Presence::Whole);
        match Copies::of(&world.rig)?.complete() {
            Ok((_, completed)) => ensure!(
                completed == 0 || !whole || world.rig.condition.hurt || !world.rig.is_powered(),
                "a missing disk was replaced, the background rests, and {completed} copies were missing"
            ),
            Err(error) => return world.excuse("completing copies", &error.to_string()),
        }
        Ok(())
    }

    /// The last act; everything on the disk has another copy, or not.
    fn lose(&mut self, world: &mut World, disk: usize, number: u16, covered: bool) -> Check<bool> {
        let mut gone = Gone {
            disk,
            number,
            covered,
            opened_without: false,
        };
        if !world.at_rest()? {
            return Ok(true);
        }
        let in_use = self.random.chance(1, 3);
        let mut engine = None;
        if in_use {
            engine = Some(world.rig.open(false).map_err(Violation)?);
        }
        trace!(
            world.rig.trace,
            "disk {disk} ({number}) is gone for good and to be replaced, in use: {in_use}, covered: {}",
            gone.covered
        );
        world
            .rig
            .machine
            .with_disk(disk, |disk, _| (disk.vanished, disk.pulled) = (true, true));
        let engine = match engine {
            Some(engine) => engine,
            None => match world.rig.open(true) {
                Ok(engine) => {
                    gone.opened_without = true;
                    engine
                }
                Err(error) if gone.covered => {
                    violation!(
                        "everything has its second copy, and the pool does not open without disk {disk}: {error}"
                    )
                }
                // What has no second copy, of the log or of tables.
                Err(error) => {
                    trace!(world.rig.trace, "opening without it: {error}");
                    return Ok(true);
                }
            },
        };
        world.rig.coverage.hit(FaultKind::Replaced);
        let mut replacement = Replacement {
            world,
            random: &mut self.random,
            gone,
        };
        replacement.run(engine)?;
        Ok(true)
    }
}
