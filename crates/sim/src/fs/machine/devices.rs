//! Devices that come and go under the run: they are added, emptied, replaced, taken out, used again, shrunk and grown.
//!
//! What must hold: none of it changes what any dataset shows; a device that was taken out is not needed any more (its
//! content is destroyed at once, to show it); nothing is refused but for a reason that the figures give.

use terrace_engine::{EngineError, TierPlace};

use crate::{
    act::Act,
    fs::{
        background::{Rest, Tick},
        checks::DeviceSizes,
        rig::Rig,
        world::World,
    },
    hardware::FRONT_BYTES,
    rig::MIB,
    trace,
    violation::Check,
};

/// Tiers that the pool of a run has at most.
const TIERS_MAX: usize = 4;

/// A device is added, emptied, taken out, used again, shrunk, or has grown.
#[derive(Default)]
pub(crate) struct ChangeDevices {
    tiers_made: u64,
}

impl Act<World> for ChangeDevices {
    fn perform(&mut self, world: &mut World) -> Check {
        stop_soon(&mut world.rig);
        let refusing = Self::refuse_labels(&mut world.rig);
        let changed = self.change_a_device(world);
        if let Some(disk) = refusing {
            let machine = &world.rig.machine;
            machine.with_disk(disk, |disk, _| disk.unwritable = None);
        }
        changed?;
        world.check(&DeviceSizes)
    }
}

impl ChangeDevices {
    /// A device refuses what is written to its front, now and then.
    fn refuse_labels(rig: &mut Rig) -> Option<usize> {
        let members = rig.members.disks();
        if rig.condition.storm
            || rig.members.pulled().is_some()
            || members.is_empty()
            || !rig.aside.chance(1, 8)
        {
            return None;
        }
        let disk = *rig.aside.pick(&members);
        trace!(rig.trace, "disk {disk} refuses its labels");
        rig.machine
            .with_disk(disk, |disk, _| disk.unwritable = Some(0..FRONT_BYTES));
        (rig.condition.hurt, rig.condition.scarred) = (true, true);
        Some(disk)
    }

    fn change_a_device(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        let members: Vec<usize> = world.rig.members.disks();
        let pulled = world.rig.members.pulled();
        let is_there = |disk: &usize| pulled != Some(*disk);
        let spares: Vec<usize> = (0..world.rig.machine.disk_count())
            .filter(|disk| !world.rig.members.contains(*disk) && is_there(disk))
            .collect();
        let member = format!("/simulated/disk{}", world.rig.random.pick(&members));
        let there: Vec<usize> = members.iter().copied().filter(is_there).collect();
        if there.is_empty() {
            return Ok(());
        }
        let (words, done) = match world.rig.random.below(10) {
            0..=3 if !spares.is_empty() => {
                let disk = *world.rig.random.clone().pick(&spares);
                return self.add_device(world, disk);
            }
            4 if !spares.is_empty() => {
                let disk = *world.rig.random.clone().pick(&spares);
                return ReplaceDevice { member, disk }.perform(world);
            }
            0..=5 => ("remove", engine.remove_device(&member).map(drop)),
            6 => ("evacuate", engine.evacuate_device(&member).map(drop)),
            7 => ("use again", engine.use_device_again(&member, false)),
            8 => {
                let jobs: Vec<u64> = engine.jobs().into_iter().map(|job| job.id).collect();
                if jobs.is_empty() {
                    return Ok(());
                }
                let action = *world.rig.random.pick(&["pause", "resume", "resume", "cancel"]);
                (action, engine.job_action(*world.rig.random.pick(&jobs), action))
            }
            _ if world.rig.random.chance(1, 2) => {
                let disk = *world.rig.random.pick(&there);
                let name = format!("/simulated/disk{disk}");
                let has = engine.find_device(&name).map_or(0, |info| info.size_bytes);
                let size = has.saturating_sub(world.rig.random.between(1, has / MIB / 2 + 1) * MIB);
                ("shrink", engine.shrink_device(&name, size).map(drop))
            }
            _ => {
                let disk = *world.rig.random.pick(&there);
                let more = world.rig.random.between(1, 4) * MIB;
                world
                    .rig
                    .machine
                    .with_disk(disk, |disk, _| disk.grow(disk.size_bytes() + more));
                let grown = engine.resize_device(&format!("/simulated/disk{disk}"));
                ("grow", grown.map(drop))
            }
        };
        trace!(world.rig.trace, "{words} {member}: {}", done.is_ok());
        let emptying = done.is_ok() && matches!(words, "remove" | "evacuate" | "shrink");
        match done {
            Err(EngineError::Mover(terrace_mover::MoverError::Store(error))) => {
                world.excuse(words, &error.to_string())
            }
            // What was written ahead of its commit leaves with the commit, which a daemon makes every few seconds.
            Ok(()) if emptying && world.rig.random.chance(1, 3) => {
                Tick.perform(world)?;
                Rest.perform(world)
            }
            // The figures forbid it, or it is no use: the words say which.
            Ok(()) | Err(EngineError::Invalid(_) | EngineError::Busy(_) | EngineError::Mover(_))
                if world.rig.is_powered() =>
            {
                world.look_at_members()
            }
            Ok(()) => Ok(()),
            Err(error) => Change(words).failed(world, &error.to_string()),
        }
    }

