//! Disks that are missing and are replaced by fresh ones, at the level `replace`, in some of its runs: one that is away while the pool is used, and, as
//! the last act, one that is gone for good, with or without a second copy of what it had.
//!
//! What must hold, wherever the power goes, the process ends or the replacement is given up meanwhile: whatever has another copy
//! is read as it was, at any moment, and has all its copies once the replacement has come to its end, so that any other disk of
//! its tier can be missed then; whatever has none reads as an error that names the disk, never as something else; `status` tells
//! that the disk is missing, and names the files; the replacement alone gives nothing up.

mod course;
mod outcome;

use std::{cell::Cell, sync::Arc};

use terrace_engine::{Engine, EngineError};
use terrace_pool::{DeviceState, Presence};

use self::course::End;
use super::survivors::Lost;
use crate::{
    ensure,
    fs::level::Run,
    hardware::{FaultKind, Random},
    rig::MIB,
    trace, violation,
    violation::{Check, Violation},
};

/// Disks that a machine has at most.
const DISKS_MAX: usize = 9;
/// Steps within which a replacement has come to an end.
const STEPS_MAX: u64 = 200_000;
/// Rounds of the background within which it is known what is lost.
const LOOKS_MAX: usize = 10;
/// Nanoseconds between two steps of the background at rest.
const PAUSE_NANOSECONDS: u64 = 11_000_000_000;

/// What a run does about replacing.
pub(crate) struct Replacing {
    /// Chance of its own, so that it does not change what else a seed does.
    random: Random,
    /// Disks that are pulled while the pool is used are replaced now and then.
    in_use: bool,
    /// The run ends with a disk that is gone for good and replaced.
    at_end: bool,
    /// Of a disk that was replaced it is to be seen that everything has its copies.
    unchecked: bool,
}

impl Replacing {
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
}

/// The last act's disk that is gone for good.
pub(crate) struct Gone {
    disk: usize,
    number: u16,
    /// Everything on it has another copy.
    covered: bool,
    /// The pool was opened without it: it can be again. Before that, what an opening needs may have no other copy.
    opened_without: Cell<bool>,
}

impl Gone {
    /// Whether an error says that it is about this disk.
    fn is_named(&self, words: &str) -> bool {
        words.contains(&format!("device {} ", self.number)) || words.contains(&format!("disk{}", self.disk))
    }
}

impl Run {
    /// Now and then a disk that is away is replaced, or its replacement given up.
    pub(crate) fn replacements_come(&mut self) -> Check {
        if !self.replacing.in_use || !self.rig.machine.is_powered() {
            return Ok(());
        }
        let Some(away) = self.absence.pulled() else {
            self.replacing.unchecked = false;
            return Ok(());
        };
        if !self.members.contains(&away) {
            return match self.replacing.unchecked && self.replacing.random.chance(1, 3) {
                true => self.has_all_copies_after_replacing(),
                false => Ok(()),
            };
        }
        let Some(number) = self.numbers.get(&away).copied() else {
            return Ok(());
        };
        match self.replacing.random.below(14) {
            0 | 1 if self.rig.machine.disk_count() < DISKS_MAX => {
                let fresh = self.add_fresh_disk();
                if self.replacing.random.chance(1, 4) {
                    let after = self.replacing.random.skewed(300);
                    self.rig.machine.cut_power_after(Some(after));
                }
                self.coverage.hit(FaultKind::Replaced);
                self.replacing.unchecked = true;
                self.replace_device(&format!("/simulated/disk{away}"), fresh)
            }
            2 => self.cancel_replacement(number),
            3 | 4 => {
                self.tick()?;
                self.rest()
            }
            _ => Ok(()),
        }
    }

    fn add_fresh_disk(&mut self) -> usize {
        let size = self.replacing.random.between(24, 40) * MIB;
        let fresh = self.rig.machine.add_disk(size);
        trace!(self.trace, "disk {fresh} of {size} is put in");
        fresh
    }

    fn cancel_replacement(&mut self, number: u16) -> Check {
        let engine = self.engine()?;
        let Some(job) = replacement_job(&engine, number) else {
            return Ok(());
        };
        let cancelled = engine.job_action(job, "cancel");
        trace!(
            self.trace,
            "replacement of {number} is given up: {}",
            cancelled.is_ok()
        );
        drop(engine);
        match cancelled {
            Err(EngineError::Mover(terrace_mover::MoverError::Store(error))) => {
                self.excuse("giving up a replacement", &error.to_string())
            }
            // It was over already, perhaps.
            Ok(()) | Err(EngineError::Mover(_)) => self.look_at_members(),
            Err(error) => self.excuse("giving up a replacement", &error.to_string()),
        }
    }

