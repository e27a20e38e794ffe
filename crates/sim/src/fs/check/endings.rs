//! The last acts of runs: everything is deleted, and the room must come back; or a device is lost for good; or a pool is
//! rebuilt from what lies on its devices.
//!
//! What must hold. After the loss of a device: no byte reads as another; what cannot be read is an error; the device can
//! be given up, and from then on the pool opens without it, shows the same, and takes what is new. Of a pool at rest with
//! whole devices everything comes back by a rebuilding, without its root slots too as long as the rebuilding says that
//! nothing is missing; the source is not changed.

use std::{collections::BTreeMap, sync::Arc};

use terrace_dataset::{At, Context, DatasetError, FileKind, FsError, Tree};
use terrace_engine::{Engine, OpenOptions, PoolSpec, RebuildOptions, TierSpec, rebuild};
use terrace_pool::DeviceState;

use super::dump::dump;
use crate::{
    ensure,
    fs::{level::Run, state::ROOT},
    hardware::{FaultKind, Machine, PAGE_BYTES, SharedRandom},
    rig::MIB,
    trace, violation,
    violation::{Check, Violation},
};

/// Pages of a device that hold its root slots.
const ROOT_PAGES: std::ops::Range<usize> = 64..192;

impl Run {
    /// The last act: everything is deleted, and the room must come back; or one of those of which nothing can.
    pub(crate) fn finish(&mut self) -> Check {
        self.rig.machine.cut_power_after(None);
        self.put_back()?;
        self.rig.machine.cut_power_after(None);
        self.reopen(true, false)?;
        if self.lose_and_replace()? {
            return Ok(());
        }
        match self.random.below(20) {
            0 if self.lose_device()? => return Ok(()),
            1 => return self.rebuild_pool(),
            _ => {}
        }
        for index in 0..self.filesystems.len() {
            let names: Vec<String> = self.filesystems[index].snapshots.keys().cloned().collect();
            for short in &names {
                self.check_snapshot(index, short)?;
            }
        }
        // What is destroyed with its history is freed otherwise.
        if self.aside.chance(1, 2) {
            self.forget_history()?;
        }
        // Everything is deleted: the room must come back.
        let engine = self.engine()?;
        for index in 0..self.filesystems.len() {
            while let Some(short) = self.filesystems[index].snapshots.keys().next().cloned() {
                let full = format!("{}@{short}", self.filesystems[index].name);
                let _ = engine.datasets().release("tag", &full);
                engine
                    .datasets()
                    .destroy_snapshot(&full, false, false)
                    .map_err(|error| Violation(format!("{full} cannot be destroyed: {error}")))?;
                self.filesystems[index].snapshots.remove(&short);
            }
            self.filesystems[index].handle = None;
            let name = self.filesystems[index].name.clone();
            engine
                .datasets()
                .destroy(&name, true, true, false)
                .map_err(|error| Violation(format!("{name} cannot be destroyed: {error}")))?;
        }
        for volume in std::mem::take(&mut self.volumes) {
            let name = volume.name.clone();
            drop(volume);
            engine
                .datasets()
                .destroy(&name, true, true, false)
                .map_err(|error| Violation(format!("{name} cannot be destroyed: {error}")))?;
        }
        self.filesystems.clear();
        self.dismiss_guests()?;
        for _ in 0..3 {
            self.tick()?;
            self.rest()?;
            self.store_checkpoint()?;
        }
        self.rest()?;
        let space = engine.store().space();
        trace!(
            self.trace,
            "at the end {} chunks, {} bytes available", space.chunks, space.available_bytes
        );
        ensure!(
            space.chunks == 0 && space.logical_bytes == 0,
            "{} chunks ({} logical bytes) are left after everything was destroyed",
            space.chunks,
            space.logical_bytes
        );
        let devices = engine.pool().devices();
        let used = devices.iter().filter(|device| !device.draining);
        let size: u64 = used.map(|device| device.size_bytes).sum();
        ensure!(
            // The reserve counts devices that were emptied, too.
            space.available_bytes + space.reserve_bytes / 2 >= size / 10,
            "only {} of {size} bytes are available after everything was destroyed",
            space.available_bytes
        );
        self.audit()?;
        engine
            .close()
            .map_err(|error| Violation(format!("cannot close: {error}")))
    }

