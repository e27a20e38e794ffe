//! Disks that are pulled while the pool is used, in some of the runs: it goes on without one, which is back later, or has left
//! the pool meanwhile. In the same runs more is set of tiers: copies, what sinks by its age, and how far they hold.
//!
//! What must hold: where everything has its second copy, nothing is missed without the disk, whatever is done meanwhile and
//! however often the power goes; once the disk is back, it gets what it lacks; one of which the pool is rid is left alone.
//!
//! Invariant: one disk is away at a time, and devices do not fail by chance meanwhile: what is on one of the others has no
//! second copy then.

use terrace_chunk::ScrubCursor;
use terrace_engine::JobStatus;
use terrace_pool::{DeviceInfo, DeviceState, Presence};
use terrace_store::StoreError;

use crate::{
    ensure,
    fs::level::Run,
    hardware::{FaultKind, Random},
    trace,
    violation::Check,
};

/// Ticks within which everything must have been brought to a disk that was away.
const TICKS_MAX: usize = 40;

/// The disk that is away, if one is.
pub(crate) struct Absence {
    /// Chance of its own, so that it does not change what else a seed does.
    random: Random,
    happens: bool,
    /// The power goes at the moment at which a disk that was away is called whole.
    cuts: bool,
    pulled: Option<usize>,
    /// Copies may be missing beside those that a disk that was away lacks.
    owed: bool,
}

impl Absence {
    pub(crate) fn new(seed: u64) -> Self {
        // A number with which the seeds that are kept do as they did.
        let mut random = Random::new(seed ^ 0xAB5E_2619_0000);
        Self {
            happens: random.chance(1, 6),
            cuts: seed % 2 == 1,
            random,
            pulled: None,
            owed: false,
        }
    }

    /// Whether a device is missing because it was pulled.
    pub(crate) fn explains(&self, device: &DeviceInfo) -> bool {
        let is_this = |disk| device.path == format!("/simulated/disk{disk}");
        device.state == DeviceState::Missing && self.pulled.is_some_and(is_this)
    }

    /// Whether copies may be missing that no disk owes that was away.
    pub(crate) fn is_owed(&self) -> bool {
        self.owed
    }

    /// The disk that is away.
    pub(crate) fn pulled(&self) -> Option<usize> {
        self.pulled
    }
}

impl Run {
    /// Now and then a disk is pulled, or is back.
    pub(crate) fn disks_are_pulled(&mut self) -> Check {
        if !self.absence.happens || !self.rig.machine.is_powered() {
            return Ok(());
        }
        match self.absence.pulled {
            None if self.absence.random.chance(1, 40) => self.change_tier_further(),
            None if self.absence.random.chance(1, 20) => self.pull(),
            Some(_) if self.absence.random.chance(1, 25) => self.put_back(),
            _ => Ok(()),
        }
    }

    /// A tier keeps one copy, or two; lets sink what rests for some time; or holds back what the tiers below could take.
    fn change_tier_further(&mut self) -> Check {
        let engine = self.engine()?;
        let tiers = engine.pool().tiers();
        let mut settings = self.absence.random.pick(&tiers).settings.clone();
        let name = settings.name.clone();
        match self.absence.random.below(4) {
            0 | 1 => {
                settings.copies = 3 - settings.copies;
                // What is there already gets its second copy from a scrub only.
                self.absence.owed |= settings.copies > 1;
            }
            2 => settings.demote_after_seconds = *self.absence.random.pick(&[0, 10, 120]),
            _ => {
                let level = *self.absence.random.pick(&[None, Some(0.5), Some(0.9)]);
                let level = level.filter(|level| *level > settings.low_water);
                let set = engine.set_hold(&name, level);
                trace!(self.trace, "hold={level:?} on {name}: {}", set.is_ok());
                self.settings.hold(&name, level, set.is_ok());
                return match set {
                    Ok(()) => Ok(()),
                    Err(error) => self.excuse("set hold", &error.to_string()),
                };
            }
        }
        let set = engine.set_tier(&name, settings.clone());
        trace!(
            self.trace,
            "copies={} demote_after={} on {name}: {}",
            settings.copies,
            settings.demote_after_seconds,
            set.is_ok()
        );
        self.settings.tier(settings, set.is_ok());
        match set {
            Ok(_) => Ok(()),
            Err(error) => self.excuse("set a tier", &error.to_string()),
        }
    }

