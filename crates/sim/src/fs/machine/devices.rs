//! Devices that come and go under the run, tiers that are set otherwise, data that is moved by hand, scrubs.
//!
//! What must hold: none of it changes what any dataset shows; a device that was taken out is not needed any more (its
//! content is destroyed at once, to show it); nothing is refused but for a reason that the figures give.

use std::collections::BTreeMap;

use terrace_chunk::ScrubCursor;
use terrace_engine::{Engine, EngineError, TierPlace};
use terrace_pool::Landing;

use crate::{
    ensure,
    fs::{
        level::Run,
        state::{Body, Node},
    },
    hardware::{FRONT_BYTES, root_guard},
    rig::MIB,
    trace,
    violation::Check,
};

/// Tiers that the pool of a run has at most.
const TIERS_MAX: usize = 4;

impl Run {
    /// The disks that are part of the pool now; those that have left since the last look are wiped.
    pub(crate) fn look_at_members(&mut self) -> Check {
        self.members_now(true)
    }

    /// The same after an opening. A disk may have left just before a cut, which came before it could be wiped.
    pub(crate) fn members_after_opening(&mut self) -> Check {
        self.members_now(false)
    }

    fn members_now(&mut self, wiped: bool) -> Check {
        if !self.rig.machine.is_powered() {
            return Ok(());
        }
        let Some(engine) = self.engine.clone() else {
            return Ok(());
        };
        let number = |path: &str| path.trim_start_matches("/simulated/disk").parse::<usize>().ok();
        let devices = engine.pool().devices();
        let numbers: BTreeMap<usize, u16> = devices
            .iter()
            .filter_map(|device| Some((number(&device.path)?, device.number)))
            .collect();
        let members = numbers.keys().copied().collect();
        let left: Vec<usize> = self.members.difference(&members).copied().collect();
        let before = std::mem::replace(&mut self.numbers, numbers);
        self.members = members;
        for gone in &left {
            trace!(self.trace, "disk {gone} has left the pool");
            let remains = self
                .rig
                .machine
                .with_disk(*gone, |disk, _| root_guard::remains(disk));
            // Nothing can be wiped off one that is not there.
            let away = self.absence.pulled() == Some(*gone);
            ensure!(
                remains.is_none() || !wiped || away || self.storm || self.hurt,
                "disk {gone} has left the pool and holds {} of it still",
                remains.unwrap_or_default()
            );
            if !away {
                self.rig.machine.with_disk(*gone, |disk, _| disk.blank());
            }
            if let Some(number) = before.get(gone) {
                match engine.chunks().claims_on(*number) {
                    Ok(claims) => ensure!(
                        claims.is_empty(),
                        "disk {gone} has left the pool, and {}",
                        claims.join("; ")
                    ),
                    Err(error) => return self.excuse("asking what is on a device", &error.to_string()),
                }
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        self.left = true;
        self.check_without_what_left()
    }

    /// After a disk has left the power may go at once: what was moved off it is durable by then.
    pub(crate) fn cut_after_leaving(&mut self) -> Check {
        if std::mem::take(&mut self.left) && self.random.chance(1, 2) {
            self.reopen(true, false)?;
            return self.check_without_what_left();
        }
        Ok(())
    }

    /// A disk has left: nothing refers to it, and everything can be read.
    fn check_without_what_left(&mut self) -> Check {
        if self.engine.is_none() || self.storm || self.hurt {
            return Ok(());
        }
        self.audit()?;
        self.check_tables()?;
        let progress = self
            .engine()?
            .chunks()
            .verify_step(&mut ScrubCursor::default(), u64::MAX);
        ensure!(
            progress.lost.is_empty() || !self.rig.machine.is_powered(),
            "a disk left the pool, and {} chunks cannot be read: {:?}",
            progress.lost.len(),
            progress.lost.first()
        );
        Ok(())
    }

    /// A device is added, emptied, taken out, used again, shrunk, or has grown.
    pub(crate) fn change_devices(&mut self) -> Check {
        self.stop_soon();
        let refusing = self.refuse_labels();
        let changed = self.change_a_device();
        if let Some(disk) = refusing {
            self.rig.machine.with_disk(disk, |disk, _| disk.unwritable = None);
        }
        changed?;
        self.check_sizes()
    }

    /// The power goes, now and then, while labels are written.
    fn stop_soon(&mut self) {
        if self.aside.chance(1, 6) {
            let after = self.aside.below(40);
            trace!(self.trace, "power goes after {after} operations");
            self.rig.machine.cut_power_after(Some(after));
        }
    }

    /// A device refuses what is written to its front, now and then.
    fn refuse_labels(&mut self) -> Option<usize> {
        let members: Vec<usize> = self.members.iter().copied().collect();
        if self.storm || self.absence.pulled().is_some() || members.is_empty() || !self.aside.chance(1, 8) {
            return None;
        }
        let disk = *self.aside.pick(&members);
        trace!(self.trace, "disk {disk} refuses its labels");
        self.rig
            .machine
            .with_disk(disk, |disk, _| disk.unwritable = Some(0..FRONT_BYTES));
        (self.hurt, self.scarred) = (true, true);
        Some(disk)
    }

    fn change_a_device(&mut self) -> Check {
        let engine = self.engine()?;
        let members: Vec<usize> = self.members.iter().copied().collect();
        let pulled = self.absence.pulled();
        let is_there = |disk: &usize| pulled != Some(*disk);
        let spares: Vec<usize> = (0..self.rig.machine.disk_count())
            .filter(|disk| !self.members.contains(disk) && is_there(disk))
            .collect();
        let member = format!("/simulated/disk{}", self.random.pick(&members));
        let there: Vec<usize> = members.iter().copied().filter(is_there).collect();
        if there.is_empty() {
            return Ok(());
        }
        let (words, done) = match self.random.below(10) {
            0..=3 if !spares.is_empty() => return self.add_device(*self.random.clone().pick(&spares)),
            4 if !spares.is_empty() => {
                return self.replace_device(&member, *self.random.clone().pick(&spares));
            }
            0..=5 => ("remove", engine.remove_device(&member).map(drop)),
            6 => ("evacuate", engine.evacuate_device(&member).map(drop)),
            7 => ("use again", engine.use_device_again(&member, false)),
            8 => {
                let jobs: Vec<u64> = engine.jobs().into_iter().map(|job| job.id).collect();
                if jobs.is_empty() {
                    return Ok(());
                }
                let action = *self.random.pick(&["pause", "resume", "resume", "cancel"]);
                (action, engine.job_action(*self.random.pick(&jobs), action))
            }
            _ if self.random.chance(1, 2) => {
                let disk = *self.random.pick(&there);
                let name = format!("/simulated/disk{disk}");
                let has = engine.find_device(&name).map_or(0, |info| info.size_bytes);
                let size = has.saturating_sub(self.random.between(1, has / MIB / 2 + 1) * MIB);
                ("shrink", engine.shrink_device(&name, size).map(drop))
            }
            _ => {
                let disk = *self.random.pick(&there);
                let more = self.random.between(1, 4) * MIB;
                self.rig
                    .machine
                    .with_disk(disk, |disk, _| disk.grow(disk.size_bytes() + more));
                let grown = engine.resize_device(&format!("/simulated/disk{disk}"));
                ("grow", grown.map(drop))
            }
        };
        trace!(self.trace, "{words} {member}: {}", done.is_ok());
        let emptying = done.is_ok() && matches!(words, "remove" | "evacuate" | "shrink");
        match done {
            Err(EngineError::Mover(terrace_mover::MoverError::Store(error))) => {
                self.excuse(words, &error.to_string())
            }
            // What was written ahead of its commit leaves with the commit, which a daemon makes every few seconds.
            Ok(()) if emptying && self.random.chance(1, 3) => {
                self.tick()?;
                self.rest()
            }
            // The figures forbid it, or it is no use: the words say which.
            Ok(()) | Err(EngineError::Invalid(_) | EngineError::Busy(_) | EngineError::Mover(_))
                if self.rig.machine.is_powered() =>
            {
                self.look_at_members()
            }
            Ok(()) => Ok(()),
            Err(error) => self.refused(words, &error.to_string()),
        }
    }

    /// A change of the devices failed: the pool goes on with those that it had, or is opened again.
    fn refused(&mut self, doing: &str, words: &str) -> Check {
        let explained = self.rig.machine.is_powered() && (self.storm || self.hurt);
        if explained && !words.contains("stopped accepting writes") && self.aside.chance(1, 2) {
            trace!(self.trace, "{doing}: {words}; it goes on");
            self.hurt = true;
            return Ok(());
        }
        self.excuse(doing, words)
    }

    fn add_device(&mut self, disk: usize) -> Check {
        let engine = self.engine()?;
        let tiers = engine.pool().tiers();
        let beside = self.random.pick(&tiers).settings.name.clone();
        let (tier, place) = if self.random.chance(1, 3) && tiers.len() < TIERS_MAX {
            let place = if self.random.chance(1, 2) {
                TierPlace::Before(beside)
            } else {
                TierPlace::After(beside)
            };
            self.tiers_made += 1;
            (format!("new{}", self.tiers_made), Some(place))
        } else {
            (beside, None)
        };
        let device = self.rig.machine.device(disk);
        let added = engine.add_opened(&tier, device, place.as_ref(), 1, false);
        trace!(self.trace, "add disk {disk} to {tier}: {}", added.is_ok());
        self.joined(disk, "add a device", added.map(drop))
    }

    /// A disk takes the place of another one, which is emptied and leaves.
    pub(crate) fn replace_device(&mut self, member: &str, disk: usize) -> Check {
        let engine = self.engine()?;
        let device = self.rig.machine.device(disk);
        let replaced = engine.replace_opened(member, device, false).map(drop);
        trace!(
            self.trace,
            "replace {member} by disk {disk}: {}",
            replaced.is_ok()
        );
        match replaced {
            // The figures forbid it, or it is leaving already.
            Err(EngineError::Invalid(_) | EngineError::Busy(_)) if self.rig.machine.is_powered() => {
                self.look_at_members()
            }
            other => self.joined(disk, "replace a device", other),
        }
    }

    fn joined(&mut self, disk: usize, doing: &str, joined: Result<(), EngineError>) -> Check {
        match joined {
            Ok(()) => self.look_at_members(),
            Err(error) => {
                self.refused(doing, &error.to_string())?;
                self.look_at_members()?;
                // What an interrupted change left on it must not be in the way of the next one.
                if !self.members.contains(&disk) {
                    self.rig.machine.with_disk(disk, |disk, _| disk.blank());
                }
                Ok(())
            }
        }
    }

    /// Every copy of every table is good, unless something failed that may have cost one.
    pub(crate) fn check_tables(&self) -> Check {
        if self.storm || self.hurt || self.scarred || !self.rig.machine.is_powered() {
            return Ok(());
        }
        let damaged = self.engine()?.chunks().verify_tables();
        ensure!(
            damaged.is_empty() || !self.rig.machine.is_powered(),
            "nothing damaged the tables: {}",
            damaged.join("; ")
        );
        Ok(())
    }

    /// Other settings of a tier or of migration.
    pub(crate) fn change_tier(&mut self) -> Check {
        self.stop_soon();
        let engine = self.engine()?;
        if self.random.chance(1, 2) {
            let value = if self.random.chance(1, 2) { "on" } else { "off" };
            trace!(self.trace, "migration={value}");
            let set = engine.set_property("migration", value);
            self.settings.migration(value, set.is_ok());
            return match set {
                Ok(()) => Ok(()),
                Err(error) => self.excuse("set migration", &error.to_string()),
            };
        }
        let tiers = engine.pool().tiers();
        let mut settings = self.random.pick(&tiers).settings.clone();
        settings.high_water = *self.random.pick(&[0.02, 0.1, 0.5, 0.85]);
        settings.low_water = settings.high_water / 2.0;
        settings.promote_after = self.random.between(0, 3) as u32;
        settings.landing =
            *self
                .random
                .pick(&[Landing::OFF, Landing::SEQUENTIAL, Landing::RANDOM, Landing::ALL]);
        trace!(self.trace, "tier {settings:?}");
        let set = engine.set_tier(&settings.name.clone(), settings.clone());
        self.settings.tier(settings, set.is_ok());
        match set {
            Ok(_) => Ok(()),
            Err(error) => self.excuse("set a tier", &error.to_string()),
        }
    }

    /// A file or a whole dataset is moved or pinned to a tier; or a scrub begins.
    pub(crate) fn move_by_hand(&mut self) -> Check {
        let engine = self.engine()?;
        if self.random.chance(1, 4) {
            let started = engine.start_scrub();
            trace!(self.trace, "scrub: {}", started.is_ok());
            return Ok(());
        }
        let index = self.random.index(self.filesystems.len());
        let filesystem = &self.filesystems[index];
        let Some(handle) = filesystem.handle.clone() else {
            return Ok(());
        };
        let files = filesystem
            .history
            .newest()
            .tree
            .objects(|node: &Node| matches!(node.body, Body::File(_)));
        let object = if files.is_empty() || self.random.chance(1, 4) {
            0
        } else {
            *self.random.pick(&files)
        };
        let directories = filesystem
            .history
            .newest()
            .tree
            .objects(|node: &Node| matches!(node.body, Body::Directory(_)));
        let tiers = engine.pool().tiers();
        let tier = self.random.pick(&tiers).settings.name.clone();
        let number = handle.dataset().number();
        if !directories.is_empty() && self.random.chance(1, 5) {
            return self.pin_directory(&engine, number, *self.random.clone().pick(&directories), &tier);
        }
        let (words, done) = match self.random.below(5) {
            0 => ("promote", engine.mover().promote(number, object).map(drop)),
            1 => ("demote", engine.mover().demote(number, object).map(drop)),
            2 if object != 0 => ("pin", engine.mover().pin(number, object, &tier).map(drop)),
            3 if object != 0 => ("unpin", engine.mover().unpin(number, object).map(drop)),
            _ => ("move", engine.mover().move_to(number, object, &tier).map(drop)),
        };
        match words {
            "pin" => self.settings.pin(number, object, Some(&tier), done.is_ok()),
            "unpin" => self.settings.pin(number, object, None, done.is_ok()),
            _ => {}
        }
        trace!(
            self.trace,
            "{words} {object} of {} ({tier}): {}",
            self.filesystems[index].name,
            done.is_ok()
        );
        match done {
            Err(terrace_mover::MoverError::Store(error)) => self.excuse(words, &error.to_string()),
            _ => self.use_what_was_moved(index, &files),
        }
    }

    /// A directory is pinned with what lies beneath, or is not any more.
    fn pin_directory(&mut self, engine: &Engine, dataset: u32, directory: u64, tier: &str) -> Check {
        let pins = self.random.chance(2, 3);
        let done = match pins {
            true => engine.mover().pin(dataset, directory, tier).map(drop),
            false => engine.mover().unpin(dataset, directory).map(drop),
        };
        self.settings
            .pin(dataset, directory, pins.then_some(tier), done.is_ok());
        trace!(self.trace, "pin directory {directory} ({tier}): {}", done.is_ok());
        match done {
            Err(terrace_mover::MoverError::Store(error)) => self.excuse("pin", &error.to_string()),
            _ => Ok(()),
        }
    }

    /// What the last scrub found, when nothing can have damaged anything.
    pub(crate) fn check_scrub(&mut self) -> Check {
        if !self.rig.machine.is_powered() {
            return Ok(());
        }
        let engine = self.engine()?;
        let status = engine.status();
        if let Some(scrub) = status.scrub.filter(|scrub| scrub.state == "done") {
            ensure!(
                scrub.errors == scrub.repaired || self.storm || self.hurt || self.scarred,
                "a scrub found damage where there is none: {:?}",
                scrub.damage
            );
        }
        Ok(())
    }
}