    /// Without snapshots and retention there is no history: what only they held is freed.
    fn forget_history(&mut self) -> Check {
        let engine = self.engine()?;
        let datasets = engine.datasets();
        let forgotten = || -> Result<(), DatasetError> {
            for snapshot in datasets.snapshots(None, false)? {
                if !snapshot.holds.is_empty() {
                    datasets.release("tag", &snapshot.name)?;
                }
                datasets.destroy_snapshot(&snapshot.name, false, false)?;
            }
            for dataset in datasets.list(None)? {
                datasets.set(&dataset.name, "retention", "none")?;
                datasets.prune(&dataset.name, false)?;
            }
            Ok(())
        };
        let forgotten = forgotten();
        trace!(self.trace, "nothing is held any more: {}", forgotten.is_ok());
        if let Err(error) = forgotten {
            return self.excuse("giving up all history", &error.to_string());
        }
        for filesystem in &mut self.filesystems {
            filesystem.snapshots.clear();
            filesystem.retention = Some(Vec::new());
        }
        self.volumes
            .iter_mut()
            .for_each(|volume| volume.snapshots.clear());
        self.tick()?;
        self.rest()?;
        let engine = self.engine()?;
        match terrace_dataset::check(engine.store()) {
            Ok(walk) => {
                ensure!(
                    walk.versions == 0 || self.filled,
                    "{} versions are kept as history, and nothing holds any",
                    walk.versions
                );
                Ok(())
            }
            Err(error) => self.excuse("a walk", &error.to_string()),
        }
    }

    /// The engine at rest on whole devices, with everything written. `false` if the pool is too full for that.
    pub(crate) fn at_rest(&mut self) -> Check<bool> {
        let engine = self.engine()?;
        for filesystem in &mut self.filesystems {
            filesystem.handle = None;
        }
        for volume in &mut self.volumes {
            volume.handle = None;
        }
        let closed = engine.close();
        drop(engine);
        self.engine = None;
        self.rig.machine.kill();
        match closed {
            Ok(()) => Ok(true),
            Err(error) if error.to_string().contains("is full") => {
                trace!(self.trace, "close: {error}");
                Ok(false)
            }
            Err(error) => violation!("cannot close: {error}"),
        }
    }

    /// A device of the pool is gone for good; that ends the run. `false` if there is none that could be.
    pub(crate) fn lose_device(&mut self) -> Check<bool> {
        let members: Vec<usize> = self.members.iter().copied().collect();
        if members.len() < 2 {
            return Ok(false);
        }
        if !self.at_rest()? {
            return Ok(true);
        }
        let lost = *self.random.pick(&members);
        trace!(self.trace, "disk {lost} is lost for good");
        self.coverage.hit(FaultKind::LostForGood);
        self.rig.machine.with_disk(lost, |disk, _| disk.vanished = true);
        ensure!(
            self.rig.open(false).is_err(),
            "a pool opens without one of its devices although nobody allowed that"
        );
        let engine = match self.rig.open(true) {
            Ok(engine) => engine,
            Err(error) => {
                // What has no second copy, of the log or of tables: a device was full, failed, or joined later.
                trace!(self.trace, "opening without it: {error}");
                return Ok(true);
            }
        };
        let path = format!("/simulated/disk{lost}");
        let lost_bytes = self.compare_survivors(&engine, true)?.bytes;
        let missing = engine.pool().devices().into_iter();
        let missing: Vec<_> = missing
            .filter(|device| device.state == DeviceState::Missing)
            .map(|device| (device.number, device.path))
            .collect();
        let [(number, _)] = &missing[..] else {
            violation!("disk {lost} is gone, but missing are {missing:?}");
        };
        let given_up = engine.give_up_device(&number.to_string());
        trace!(self.trace, "{path} is given up: {given_up:?}");
        match given_up {
            Ok(Some(job)) => {
                if !self.see_device_off(&engine, job, *number)? {
                    return Ok(true);
                }
            }
            Ok(None) => {}
            Err(error) => {
                let words = error.to_string();
                ensure!(
                    words.contains("is full"),
                    "the lost device cannot be given up: {words}"
                );
                return Ok(true);
            }
        }
        let before = self.compare_survivors(&engine, true)?.bytes;
        ensure!(
            before <= lost_bytes,
            "{before} bytes cannot be read since the device was given up, {lost_bytes} before"
        );
        self.check_losses(&engine, before)?;
        let as_before = self.write_after_loss(&engine)?;
        if let Err(error) = engine.close() {
            ensure!(error.to_string().contains("is full"), "cannot close: {error}");
        }
        drop(engine);
        self.rig.machine.kill();
        let engine = self
            .rig
            .open(false)
            .map_err(|error| Violation(format!("without the lost device the pool does not open: {error}")))?;
        if !as_before {
            return Ok(true);
        }
        let after = self.compare_survivors(&engine, true)?.bytes;
        ensure!(
            after <= before,
            "{after} bytes cannot be read after another opening, {before} before"
        );
        Ok(true)
    }

