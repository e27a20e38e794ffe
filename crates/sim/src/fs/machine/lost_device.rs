//! `LostDevice`: a device that is gone for good, in a pool that is open without it.
//!
//! What must hold: it can be given up; what cannot be read is named; the pool takes what is new.

use terrace_dataset::{Context, FileKind, FsError, Tree};
use terrace_engine::Engine;
use terrace_mover::JobState;

use crate::{
    ensure,
    fs::{models::ROOT, world::World},
    trace, violation,
    violation::{Check, Violation},
};

/// See the module.
pub(crate) struct LostDevice<'a> {
    world: &'a World,
    engine: &'a Engine,
}

impl<'a> LostDevice<'a> {
    pub(crate) fn of(world: &'a World, engine: &'a Engine) -> Self {
        Self { world, engine }
    }

    /// Drives a job until the device is taken out; `false` if there was no room for what was copied anew.
    pub(crate) fn see_off(&self, job: u64, number: u16) -> Check<bool> {
        for _ in 0..100_000 {
            if let Err(error) = self.engine.step() {
                ensure!(
                    error.to_string().contains("is full"),
                    "a step while a lost device is given up: {error}"
                );
                return Ok(false);
            }
            if !self.engine.is_leaving(job) {
                let gone = !self
                    .engine
                    .pool()
                    .devices()
                    .iter()
                    .any(|info| info.number == number);
                let state = self.engine.mover().state_of(job);
                trace!(self.world.rig.trace, "giving up: {state:?}");
                // A device that was full takes metadata with it that lay on it alone; that is told.
                let alone = self.engine.chunks().metadata_out_of_reach() > 0
                    && self
                        .engine
                        .status()
                        .state_detail
                        .contains("segments of metadata lay on it alone");
                let excused = |why: &str| why.contains("full") || (alone && why.contains("lies on device"));
                ensure!(
                    gone || matches!(&state, Some((JobState::Failed, why)) if excused(why)),
                    "a lost device was not given up: {state:?}"
                );
                return Ok(gone);
            }
        }
        let state = self.engine.mover().state_of(job);
        violation!("a lost device is never given up: {state:?}")
    }

    /// What cannot be read is named.
    pub(crate) fn check_named(&self, unreadable: u64) -> Check {
        for _ in 0..100_000 {
            match self.engine.step() {
                Ok(true) => {}
                Ok(false) => break,
                // Another matter, which is looked at elsewhere.
                Err(_) => return Ok(()),
            }
        }
        let (files, _) = self.engine.lost_files(0, 1);
        let named = self
            .engine
            .status()
            .lost
            .is_some_and(|lost| lost.state == "looking")
            || !files.is_empty();
        // What has a copy on a device that is there is not lost with another one, even if that copy is bad.
        ensure!(
            unreadable == 0 || named || self.world.rig.condition.hurt || self.world.rig.condition.scarred,
            "{unreadable} bytes cannot be read, and no file is named"
        );
        Ok(())
    }

    /// A new file is written and flushed, if there is room for it, and removed; whether nothing is left of it.
    pub(crate) fn write_after(&self) -> Check<bool> {
        let fail = |error: &dyn std::fmt::Display| Violation(format!("writing after the loss: {error}"));
        let name = self.world.models.filesystems[0].name.clone();
        let handle = self
            .engine
            .datasets()
            .filesystem(&name)
            .map_err(|error| fail(&error))?;
        let context = Context::root();
        let data = vec![0x5A; 20_000];
        let written = handle
            .create(&context, ROOT, b"after the loss", FileKind::File, 0o600, 0)
            .and_then(|made| {
                handle
                    .write(&context, made.object, 0, &data, false)
                    .map(|_| made.object)
            })
            .and_then(|object| handle.sync().map(|()| object));
        match written {
            Ok(object) => {
                let mut buffer = vec![0; data.len()];
                let read = handle
                    .read(object, 0, &mut buffer)
                    .map_err(|error| fail(&error))?;
                ensure!(
                    buffer[..read] == data,
                    "what was written after the loss reads as something else"
                );
            }
            Err(FsError::NoSpace | FsError::QuotaExceeded) => {}
            // The root directory itself may be among what is lost.
            Err(FsError::Io(_)) => {}
            Err(error) => return Err(fail(&error)),
        }
        // It may be there although nothing could be written to it.
        let removed = handle
            .unlink(&context, ROOT, b"after the loss")
            .map(drop)
            .or_else(|error| match error {
                FsError::NotFound => Ok(()),
                other => Err(other),
            });
        match removed.and_then(|()| handle.sync()) {
            Ok(()) => Ok(true),
            Err(FsError::NoSpace | FsError::QuotaExceeded | FsError::Io(_)) => Ok(false),
            Err(error) => Err(fail(&error)),
        }
    }
}
