//! Properties of the run's datasets that change while they are used, and the size of the volume.
//!
//! Invariant: where a change failed, what became of it is asked for again, or the model says that it does not know.

use crate::{
    act::Act,
    fs::{
        checks::value_of,
        models::{Promise, RETENTIONS},
        world::World,
    },
    trace,
    violation::{Check, Violation},
};

/// Another property of a filesystem.
pub(crate) struct ChangeProperty;

impl Act<World> for ChangeProperty {
    fn perform(&mut self, world: &mut World) -> Check {
        if world.rig.random.chance(1, 4) {
            return ChangePromise.perform(world);
        }
        let engine = world.rig.engine()?;
        let index = world.rig.random.index(world.models.filesystems.len());
        let filesystem = &mut world.models.filesystems[index];
        let name = filesystem.name.clone();
        let (retention, rules) = *world.rig.random.pick(&RETENTIONS);
        let quota = *world.rig.random.pick(&[None, Some(2u64), Some(6), Some(12)]);
        let choice = world.rig.random.below(5);
        let (property, value) = match choice {
            0 | 1 => ("retention", retention.to_owned()),
            2 => (
                "quota",
                quota.map_or("none".into(), |mebibytes| format!("{mebibytes}M")),
            ),
            3 => (
                "compression",
                (*world.rig.random.pick(&["lz4", "off", "zstd-1"])).to_owned(),
            ),
            _ => ("dedup", (*world.rig.random.pick(&["on", "off"])).to_owned()),
        };
        let set = engine.datasets().properties().set(&name, property, &value);
        trace!(world.rig.trace, "{name}: {property}={value}: {}", set.is_ok());
        let now = set.is_ok().then(|| value_of(&engine, &name, property)).flatten();
        world.models.settings.property(&name, property, now);
        match choice {
            0 | 1 => filesystem.retention = set.is_ok().then(|| rules.to_vec()),
            2 => {
                filesystem.quota_certain = set.is_ok();
                filesystem.quota_slack_bytes = 9 << 20;
                filesystem.quota_bytes = quota.map(|mebibytes| mebibytes << 20);
            }
            _ => {}
        }
        match set {
            Ok(()) => Ok(()),
            Err(error) => world.excuse("set a property", &error.to_string()),
        }
    }
}

/// Another durability of a filesystem or of the volume.
struct ChangePromise;

impl Act<World> for ChangePromise {
    fn perform(&mut self, world: &mut World) -> Check {
        let promise = *world.rig.random.pick(&Promise::ALL);
        let index = match world.models.volumes.is_empty() || world.rig.random.chance(2, 3) {
            true => Some(world.rig.random.index(world.models.filesystems.len())),
            false => None,
        };
        let name = index.map_or_else(
            || world.models.volumes[0].name.clone(),
            |index| world.models.filesystems[index].name.clone(),
        );
        let (_, found) = SetPromise { name: &name, promise }.set(world)?;
        match index {
            Some(index) => world.models.filesystems[index].promise = found,
            None => world.models.volumes[0].promise = found,
        }
        Ok(())
    }
}

/// A durability of a dataset that is to be set.
pub(crate) struct SetPromise<'a> {
    pub(crate) name: &'a str,
    pub(crate) promise: Promise,
}

impl SetPromise<'_> {
    /// Sets it; whether that succeeded, and which one the dataset has now.
    pub(crate) fn set(&self, world: &mut World) -> Check<(bool, Promise)> {
        let (name, promise) = (self.name, self.promise);
        let engine = world.rig.engine()?;
        let set = engine
            .datasets()
            .properties()
            .set(name, "durability", promise.word());
        trace!(world.rig.trace, "{name}: {promise:?}: {}", set.is_ok());
        let now = set
            .is_ok()
            .then(|| value_of(&engine, name, "durability"))
            .flatten();
        world.models.settings.property(name, "durability", now);
        drop(engine);
        let is_set = set.is_ok();
        if let Err(error) = set {
            world.excuse("set durability", &error.to_string())?;
        }
        // Asked for again, since it is not known what became of one that failed.
        let found = world
            .rig
            .engine()?
            .datasets()
            .properties()
            .get(name, "durability");
        let found = found.map_err(|error| Violation(format!("durability of {name}: {error}")))?;
        let found = found.first().and_then(|found| Promise::of(&found.value));
        let found = found.ok_or_else(|| Violation(format!("{name} has no durability")))?;
        Ok((is_set, found))
    }
}

/// Another size of the volume.
pub(crate) struct ResizeVolume;

impl Act<World> for ResizeVolume {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        let Some(volume) = world.models.volumes.first_mut() else {
            return Ok(());
        };
        let size = world.rig.random.between(1, 1 << 10) * 4096;
        let mut model = volume.history.newest().clone();
        model.resize(size);
        let resized = engine.datasets().resize_volume(&volume.name, size);
        trace!(
            world.rig.trace,
            "{}: resize to {size}: {}",
            volume.name,
            resized.is_ok()
        );
        volume.history.push(model);
        match resized {
            Ok(()) => {
                volume.history.synced();
                world.models.flushed();
                Ok(())
            }
            Err(error) => {
                world.excuse("resize a volume", &error.to_string())?;
                world.recover(false)
            }
        }
    }
}
