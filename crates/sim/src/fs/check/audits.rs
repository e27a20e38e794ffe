//! What must hold of the whole engine at certain moments: that what is counted is there, that nothing is held for nothing,
//! that roots and devices are used as they should be.

use terrace_dataset::{Kind, Tree};
use terrace_pool::{DeviceState, Presence};

use crate::{
    ensure,
    fs::{
        level::Run,
        state::{Body, Promise},
    },
    violation::{Check, Violation},
};

impl Run {
    /// Everything is committed: as many objects are counted as there are, and as many blocks. What lost its last name is
    /// gone.
    pub(crate) fn check_counts(&mut self) -> Check {
        for filesystem in self.filesystems.iter().filter(|one| one.promise != Promise::Ram) {
            let Some(handle) = &filesystem.handle else {
                continue;
            };
            let there = filesystem.history.newest().tree.len() as u64;
            let counted = match handle.statistics() {
                Ok(statistics) => statistics.objects,
                Err(error) => return self.after_error("statistics", &error),
            };
            ensure!(
                counted == there || !self.rig.machine.is_powered(),
                "{} counts {counted} objects and has {there}",
                filesystem.name
            );
            let tree = &filesystem.history.newest().tree;
            let files = tree.objects(|node| matches!(node.body, Body::File(_)));
            if files.is_empty() {
                continue;
            }
            let object = *self.aside.pick(&files);
            let Ok(file) = tree.file(object) else { continue };
            let used = file.taken_blocks();
            match handle.attributes(object) {
                Ok(attributes) => ensure!(
                    file.is_taken(attributes.blocks512 / 8),
                    "object {object} of {} takes {} sectors, and has {used} blocks",
                    filesystem.name,
                    attributes.blocks512
                ),
                Err(error) => return self.after_error("attributes", &error),
            }
        }
        Ok(())
    }

    /// No room is held for nothing.
    pub(crate) fn check_rooms(&self) -> Check {
        for filesystem in &self.filesystems {
            let leaked = filesystem
                .handle
                .as_ref()
                .map_or(0, |handle| handle.leaked_room_bytes());
            ensure!(
                leaked == 0,
                "{}: {leaked} bytes of room are held, and nothing is dirty",
                filesystem.name
            );
        }
        for volume in &self.volumes {
            let leaked = volume
                .handle
                .as_ref()
                .map_or(0, |handle| handle.leaked_room_bytes());
            ensure!(
                leaked == 0,
                "{}: {leaked} bytes of room are held, and nothing is dirty",
                volume.name
            );
        }
        Ok(())
    }

    /// Everything is committed: nothing is set aside for writers any more, but for what is reserved. (What is kept in RAM alone
    /// has its room.)
    pub(crate) fn check_reserved(&self) -> Check {
        let kept = self.filesystems.iter().any(|one| one.promise == Promise::Ram)
            || self.volumes.iter().any(|one| one.promise == Promise::Ram);
        let engine = self.engine()?;
        let volumes = self.volumes.iter().map(|volume| &volume.name);
        let names = self.filesystems.iter().map(|one| &one.name).chain(volumes);
        let states = names.filter_map(|name| engine.datasets().state(name).ok());
        let promised: u64 = states.map(|state| state.usage().set_aside_bytes()).sum();
        for volume in self.volumes.iter().filter(|one| one.promise != Promise::Ram) {
            let Ok(state) = engine.datasets().state(&volume.name) else {
                continue;
            };
            let (usage, used) = (state.usage(), state.counters().referenced_bytes());
            let (reserved, set_aside) = (usage.reservation_bytes(), usage.set_aside_bytes());
            ensure!(
                set_aside >= reserved.saturating_sub(used) || !self.rig.machine.is_powered(),
                "{}: of {reserved} bytes that are reserved {used} are used, and {set_aside} are set aside",
                volume.name
            );
        }
        let promised = promised + engine.leaving_room_bytes() + engine.datasets().working_bytes_of_files();
        let reserved = engine.chunks().reserved_bytes().abs_diff(promised);
        ensure!(
            kept || reserved == 0 || !self.rig.machine.is_powered(),
            "everything is committed, and {reserved} bytes are still set aside"
        );
        Ok(())
    }

    /// A root was just written: where two devices work, two have it. (One that refused a root does not work any more.)
    pub(crate) fn check_root_holders(&self) -> Check {
        let devices = self.engine()?.pool().devices();
        let online = devices
            .iter()
            // One that the labels call absent may have what lacks something: the newest root is beyond it.
            .filter(|device| device.state == DeviceState::Online && device.presence == Presence::Whole);
        let wanted = online.count().min(2);
        let holders = self.rig.machine.root_holders(self.members.iter().copied());
        ensure!(
            holders >= wanted || !self.rig.machine.is_powered(),
            "the newest root is durable on {holders} devices, and must be on {wanted}"
        );
        let explained = self.storm || self.hurt || self.scarred;
        let halves = self.rig.machine.half_roots(self.members.iter().copied());
        ensure!(
            halves == 0 || explained || !self.rig.machine.is_powered(),
            "{halves} devices have one copy of their newest root where there must be two"
        );
        Ok(())
    }

    /// The pool uses of each device what its labels give it, and no more. (One that is being shrunk counts as smaller.)
    pub(crate) fn check_sizes(&self) -> Check {
        let engine = self.engine()?;
        let pool = engine.pool();
        for device in pool.devices() {
            let given = pool.segments_in(device.size_bytes);
            ensure!(
                device.segments <= given || device.state == DeviceState::Missing,
                "device {} is used for {} segments, and its labels give it {given}",
                device.number,
                device.segments
            );
        }
        Ok(())
    }

    /// The size that a volume has is the one that is told of it.
    pub(crate) fn check_volume_sizes(&self) -> Check {
        let engine = self.engine()?;
        for volume in &self.volumes {
            let Some(handle) = &volume.handle else { continue };
            let info = engine.datasets().info(&volume.name);
            let info = info.map_err(|error| Violation(format!("{}: {error}", volume.name)))?;
            let size_bytes = handle.size_bytes();
            ensure!(
                info.kind == Kind::Volume { size_bytes },
                "{} has {size_bytes} bytes, and is listed as {:?}",
                volume.name,
                info.kind
            );
        }
        Ok(())
    }
}