    /// The pool has left a disk behind that was away: once the background rests no copy is missing.
    fn has_all_copies_after_replacing(&mut self) -> Check {
        self.replacing.unchecked = false;
        for _ in 0..40 {
            self.tick()?;
            self.rest()?;
            let engine = self.engine()?;
            let behind = |info: &terrace_pool::DeviceInfo| info.presence != Presence::Whole;
            if !engine.pool().devices().iter().any(behind) {
                break;
            }
        }
        if !self.rig.machine.is_powered() || self.hurt || self.storm || self.filled || self.absence.is_owed()
        {
            return Ok(());
        }
        let devices = self.engine()?.pool().devices();
        let whole = devices
            .iter()
            .all(|info| info.state == DeviceState::Online && info.presence == Presence::Whole);
        match self.complete_copies() {
            Ok((_, completed)) => ensure!(
                completed == 0 || !whole || self.hurt || !self.rig.machine.is_powered(),
                "a missing disk was replaced, the background rests, and {completed} copies were missing"
            ),
            Err(error) => return self.excuse("completing copies", &error.to_string()),
        }
        Ok(())
    }

    /// The last act: a disk is gone for good and is replaced. `false` if the run ends otherwise.
    pub(crate) fn lose_and_replace(&mut self) -> Check<bool> {
        if !self.replacing.at_end || self.members.len() < 2 || self.hurt || self.storm {
            return Ok(false);
        }
        // As for a disk that is pulled: what an opening shows is on all disks that it is to be on.
        let mut covered = None;
        if self.dispensable()?.is_some() {
            self.reopen(self.replacing.random.clone().chance(1, 2), false)?;
            covered = self.dispensable()?;
        }
        if !self.rig.machine.is_powered() || self.hurt || self.members.len() < 2 {
            return Ok(false);
        }
        if self.replacing.random.chance(1, 4) {
            covered = None;
        }
        let members: Vec<usize> = self.members.iter().copied().collect();
        let disk = covered.unwrap_or_else(|| *self.replacing.random.pick(&members));
        let Some(number) = self.numbers.get(&disk).copied() else {
            return Ok(false);
        };
        let gone = Gone {
            disk,
            number,
            covered: covered.is_some(),
            opened_without: Cell::new(false),
        };
        if !self.at_rest()? {
            return Ok(true);
        }
        let in_use = self.replacing.random.chance(1, 3);
        let mut engine = None;
        if in_use {
            engine = Some(self.rig.open(false).map_err(Violation)?);
        }
        trace!(
            self.trace,
            "disk {disk} ({number}) is gone for good and to be replaced, in use: {in_use}, covered: {}",
            gone.covered
        );
        self.rig
            .machine
            .with_disk(disk, |disk, _| (disk.vanished, disk.pulled) = (true, true));
        let engine = match engine {
            Some(engine) => engine,
            None => match self.rig.open(true) {
                Ok(engine) => {
                    gone.opened_without.set(true);
                    engine
                }
                Err(error) if gone.covered => {
                    violation!(
                        "everything has its second copy, and the pool does not open without disk {disk}: {error}"
                    )
                }
                // What has no second copy, of the log or of tables.
                Err(error) => {
                    trace!(self.trace, "opening without it: {error}");
                    return Ok(true);
                }
            },
        };
        self.coverage.hit(FaultKind::Replaced);
        self.replace_the_gone(engine, &gone)?;
        Ok(true)
    }

    fn replace_the_gone(&mut self, engine: Arc<Engine>, gone: &Gone) -> Check {
        let lost = self.compare_survivors(&engine, gone.covered)?;
        self.check_gone(&lost, gone)?;
        if !self.write_after_loss(&engine)? {
            // Whether it is there once the pool is opened again, nobody knows.
            return Ok(());
        }
        let lost_now = self.compare_survivors(&engine, gone.covered)?;
        self.has_not_lost_more(&lost, &lost_now)?;
        self.is_listed(&engine, &lost, gone)?;
        let Some((engine, end)) = self.replace_until_the_end(engine, &lost, gone)? else {
            return Ok(());
        };
        match end {
            End::Full => return Ok(()),
            End::HoldsLost => {
                ensure!(
                    !gone.covered,
                    "everything has its second copy, and a replacement ends with what cannot be read; {} bytes cannot",
                    lost.bytes
                );
                self.is_listed(&engine, &lost, gone)?;
                let given_up = engine.give_up_device(&gone.number.to_string());
                trace!(self.trace, "what is lost is given up: {given_up:?}");
                match given_up {
                    Ok(Some(job)) => {
                        if !self.see_device_off(&engine, job, gone.number)? {
                            return Ok(());
                        }
                    }
                    Ok(None) => {}
                    Err(error) => {
                        ensure!(
                            error.to_string().contains("full"),
                            "what is lost cannot be given up: {error}"
                        );
                        return Ok(());
                    }
                }
            }
            End::Replaced => {}
        }
        let after = self.compare_survivors(&engine, gone.covered)?;
        self.has_not_lost_more(&lost, &after)?;
        self.check_losses(&engine, after.bytes)?;
        self.is_complete(engine, &after, gone)
    }