    fn add_device(&mut self, world: &mut World, disk: usize) -> Check {
        let engine = world.rig.engine()?;
        let tiers = engine.pool().tiers();
        let beside = world.rig.random.pick(&tiers).settings.name.clone();
        let (tier, place) = if world.rig.random.chance(1, 3) && tiers.len() < TIERS_MAX {
            let place = if world.rig.random.chance(1, 2) {
                TierPlace::Before(beside)
            } else {
                TierPlace::After(beside)
            };
            self.tiers_made += 1;
            (format!("new{}", self.tiers_made), Some(place))
        } else {
            (beside, None)
        };
        let device = world.rig.machine.device(disk);
        let added = engine.add_opened(&tier, device, place.as_ref(), 1, false);
        trace!(world.rig.trace, "add disk {disk} to {tier}: {}", added.is_ok());
        Change("add a device").joined(world, disk, added.map(drop))
    }
}

/// A disk takes the place of another one, which is emptied and leaves.
pub(super) struct ReplaceDevice {
    pub(super) member: String,
    pub(super) disk: usize,
}

impl Act<World> for ReplaceDevice {
    fn perform(&mut self, world: &mut World) -> Check {
        let (member, disk) = (self.member.as_str(), self.disk);
        let engine = world.rig.engine()?;
        let device = world.rig.machine.device(disk);
        let replaced = engine.replace_opened(member, device, false).map(drop);
        trace!(
            world.rig.trace,
            "replace {member} by disk {disk}: {}",
            replaced.is_ok()
        );
        match replaced {
            // The figures forbid it, or it is leaving already.
            Err(EngineError::Invalid(_) | EngineError::Busy(_)) if world.rig.is_powered() => {
                world.look_at_members()
            }
            other => Change("replace a device").joined(world, disk, other),
        }
    }
}

/// After a disk has left the power may go at once: what was moved off it is durable by then.
pub(crate) struct CutAfterLeaving;

impl Act<World> for CutAfterLeaving {
    fn perform(&mut self, world: &mut World) -> Check {
        if world.rig.members.take_left() && world.rig.random.chance(1, 2) {
            world.reopen(true, false)?;
            return world.check_without_what_left();
        }
        Ok(())
    }
}

/// The power goes, now and then, while labels are written.
pub(super) fn stop_soon(rig: &mut Rig) {
    if rig.aside.chance(1, 6) {
        let after = rig.aside.below(40);
        trace!(rig.trace, "power goes after {after} operations");
        rig.machine.cut_power_after(Some(after));
    }
}

/// A change of the devices, by what it does.
struct Change(&'static str);

impl Change {
    /// It failed: the pool goes on with the devices that it had, or is opened again.
    fn failed(&self, world: &mut World, words: &str) -> Check {
        let explained = world.rig.is_powered() && world.rig.condition.is_failing();
        if explained && !words.contains("stopped accepting writes") && world.rig.aside.chance(1, 2) {
            trace!(world.rig.trace, "{}: {words}; it goes on", self.0);
            world.rig.condition.hurt = true;
            return Ok(());
        }
        world.excuse(self.0, words)
    }

    /// A disk has joined the pool by it, or not.
    fn joined(&self, world: &mut World, disk: usize, joined: Result<(), EngineError>) -> Check {
        match joined {
            Ok(()) => world.look_at_members(),
            Err(error) => {
                self.failed(world, &error.to_string())?;
                world.look_at_members()?;
                // What an interrupted change left on it must not be in the way of the next one.
                if !world.rig.members.contains(disk) {
                    world.rig.machine.with_disk(disk, |disk, _| disk.blank());
                }
                Ok(())
            }
        }
    }
}