    /// Takes a disk away without which nothing is missed, if there is one.
    fn pull(&mut self) -> Check {
        if self.storm || self.hurt {
            return Ok(());
        }
        let Some(disk) = self.dispensable()? else {
            return Ok(());
        };
        let in_use = self.absence.random.chance(1, 3);
        if !in_use {
            // What an opening shows is on all disks that it is to be on.
            let cut = self.absence.random.chance(1, 2);
            self.reopen(cut, false)?;
            if self.dispensable()?.is_none() {
                return Ok(());
            }
        }
        if !self.rig.machine.is_powered() || !self.members.contains(&disk) {
            return Ok(());
        }
        trace!(self.trace, "disk {disk} is pulled, in use: {in_use}");
        self.coverage.hit(FaultKind::Pulled);
        self.rig
            .machine
            .with_disk(disk, |disk, _| (disk.vanished, disk.pulled) = (true, true));
        self.absence.pulled = Some(disk);
        // Everything has its copies now; what is written while the disk cannot be reached has one.
        (self.scarred, self.absence.owed) = (true, false);
        match in_use {
            true => {
                self.hurt = true;
                Ok(())
            }
            false => self.reopen(false, false),
        }
    }

    /// A disk without which nothing is missed now, once everything has its copies.
    pub(crate) fn dispensable(&mut self) -> Check<Option<usize>> {
        let engine = self.engine()?;
        let devices = engine.pool().devices();
        let tiers = engine.pool().tiers();
        let is_well =
            |info: &DeviceInfo| info.state == DeviceState::Online && info.presence == Presence::Whole;
        if !devices.iter().all(is_well) {
            return Ok(None);
        }
        let (copies, tier) = (
            |tier: u8| tiers[usize::from(tier)].settings.copies,
            |info: &DeviceInfo| info.tier,
        );
        let could_go = |info: &&DeviceInfo| {
            let of_tier = devices
                .iter()
                .filter(|other| tier(other) == info.tier && !other.draining);
            copies(info.tier) > 1 && of_tier.count() > 1 && !info.draining
        };
        let could_go: Vec<u16> = devices.iter().filter(could_go).map(|info| info.number).collect();
        let numbers = self.numbers.iter();
        let disks: Vec<usize> = numbers
            .filter(|(_, number)| could_go.contains(number))
            .map(|(disk, _)| *disk)
            .collect();
        if disks.is_empty() {
            return Ok(None);
        }
        self.tick()?;
        match self.complete_copies() {
            Ok((true, _)) if !self.hurt && !self.storm => Ok(Some(*self.absence.random.pick(&disks))),
            Ok(_) => Ok(None),
            Err(error) => {
                self.excuse("completing copies", &error.to_string())?;
                Ok(None)
            }
        }
    }

    /// Gives everything its second copy; whether it has that, and how many were missing.
    pub(crate) fn complete_copies(&self) -> Result<(bool, u64), StoreError> {
        let Some(engine) = self.engine.clone() else {
            return Ok((false, 0));
        };
        let chunks = engine.chunks();
        let scrubbed = chunks.scrub_step(&mut ScrubCursor::default(), u64::MAX)?;
        let mirrored = chunks.mirror_now()?;
        chunks.checkpoint()?;
        trace!(
            self.trace,
            "{} copies completed, {} repaired, {} short, {} damaged, mirrored: {mirrored}",
            scrubbed.completed,
            scrubbed.repaired,
            scrubbed.short,
            scrubbed.damaged.len()
        );
        let complete = mirrored && scrubbed.short + scrubbed.unmended == 0 && scrubbed.damaged.is_empty();
        Ok((complete, scrubbed.completed + scrubbed.repaired))
    }