    /// Drives a job until the device is taken out; `false` if there was no room for what was copied anew.
    pub(crate) fn see_device_off(&self, engine: &Arc<Engine>, job: u64, number: u16) -> Check<bool> {
        for _ in 0..100_000 {
            if let Err(error) = engine.step() {
                ensure!(
                    error.to_string().contains("is full"),
                    "a step while a lost device is given up: {error}"
                );
                return Ok(false);
            }
            if !engine.is_leaving(job) {
                let gone = !engine.pool().devices().iter().any(|info| info.number == number);
                let state = engine.mover().state_of(job);
                trace!(self.trace, "giving up: {state:?}");
                // A device that was full takes metadata with it that lay on it alone; that is told.
                let alone = engine.chunks().metadata_out_of_reach() > 0
                    && engine
                        .status()
                        .state_detail
                        .contains("segments of metadata lay on it alone");
                let excused = |why: &str| why.contains("full") || (alone && why.contains("lies on device"));
                ensure!(
                    gone || matches!(&state, Some((terrace_mover::JobState::Failed, why)) if excused(why)),
                    "a lost device was not given up: {state:?}"
                );
                return Ok(gone);
            }
        }
        let state = engine.mover().state_of(job);
        violation!("a lost device is never given up: {state:?}")
    }

    /// What cannot be read is named.
    pub(crate) fn check_losses(&self, engine: &Arc<Engine>, unreadable: u64) -> Check {
        for _ in 0..100_000 {
            match engine.step() {
                Ok(true) => {}
                Ok(false) => break,
                // Another matter, which is looked at elsewhere.
                Err(_) => return Ok(()),
            }
        }
        let (files, _) = engine.lost_files(0, 1);
        let named = engine.status().lost.is_some_and(|lost| lost.state == "looking") || !files.is_empty();
        // What has a copy on a device that is there is not lost with another one, even if that copy is bad.
        ensure!(
            unreadable == 0 || named || self.hurt || self.scarred,
            "{unreadable} bytes cannot be read, and no file is named"
        );
        Ok(())
    }