    /// What cannot be read without the disk is what had no other copy, and says so.
    fn check_gone(&self, lost: &Lost, gone: &Gone) -> Check {
        ensure!(
            !gone.covered || lost.bytes == 0,
            "everything had its second copy, and without disk {} {} bytes cannot be read: {:?}",
            gone.disk,
            lost.bytes,
            lost.causes.first()
        );
        let unnamed = lost.causes.iter().find(|cause| !gone.is_named(cause));
        ensure!(
            unnamed.is_none(),
            "disk {} (device {}) is missing, and an error does not name it: {unnamed:?}",
            gone.disk,
            gone.number
        );
        Ok(())
    }

    /// What could be read before can be now.
    fn has_not_lost_more(&self, before: &Lost, now: &Lost) -> Check {
        // Of a dataset that could not be opened nothing is known of before.
        let mut more = now.places.difference(&before.places);
        let more = more.find(|(name, ..)| !before.datasets.contains(name));
        let closed = now.datasets.difference(&before.datasets).next();
        ensure!(
            closed.is_none(),
            "{closed:?} could be opened without the missing disk, and cannot be any more: {:?}",
            now.causes.last()
        );
        ensure!(
            more.is_none(),
            "{more:?} could be read without the missing disk, and cannot be any more: {:?}",
            now.causes.last()
        );
        Ok(())
    }

    /// `status` tells that the disk is missing, and names the datasets of which something cannot be read.
    fn is_listed(&self, engine: &Arc<Engine>, lost: &Lost, gone: &Gone) -> Check {
        for round in 0..LOOKS_MAX {
            self.rig.machine.clock.advance(PAUSE_NANOSECONDS);
            for _ in 0..STEPS_MAX {
                match engine.step() {
                    Ok(true) => {}
                    Ok(false) => break,
                    // Another matter, which is looked at elsewhere; the background comes to nothing behind it here, where one
                    // thread does everything.
                    Err(error) => {
                        trace!(self.trace, "what is lost is not known: {error}");
                        return Ok(());
                    }
                }
            }
            // The last of what the mover does may have changed what lies there, so that it is looked once more.
            let lost = engine.status().lost;
            if round > 0 && lost.is_none_or(|lost| lost.state != "looking") {
                break;
            }
        }
        let status = engine.status();
        let mut listed = status.tiers.iter().flat_map(|tier| &tier.devices);
        let listed = listed.find(|device| device.number == gone.number);
        let state = listed.map(|device| device.state.as_str());
        let tells = listed.is_some_and(|device| device.read_errors > 0);
        // One that nothing was asked of since it is gone is not missed yet, and after a few reads that failed it shows these;
        // one that was leaving may have left.
        ensure!(
            matches!(state, Some("missing" | "failing"))
                || (lost.bytes == 0 && matches!(state, Some("online") | None))
                || (tells && state == Some("online")),
            "disk {} is missing, and status calls it {state:?}",
            gone.disk
        );
        if state != Some("missing") || engine.chunks().metadata_out_of_reach() > 0 {
            return Ok(());
        }
        let (files, more) = engine.lost_files(0, usize::MAX >> 1);
        ensure!(
            !more && status.lost.as_ref().is_none_or(|lost| lost.state == "known"),
            "the background rests, and it is not known what is lost: {:?}",
            status.lost
        );
        for filesystem in &self.filesystems {
            let tree = &filesystem.history.newest().tree;
            let mut of_it = lost.places.iter().filter(|(name, ..)| *name == filesystem.name);
            let missed = of_it.find(|(name, object, _)| {
                let paths = tree.paths(*object);
                // What is no text is written in another way.
                let known: Vec<String> = paths.iter().filter_map(|path| path.clone()).collect();
                known.len() == paths.len()
                    && !known
                        .iter()
                        .any(|path| files.iter().any(|file| file.path == format!("{name}{path}")))
            });
            ensure!(
                missed.is_none(),
                "{missed:?} cannot be read, and status does not name it among {:?}",
                files.iter().map(|file| &file.path).collect::<Vec<_>>()
            );
        }
        for volume in &self.volumes {
            ensure!(
                !lost.places.iter().any(|(name, ..)| *name == volume.name)
                    || files.iter().any(|file| file.path.starts_with(&volume.name)),
                "{} cannot be read whole, and status does not name it",
                volume.name
            );
        }
        Ok(())
    }
}

fn has_device(engine: &Engine, number: u16) -> bool {
    engine.pool().devices().iter().any(|info| info.number == number)
}

/// The job that empties a device so that another one takes its place, if one does.
fn replacement_job(engine: &Engine, number: u16) -> Option<u64> {
    let mut jobs = engine.jobs().into_iter().map(|job| job.id);
    jobs.find(|job| engine.replacement_of(*job).is_some_and(|(old, _)| old == number))
}