    /// The disk is there again, as it was, or as another one if it has left the pool.
    pub(crate) fn put_back(&mut self) -> Check {
        let Some(disk) = self.absence.pulled.take() else {
            return Ok(());
        };
        let (is_member, blank) = (self.members.contains(&disk), self.absence.random.chance(1, 2));
        trace!(self.trace, "disk {disk} is back, a member: {is_member}");
        self.rig.machine.with_disk(disk, |disk, _| {
            disk.pulled = false;
            if !is_member && blank {
                disk.blank();
            }
        });
        let cut = self.absence.random.chance(1, 2);
        self.reopen(cut, true)?;
        let engine = self.engine()?;
        let devices = engine.pool().devices();
        if !is_member {
            ensure!(
                !self.members.contains(&disk),
                "disk {disk} had left the pool while it was away, and is part of it again"
            );
            self.rig.machine.with_disk(disk, |disk, _| disk.blank());
            return Ok(());
        }
        ensure!(
            devices.iter().all(|info| info.state == DeviceState::Online) || self.hurt,
            "disk {disk} is back, and the pool has {devices:?}"
        );
        if self.absence.random.chance(1, 2) {
            return self.has_what_it_missed();
        }
        Ok(())
    }

    /// Once the background has done what it can for a disk that was away, that is whole, if there was room.
    fn has_what_it_missed(&mut self) -> Check {
        let mut last = None;
        let was_behind = self.is_one_behind()?;
        // Where there is no room it tries for half a minute.
        for _ in 0..TICKS_MAX {
            self.tick()?;
            if was_behind && self.absence.cuts && !self.is_one_behind()? {
                break;
            }
            self.rest()?;
            let jobs = self.engine()?.jobs().into_iter();
            last = jobs.filter(|job| job.kind == "resilver").max_by_key(|job| job.id);
            if last
                .as_ref()
                .is_none_or(|job| !matches!(&*job.state, "running" | "waiting"))
            {
                break;
            }
        }
        if !self.rig.machine.is_powered() || self.hurt || self.storm || self.filled {
            return Ok(());
        }
        let devices = self.engine()?.pool().devices();
        let mut behind = devices.iter().filter(|info| info.presence != Presence::Whole);
        let one = behind.next().map(|info| info.number);
        trace!(self.trace, "behind: {one:?}, {last:?}");
        let excuses =
            |job: &JobStatus| job.reason.contains("no room") || matches!(&*job.state, "paused" | "cancelled");
        if last.as_ref().is_some_and(excuses) || self.absence.owed {
            return Ok(());
        }
        ensure!(
            one.is_none(),
            "device {one:?} was away and is behind, at rest: {last:?}"
        );
        if self.absence.cuts {
            // What makes it whole is durable: labels that say so are.
            trace!(self.trace, "the power goes as the labels call all disks whole");
            self.reopen(true, false)?;
            if self.is_one_behind()? || self.hurt || self.storm {
                return Ok(());
            }
        }
        let is_mirrored = self.engine()?.chunks().is_mirrored();
        match self.complete_copies() {
            Ok((complete, completed)) => ensure!(
                completed == 0 && (is_mirrored || !complete) || self.hurt || !self.rig.machine.is_powered(),
                "a disk was away and is whole again, and {completed} copies were still missing, metadata mirrored: {is_mirrored}"
            ),
            Err(error) => return self.excuse("completing copies", &error.to_string()),
        }
        Ok(())
    }

    /// Whether the labels say of a disk that it lacks something.
    fn is_one_behind(&self) -> Check<bool> {
        let devices = self.engine()?.pool().devices();
        Ok(devices.iter().any(|info| info.presence != Presence::Whole))
    }
}
