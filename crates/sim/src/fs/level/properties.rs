//! Properties of the run's datasets that change while they are used, and the size of the volume.
//!
//! Invariant: where a change failed, what became of it is asked for again, or the model says that it does not know.

use super::Run;
use crate::{
    fs::{check::RETENTIONS, state::Promise},
    trace,
    violation::{Check, Violation},
};

impl Run {
    /// Another property of a filesystem.
    pub(super) fn change_settings(&mut self) -> Check {
        if self.random.chance(1, 4) {
            return self.change_promise();
        }
        let engine = self.engine()?;
        let index = self.random.index(self.filesystems.len());
        let filesystem = &mut self.filesystems[index];
        let name = filesystem.name.clone();
        let (retention, rules) = *self.random.pick(&RETENTIONS);
        let quota = *self.random.pick(&[None, Some(2u64), Some(6), Some(12)]);
        let choice = self.random.below(5);
        let (property, value) = match choice {
            0 | 1 => ("retention", retention.to_owned()),
            2 => (
                "quota",
                quota.map_or("none".into(), |mebibytes| format!("{mebibytes}M")),
            ),
            3 => (
                "compression",
                (*self.random.pick(&["lz4", "off", "zstd-1"])).to_owned(),
            ),
            _ => ("dedup", (*self.random.pick(&["on", "off"])).to_owned()),
        };
        let set = engine.datasets().set(&name, property, &value);
        trace!(self.trace, "{name}: {property}={value}: {}", set.is_ok());
        self.settings.property(&engine, &name, property, set.is_ok());
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
            Err(error) => self.excuse("set a property", &error.to_string()),
        }
    }

    /// Another durability of a filesystem or of the volume.
    fn change_promise(&mut self) -> Check {
        let promise = *self.random.pick(&Promise::ALL);
        let index = match self.volumes.is_empty() || self.random.chance(2, 3) {
            true => Some(self.random.index(self.filesystems.len())),
            false => None,
        };
        let name = index.map_or_else(
            || self.volumes[0].name.clone(),
            |index| self.filesystems[index].name.clone(),
        );
        let (_, found) = self.set_promise(&name, promise)?;
        match index {
            Some(index) => self.filesystems[index].promise = found,
            None => self.volumes[0].promise = found,
        }
        Ok(())
    }

    /// Sets the durability of a dataset; whether that succeeded, and which one it has now.
    pub(in crate::fs) fn set_promise(&mut self, name: &str, promise: Promise) -> Check<(bool, Promise)> {
        let engine = self.engine()?;
        let set = engine.datasets().set(name, "durability", promise.word());
        trace!(self.trace, "{name}: {promise:?}: {}", set.is_ok());
        self.settings.property(&engine, name, "durability", set.is_ok());
        drop(engine);
        let is_set = set.is_ok();
        if let Err(error) = set {
            self.excuse("set durability", &error.to_string())?;
        }
        // Asked for again, since it is not known what became of one that failed.
        let found = self.engine()?.datasets().get(name, "durability");
        let found = found.map_err(|error| Violation(format!("durability of {name}: {error}")))?;
        let found = found.first().and_then(|found| Promise::of(&found.value));
        let found = found.ok_or_else(|| Violation(format!("{name} has no durability")))?;
        Ok((is_set, found))
    }

    pub(super) fn resize_volume(&mut self) -> Check {
        let engine = self.engine()?;
        let Some(volume) = self.volumes.first_mut() else {
            return Ok(());
        };
        let size = self.random.between(1, 1 << 10) * 4096;
        let mut model = volume.history.newest().clone();
        model.resize(size);
        let resized = engine.datasets().resize_volume(&volume.name, size);
        trace!(
            self.trace,
            "{}: resize to {size}: {}",
            volume.name,
            resized.is_ok()
        );
        volume.history.push(model);
        match resized {
            Ok(()) => {
                volume.history.synced();
                self.flushed();
                Ok(())
            }
            Err(error) => {
                self.excuse("resize a volume", &error.to_string())?;
                self.recover(false)
            }
        }
    }
}
