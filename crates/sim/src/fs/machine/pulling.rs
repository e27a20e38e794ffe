//! Disks that are pulled while the pool is used, in some of the runs: it goes on without one, which is back later, or has left
//! the pool meanwhile. In the same runs more is set of tiers: copies, what sinks by its age, and how far they hold.
//!
//! What must hold: where everything has its second copy, nothing is missed without the disk, whatever is done meanwhile and
//! however often the power goes; once the disk is back, it gets what it lacks; one of which the pool is rid is left alone.
//!
//! Invariant: one disk is away at a time, and devices do not fail by chance meanwhile: what is on one of the others has no
//! second copy then.

use terrace_engine::JobStatus;
use terrace_pool::{DeviceState, Presence};

use super::copies::{Copies, Dispensable};
use crate::{
    act::Act,
    ensure,
    fs::{
        background::{Rest, Tick},
        rig::Rig,
        world::World,
    },
    hardware::FaultKind,
    trace,
    violation::Check,
};

/// Ticks within which everything must have been brought to a disk that was away.
const TICKS_MAX: usize = 40;

/// Now and then a disk is pulled, or is back.
pub(crate) struct PullDisks {
    happens: bool,
    /// The power goes at the moment at which a disk that was away is called whole.
    cuts: bool,
}

impl Act<World> for PullDisks {
    fn perform(&mut self, world: &mut World) -> Check {
        if !self.happens || !world.rig.is_powered() {
            return Ok(());
        }
        match world.rig.members.pulled() {
            None if world.rig.pulling.chance(1, 40) => ChangeTierFurther.perform(world),
            None if world.rig.pulling.chance(1, 20) => Self::pull(world),
            Some(_) if world.rig.pulling.chance(1, 25) => self.put_back(world),
            _ => Ok(()),
        }
    }

    /// All disks are there again, and the pool is opened once more after a power cut.
    fn end(&mut self, world: &mut World) -> Check<bool> {
        world.rig.machine.cut_power_after(None);
        self.put_back(world)?;
        world.rig.machine.cut_power_after(None);
        world.reopen(true, false)?;
        Ok(false)
    }
}

impl PullDisks {
    pub(crate) fn new(seed: u64, world: &mut World) -> Self {
        Self {
            happens: world.rig.pulling.chance(1, 6),
            cuts: seed % 2 == 1,
        }
    }

    /// Takes a disk away without which nothing is missed, if there is one.
    fn pull(world: &mut World) -> Check {
        if world.rig.condition.is_failing() {
            return Ok(());
        }
        let Some(disk) = Dispensable.find(world)? else {
            return Ok(());
        };
        let in_use = world.rig.pulling.chance(1, 3);
        if !in_use {
            // What an opening shows is on all disks that it is to be on.
            let cut = world.rig.pulling.chance(1, 2);
            world.reopen(cut, false)?;
            if Dispensable.find(world)?.is_none() {
                return Ok(());
            }
        }
        if !world.rig.machine.is_powered() || !world.rig.members.contains(disk) {
            return Ok(());
        }
        trace!(world.rig.trace, "disk {disk} is pulled, in use: {in_use}");
        world.rig.coverage.hit(FaultKind::Pulled);
        world
            .rig
            .machine
            .with_disk(disk, |disk, _| (disk.vanished, disk.pulled) = (true, true));
        world.rig.members.pull(disk);
        // Everything has its copies now; what is written while the disk cannot be reached has one.
        (world.rig.condition.scarred, world.rig.condition.owed) = (true, false);
        match in_use {
            true => {
                world.rig.condition.hurt = true;
                Ok(())
            }
            false => world.reopen(false, false),
        }
    }

    /// The disk is there again, as it was, or as another one if it has left the pool.
    fn put_back(&self, world: &mut World) -> Check {
        let Some(disk) = world.rig.members.put_back() else {
            return Ok(());
        };
        let (is_member, blank) = (world.rig.members.contains(disk), world.rig.pulling.chance(1, 2));
        trace!(world.rig.trace, "disk {disk} is back, a member: {is_member}");
        world.rig.machine.with_disk(disk, |disk, _| {
            disk.pulled = false;
            if !is_member && blank {
                disk.blank();
            }
        });
        let cut = world.rig.pulling.chance(1, 2);
        world.reopen(cut, true)?;
        let engine = world.rig.engine()?;
        let devices = engine.pool().devices();
        if !is_member {
            ensure!(
                !world.rig.members.contains(disk),
                "disk {disk} had left the pool while it was away, and is part of it again"
            );
            world.rig.machine.with_disk(disk, |disk, _| disk.blank());
            return Ok(());
        }
        ensure!(
            devices.iter().all(|info| info.state == DeviceState::Online) || world.rig.condition.hurt,
            "disk {disk} is back, and the pool has {devices:?}"
        );
        if world.rig.pulling.chance(1, 2) {
            return self.has_what_it_missed(world);
        }
        Ok(())
    }