    /// A new file is written and flushed, if there is room for it, and removed; whether nothing is left of it.
    pub(crate) fn write_after_loss(&mut self, engine: &Arc<Engine>) -> Check<bool> {
        let fail = |error: &dyn std::fmt::Display| Violation(format!("writing after the loss: {error}"));
        let name = self.filesystems[0].name.clone();
        let handle = engine
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

    /// Rebuilds the pool into another one, with or without its root slots.
    pub(crate) fn rebuild_pool(&mut self) -> Check {
        if !self.at_rest()? {
            return Ok(());
        }
        let machine = self.rig.machine.clone();
        let rootless = self.random.chance(1, 2);
        if rootless {
            trace!(self.trace, "all root slots are gone");
            for disk in self.members.clone() {
                machine.with_disk(disk, |disk, _| {
                    ROOT_PAGES.for_each(|page| disk.alter(page, |bytes| *bytes = [0; PAGE_BYTES]));
                });
            }
        }
        let written = || -> u64 {
            let pending = |disk| machine.with_disk(disk, |disk, _| disk.pending_bytes());
            (0..machine.disk_count()).map(pending).sum()
        };
        let before = written();
        let devices = machine.plug_in();
        let source = self.members.iter().map(|disk| devices[*disk].clone()).collect();
        let place = Machine::new(
            &[(256 * MIB, false), (256 * MIB, false)],
            self.random.fork(9),
            self.coverage.clone(),
            self.trace.clone(),
        );
        let spec = PoolSpec {
            name: "new".into(),
            tiers: vec![TierSpec {
                name: "only".into(),
                devices: Vec::new(),
                copies: 1,
            }],
            properties: BTreeMap::new(),
            segment_bytes: Some(MIB as u32),
        };
        let options = |random: &mut crate::hardware::Random| OpenOptions {
            randomness: Arc::new(SharedRandom::new(random.fork(3))),
            memory_bytes: Some(16 * MIB),
            ..OpenOptions::driven(place.clock.clone(), random.next())
        };
        let target = Engine::create_on(&spec, vec![place.plug_in()], options(&mut self.random))
            .map_err(|error| Violation(format!("cannot make the new pool: {error}")))?;
        let report = rebuild(
            source,
            Some(&target),
            RebuildOptions::default(),
            &mut |_, _, _| {},
        )
        .map_err(|error| Violation(format!("cannot be rebuilt: {error}")))?;
        self.coverage.hit(FaultKind::Rebuilt);
        trace!(
            self.trace,
            "rebuilt: {}, complete {}, {} chunks", report.state, report.complete, report.placed_chunks
        );
        drop(target);
        ensure!(written() == before, "rebuilding wrote to the source");
        if !report.complete {
            // Copies of the root are left out where there is no room for them.
            ensure!(
                rootless,
                "a sound pool is not rebuilt whole: damaged {:?}, lost {:?}, found {:?}, {:?}",
                report.damaged,
                report.lost,
                report.found,
                report.problems
            );
            return Ok(());
        }
        let engine = Engine::open(place.plug_in(), options(&mut self.random))
            .map_err(|error| Violation(format!("the rebuilt pool does not open: {error}")))?;
        for filesystem in &self.filesystems {
            let name = filesystem.name.replacen("pool", "new", 1);
            let fail = |error: &dyn std::fmt::Display| Violation(format!("{name}: {error}"));
            let handle = engine
                .datasets()
                .filesystem(&name)
                .map_err(|error| fail(&error))?;
            let shown = dump(&*handle, 50, 64 << 10).map_err(|error| fail(&error))?;
            let state = filesystem.history.newest();
            ensure!(
                state.is(&shown),
                "{name} was rebuilt as something else: {}",
                state.tree.without_unnamed().difference(&shown)
            );
            for (short, snapshot) in &filesystem.snapshots {
                let view = engine.datasets().view(&name, &At::Snapshot(short.clone()));
                let view = view.map_err(|error| fail(&error))?;
                let shown = dump(&*view, 50, 64 << 10).map_err(|error| fail(&error))?;
                ensure!(
                    !snapshot.exact || snapshot.tree == shown,
                    "{name}@{short} was rebuilt as something else: {}",
                    snapshot.tree.difference(&shown)
                );
            }
        }
        for volume in &self.volumes {
            let name = volume.name.replacen("pool", "new", 1);
            let fail = |error: &dyn std::fmt::Display| Violation(format!("{name}: {error}"));
            let handle = engine.datasets().volume(&name).map_err(|error| fail(&error))?;
            let data = volume.history.newest();
            let mut buffer = vec![0; data.size as usize];
            handle.read(0, &mut buffer).map_err(|error| fail(&error))?;
            ensure!(
                buffer == data.read(0, buffer.len()),
                "{name} was rebuilt as something else"
            );
        }
        Ok(())
    }
}
