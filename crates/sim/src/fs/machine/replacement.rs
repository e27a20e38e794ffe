//! Disks that are missing and are replaced by fresh ones, at the level `replace`, in some of its runs: one that is away while the pool is used, and, as
//! the last act, one that is gone for good, with or without a second copy of what it had.
//!
//! What must hold, wherever the power goes, the process ends or the replacement is given up meanwhile: whatever has another copy
//! is read as it was, at any moment, and has all its copies once the replacement has come to its end, so that any other disk of
//! its tier can be missed then; whatever has none reads as an error that names the disk, never as something else; `status` tells
//! that the disk is missing, and names the files; the replacement alone gives nothing up.

mod course;
mod outcome;
mod replacing;

use std::sync::Arc;

use terrace_engine::Engine;

use self::course::End;
pub(crate) use self::replacing::ReplaceDisks;
use super::lost_device::LostDevice;
use crate::{
    ensure,
    fs::{
        checks::{Lost, Survivors},
        rig::Rig,
        world::World,
    },
    hardware::Random,
    rig::MIB,
    trace,
    violation::Check,
};

/// Steps within which a replacement has come to an end.
const STEPS_MAX: u64 = 200_000;
/// Rounds of the background within which it is known what is lost.
const LOOKS_MAX: usize = 10;
/// Nanoseconds between two steps of the background at rest.
const PAUSE_NANOSECONDS: u64 = 11_000_000_000;

/// The last act's disk that is gone for good.
struct Gone {
    disk: usize,
    number: u16,
    /// Everything on it has another copy.
    covered: bool,
    /// The pool was opened without it: it can be again. Before that, what an opening needs may have no other copy.
    opened_without: bool,
}

impl Gone {
    /// Whether an error says that it is about this disk.
    fn is_named(&self, words: &str) -> bool {
        words.contains(&format!("device {} ", self.number)) || words.contains(&format!("disk{}", self.disk))
    }
}

/// The replacement of a disk that is gone for good.
struct Replacement<'w> {
    world: &'w mut World,
    random: &'w mut Random,
    gone: Gone,
}

impl Replacement<'_> {
    /// Everything against the models, where it can be read; returns what cannot.
    fn survivors(&self, engine: &Engine) -> Check<Lost> {
        let survivors = Survivors {
            models: &self.world.models,
            trace: &self.world.rig.trace,
        };
        survivors.compare(engine, self.gone.covered)
    }

    /// The whole of it, and what it leaves.
    fn run(&mut self, engine: Arc<Engine>) -> Check {
        let lost = self.survivors(&engine)?;
        self.check_gone(&lost)?;
        if !LostDevice::of(self.world, &engine).write_after()? {
            // Whether it is there once the pool is opened again, nobody knows.
            return Ok(());
        }
        let lost_now = self.survivors(&engine)?;
        lost_now.is_no_more_than(&lost)?;
        self.is_listed(&engine, &lost)?;
        let Some((engine, end)) = self.replace_until_the_end(engine, &lost)? else {
            return Ok(());
        };
        match end {
            End::Full => return Ok(()),
            End::HoldsLost => {
                ensure!(
                    !self.gone.covered,
                    "everything has its second copy, and a replacement ends with what cannot be read; {} bytes cannot",
                    lost.bytes
                );
                self.is_listed(&engine, &lost)?;
                let given_up = engine.give_up_device(&self.gone.number.to_string());
                trace!(self.world.rig.trace, "what is lost is given up: {given_up:?}");
                match given_up {
                    Ok(Some(job)) => {
                        if !LostDevice::of(self.world, &engine).see_off(job, self.gone.number)? {
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
        let after = self.survivors(&engine)?;
        after.is_no_more_than(&lost)?;
        LostDevice::of(self.world, &engine).check_named(after.bytes)?;
        self.is_complete(engine, &after)
    }

    /// What cannot be read without the disk is what had no other copy, and says so.
    fn check_gone(&self, lost: &Lost) -> Check {
        ensure!(
            !self.gone.covered || lost.bytes == 0,
            "everything had its second copy, and without disk {} {} bytes cannot be read: {:?}",
            self.gone.disk,
            lost.bytes,
            lost.causes.first()
        );
        let unnamed = lost.causes.iter().find(|cause| !self.gone.is_named(cause));
        ensure!(
            unnamed.is_none(),
            "disk {} (device {}) is missing, and an error does not name it: {unnamed:?}",
            self.gone.disk,
            self.gone.number
        );
        Ok(())
    }

    /// `status` tells that the disk is missing, and names the datasets of which something cannot be read.
    fn is_listed(&self, engine: &Engine, lost: &Lost) -> Check {
        if !self.look_for_losses(engine) {
            return Ok(());
        }
        let status = engine.status();
        let mut listed = status.tiers.iter().flat_map(|tier| &tier.devices);
        let listed = listed.find(|device| device.number == self.gone.number);
        let state = listed.map(|device| device.state.as_str());
        let tells = listed.is_some_and(|device| device.read_errors > 0);
        // One that nothing was asked of since it is gone is not missed yet, and after a few reads that failed it shows these;
        // one that was leaving may have left.
        ensure!(
            matches!(state, Some("missing" | "failing"))
                || (lost.bytes == 0 && matches!(state, Some("online") | None))
                || (tells && state == Some("online")),
            "disk {} is missing, and status calls it {state:?}",
            self.gone.disk
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
        for filesystem in &self.world.models.filesystems {
            let tree = &filesystem.history.newest().tree;
            let name = &filesystem.name;
            let missed = lost.of(name).find(|(object, _)| {
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
                "{missed:?} of {name} cannot be read, and status does not name it among {:?}",
                files.iter().map(|file| &file.path).collect::<Vec<_>>()
            );
        }
        for volume in &self.world.models.volumes {
            ensure!(
                lost.of(&volume.name).next().is_none()
                    || files.iter().any(|file| file.path.starts_with(&volume.name)),
                "{} cannot be read whole, and status does not name it",
                volume.name
            );
        }
        Ok(())
    }

    /// Steps until the background knows what is lost; `false` if it comes to nothing.
    fn look_for_losses(&self, engine: &Engine) -> bool {
        for round in 0..LOOKS_MAX {
            self.world.rig.machine.clock.advance(PAUSE_NANOSECONDS);
            for _ in 0..STEPS_MAX {
                match engine.step() {
                    Ok(true) => {}
                    Ok(false) => break,
                    // Another matter, which is looked at elsewhere; the background comes to nothing behind it here, where one
                    // thread does everything.
                    Err(error) => {
                        trace!(self.world.rig.trace, "what is lost is not known: {error}");
                        return false;
                    }
                }
            }
            // The last of what the mover does may have changed what lies there, so that it is looked once more.
            let lost = engine.status().lost;
            if round > 0 && lost.is_none_or(|lost| lost.state != "looking") {
                break;
            }
        }
        true
    }
}

/// A disk is put in.
fn add_fresh_disk(rig: &Rig, random: &mut Random) -> usize {
    let size = random.between(24, 40) * MIB;
    let fresh = rig.machine.add_disk(size);
    trace!(rig.trace, "disk {fresh} of {size} is put in");
    fresh
}

fn has_device(engine: &Engine, number: u16) -> bool {
    engine.pool().devices().iter().any(|info| info.number == number)
}

/// The job that empties a device so that another one takes its place, if one does.
fn replacement_job(engine: &Engine, number: u16) -> Option<u64> {
    let mut jobs = engine.jobs().into_iter().map(|job| job.id);
    jobs.find(|job| engine.replacement_of(*job).is_some_and(|(old, _)| old == number))
}
