//! The usual end of a run: everything is deleted, and the room must come back.

use terrace_dataset::DatasetError;

use crate::{
    act::Act,
    ensure,
    fs::{
        background::{Rest, StoreCheckpoint, Tick},
        checks::{Audit, PastShown},
        rig::Rig,
        world::World,
    },
    trace,
    violation::{Check, Violation},
};

/// See the module.
pub(crate) struct DeleteEverything;

impl Act<World> for DeleteEverything {
    fn perform(&mut self, world: &mut World) -> Check {
        for index in 0..world.models.filesystems.len() {
            let names: Vec<String> = world.models.filesystems[index]
                .snapshots
                .keys()
                .cloned()
                .collect();
            for short in &names {
                if let Some(snapshot) = PastShown::of_snapshot(&world.models, index, short) {
                    world.check(&snapshot)?;
                }
            }
        }
        // What is destroyed with its history is freed otherwise.
        if world.rig.aside.chance(1, 2) {
            ForgetHistory.perform(world)?;
        }
        let engine = world.rig.engine()?;
        Self::destroy_datasets(world)?;
        Self::dismiss_guests(world)?;
        for _ in 0..3 {
            Tick.perform(world)?;
            Rest.perform(world)?;
            StoreCheckpoint.perform(world)?;
        }
        Rest.perform(world)?;
        Self::check_space(&world.rig)?;
        world.check(&Audit)?;
        engine
            .close()
            .map_err(|error| Violation(format!("cannot close: {error}")))
    }
}

impl DeleteEverything {
    fn destroy_datasets(world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        for index in 0..world.models.filesystems.len() {
            while let Some(short) = world.models.filesystems[index].snapshots.keys().next().cloned() {
                let full = format!("{}@{short}", world.models.filesystems[index].name);
                let _ = engine.datasets().snapshots().release("tag", &full);
                engine
                    .datasets()
                    .snapshots()
                    .destroy(&full, false, false)
                    .map_err(|error| Violation(format!("{full} cannot be destroyed: {error}")))?;
                world.models.filesystems[index].snapshots.remove(&short);
            }
            world.rig.handles.close_filesystem(index);
            let name = world.models.filesystems[index].name.clone();
            engine
                .datasets()
                .destroy(&name, true, true, false)
                .map_err(|error| Violation(format!("{name} cannot be destroyed: {error}")))?;
        }
        for (index, volume) in std::mem::take(&mut world.models.volumes).into_iter().enumerate() {
            let name = volume.name;
            world.rig.handles.close_volume(index);
            engine
                .datasets()
                .destroy(&name, true, true, false)
                .map_err(|error| Violation(format!("{name} cannot be destroyed: {error}")))?;
        }
        world.models.filesystems.clear();
        Ok(())
    }

    fn dismiss_guests(world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        for (name, _) in std::mem::take(&mut world.models.guests).newest() {
            let gone = engine.datasets().destroy(name, true, true, false);
            let gone = gone.or_else(|error| match error {
                // With the one above it.
                DatasetError::NotFound(_) => Ok(Default::default()),
                other => Err(other),
            });
            gone.map_err(|error| Violation(format!("{name} cannot be destroyed: {error}")))?;
        }
        Ok(())
    }

    /// All room is back.
    fn check_space(rig: &Rig) -> Check {
        let engine = rig.engine()?;
        let space = engine.store().space();
        trace!(
            rig.trace,
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
        Ok(())
    }
}

/// Without snapshots and retention there is no history: what only they held is freed.
struct ForgetHistory;

impl Act<World> for ForgetHistory {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        let datasets = engine.datasets();
        let forgotten = || -> Result<(), DatasetError> {
            for snapshot in datasets.snapshots().list(None, false)? {
                if !snapshot.holds.is_empty() {
                    datasets.snapshots().release("tag", &snapshot.name)?;
                }
                datasets.snapshots().destroy(&snapshot.name, false, false)?;
            }
            for dataset in datasets.list(None)? {
                datasets.properties().set(&dataset.name, "retention", "none")?;
                datasets.retained().prune(&dataset.name, false)?;
            }
            Ok(())
        };
        let forgotten = forgotten();
        trace!(world.rig.trace, "nothing is held any more: {}", forgotten.is_ok());
        if let Err(error) = forgotten {
            return world.excuse("giving up all history", &error.to_string());
        }
        for filesystem in &mut world.models.filesystems {
            filesystem.snapshots.clear();
            filesystem.retention = Some(Vec::new());
        }
        world
            .models
            .volumes
            .iter_mut()
            .for_each(|volume| volume.snapshots.clear());
        Tick.perform(world)?;
        Rest.perform(world)?;
        let engine = world.rig.engine()?;
        match terrace_dataset::check(engine.store()) {
            Ok(walk) => {
                ensure!(
                    walk.versions == 0 || world.rig.condition.filled,
                    "{} versions are kept as history, and nothing holds any",
                    walk.versions
                );
                Ok(())
            }
            Err(error) => world.excuse("a walk", &error.to_string()),
        }
    }
}