    /// Once the background has done what it can for a disk that was away, that is whole, if there was room.
    fn has_what_it_missed(&self, world: &mut World) -> Check {
        let mut last = None;
        let was_behind = is_one_behind(&world.rig)?;
        // Where there is no room it tries for half a minute.
        for _ in 0..TICKS_MAX {
            Tick.perform(world)?;
            if was_behind && self.cuts && !is_one_behind(&world.rig)? {
                break;
            }
            Rest.perform(world)?;
            let jobs = world.rig.engine()?.jobs().into_iter();
            last = jobs.filter(|job| job.kind == "resilver").max_by_key(|job| job.id);
            if last
                .as_ref()
                .is_none_or(|job| !matches!(&*job.state, "running" | "waiting"))
            {
                break;
            }
        }
        if !world.rig.machine.is_powered() || world.rig.condition.is_failing() || world.rig.condition.filled {
            return Ok(());
        }
        let devices = world.rig.engine()?.pool().devices();
        let mut behind = devices.iter().filter(|info| info.presence != Presence::Whole);
        let one = behind.next().map(|info| info.number);
        trace!(world.rig.trace, "behind: {one:?}, {last:?}");
        let excuses =
            |job: &JobStatus| job.reason.contains("no room") || matches!(&*job.state, "paused" | "cancelled");
        if last.as_ref().is_some_and(excuses) || world.rig.condition.owed {
            return Ok(());
        }
        ensure!(
            one.is_none(),
            "device {one:?} was away and is behind, at rest: {last:?}"
        );
        if self.cuts {
            // What makes it whole is durable: labels that say so are.
            trace!(
                world.rig.trace,
                "the power goes as the labels call all disks whole"
            );
            world.reopen(true, false)?;
            if is_one_behind(&world.rig)? || world.rig.condition.is_failing() {
                return Ok(());
            }
        }
        let is_mirrored = world.rig.engine()?.chunks().is_mirrored();
        match Copies::of(&world.rig)?.complete() {
            Ok((complete, completed)) => ensure!(
                completed == 0 && (is_mirrored || !complete)
                    || world.rig.condition.hurt
                    || !world.rig.machine.is_powered(),
                "a disk was away and is whole again, and {completed} copies were still missing, metadata mirrored: {is_mirrored}"
            ),
            Err(error) => return world.excuse("completing copies", &error.to_string()),
        }
        Ok(())
    }
}

/// Whether the labels say of a disk that it lacks something.
fn is_one_behind(rig: &Rig) -> Check<bool> {
    let devices = rig.engine()?.pool().devices();
    Ok(devices.iter().any(|info| info.presence != Presence::Whole))
}

/// A tier keeps one copy, or two; lets sink what rests for some time; or holds back what the tiers below could take.
struct ChangeTierFurther;

impl Act<World> for ChangeTierFurther {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        let tiers = engine.pool().tiers();
        let mut settings = world.rig.pulling.pick(&tiers).settings.clone();
        let name = settings.name.clone();
        match world.rig.pulling.below(4) {
            0 | 1 => {
                settings.copies = 3 - settings.copies;
                // What is there already gets its second copy from a scrub only.
                world.rig.condition.owed |= settings.copies > 1;
            }
            2 => settings.demote_after_seconds = *world.rig.pulling.pick(&[0, 10, 120]),
            _ => {
                let level = *world.rig.pulling.pick(&[None, Some(0.5), Some(0.9)]);
                let level = level.filter(|level| *level > settings.low_water);
                let set = engine.set_hold(&name, level);
                trace!(world.rig.trace, "hold={level:?} on {name}: {}", set.is_ok());
                world.models.settings.hold(&name, level, set.is_ok());
                return match set {
                    Ok(()) => Ok(()),
                    Err(error) => world.excuse("set hold", &error.to_string()),
                };
            }
        }
        let set = engine.set_tier(&name, settings.clone());
        trace!(
            world.rig.trace,
            "copies={} demote_after={} on {name}: {}",
            settings.copies,
            settings.demote_after_seconds,
            set.is_ok()
        );
        world.models.settings.tier(settings, set.is_ok());
        match set {
            Ok(_) => Ok(()),
            Err(error) => world.excuse("set a tier", &error.to_string()),
        }
    }
}
