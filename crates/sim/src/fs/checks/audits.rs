//! What must hold of the whole engine at certain moments: that what is counted is there, that nothing is held for nothing,
//! that roots and tables are where they must be.

use terrace_dataset::Tree;
use terrace_pool::{DeviceState, Presence};
use terrace_store::ChunkId;

use super::invariant::{Compared, Invariant, Trouble};
use crate::{
    ensure,
    fs::{
        models::{Body, Models, Promise},
        rig::Rig,
    },
};

/// The full walk: every record of the datasets, and every count of the store against what these records refer to.
pub(crate) struct Audit;

impl Invariant for Audit {
    fn check(&self, rig: &mut Rig, _models: &mut Models) -> Compared {
        let engine = rig.engine()?;
        let walked = terrace_dataset::check(engine.store()).and_then(|walk| {
            let expected = |tell: &mut dyn FnMut(ChunkId, i64)| {
                walk.references.iter().for_each(|(id, blocks)| tell(*id, *blocks));
                Ok(())
            };
            let audit = engine.chunks().audit(Some(&expected))?;
            Ok((walk, audit))
        });
        let (walk, audit) = match walked {
            Ok(found) => found,
            Err(error) => return Err(Trouble::refused("audit", error)),
        };
        if !rig.is_powered() {
            return Ok(());
        }
        let lost = walk.lost_bodies.iter();
        let lost = lost.map(|(dataset, body)| format!("body {body} of dataset {dataset} belongs to no file"));
        let wrong: Vec<String> = audit
            .discrepancies
            .into_iter()
            .chain(walk.problems)
            .chain(lost)
            .collect();
        ensure!(
            wrong.is_empty(),
            "the full walk found {} things wrong: {}",
            wrong.len(),
            wrong.iter().take(5).cloned().collect::<Vec<_>>().join("; ")
        );
        Ok(())
    }
}

/// What the newest root needs is still held, whatever fails.
pub(crate) struct RootHeld;

impl Invariant for RootHeld {
    fn check(&self, rig: &mut Rig, _models: &mut Models) -> Compared {
        if !rig.is_powered() {
            return Ok(());
        }
        match rig.engine()?.chunks().audit_root() {
            Ok(wrong) => ensure!(wrong.is_empty(), "{}", wrong.join("; ")),
            Err(error) => return Err(Trouble::refused("audit of the root", error)),
        }
        Ok(())
    }
}

/// Everything is committed: as many objects are counted as there are, and as many blocks. What lost its last name is
/// gone.
pub(crate) struct Counts;

impl Invariant for Counts {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        for (index, handle) in rig.handles.filesystems() {
            let filesystem = &models.filesystems[index];
            if filesystem.promise == Promise::Ram {
                continue;
            }
            let there = filesystem.history.newest().tree.len() as u64;
            let counted = match handle.statistics() {
                Ok(statistics) => statistics.objects,
                Err(error) => return Err(Trouble::failed("statistics", error)),
            };
            ensure!(
                counted == there || !rig.is_powered(),
                "{} counts {counted} objects and has {there}",
                filesystem.name
            );
            let tree = &filesystem.history.newest().tree;
            let files = tree.objects(|node| matches!(node.body, Body::File(_)));
            if files.is_empty() {
                continue;
            }
            let object = *rig.aside.pick(&files);
            let Ok(file) = tree.file(object) else { continue };
            let used = file.taken_blocks();
            match handle.attributes(object) {
                Ok(attributes) => ensure!(
                    file.is_taken(attributes.blocks512 / 8),
                    "object {object} of {} takes {} sectors, and has {used} blocks",
                    filesystem.name,
                    attributes.blocks512
                ),
                Err(error) => return Err(Trouble::failed("attributes", error)),
            }
        }
        Ok(())
    }
}

/// No room is held for nothing.
pub(crate) struct Rooms;

impl Invariant for Rooms {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let leaks = |name: &str, leaked: u64| -> Compared {
            ensure!(
                leaked == 0,
                "{name}: {leaked} bytes of room are held, and nothing is dirty"
            );
            Ok(())
        };
        for (index, handle) in rig.handles.filesystems() {
            leaks(&models.filesystems[index].name, handle.leaked_room_bytes())?;
        }
        for (index, handle) in rig.handles.volumes() {
            leaks(&models.volumes[index].name, handle.leaked_room_bytes())?;
        }
        Ok(())
    }
}

/// Everything is committed: nothing is set aside for writers any more, but for what is reserved. (What is kept in RAM alone
/// has its room.)
pub(crate) struct Reserved;

impl Invariant for Reserved {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let kept = models.filesystems.iter().any(|one| one.promise == Promise::Ram)
            || models.volumes.iter().any(|one| one.promise == Promise::Ram);
        let engine = rig.engine()?;
        let volumes = models.volumes.iter().map(|volume| &volume.name);
        let names = models.filesystems.iter().map(|one| &one.name).chain(volumes);
        let states = names.filter_map(|name| engine.datasets().state(name).ok());
        let promised: u64 = states.map(|state| state.usage().set_aside_bytes()).sum();
        for volume in models.volumes.iter().filter(|one| one.promise != Promise::Ram) {
            let Ok(state) = engine.datasets().state(&volume.name) else {
                continue;
            };
            let (usage, used) = (state.usage(), state.counters().referenced_bytes());
            let (reserved, set_aside) = (usage.reservation_bytes(), usage.set_aside_bytes());
            ensure!(
                set_aside >= reserved.saturating_sub(used) || !rig.is_powered(),
                "{}: of {reserved} bytes that are reserved {used} are used, and {set_aside} are set aside",
                volume.name
            );
        }
        let promised = promised + engine.leaving_room_bytes() + engine.datasets().working_bytes_of_files();
        let reserved = engine.chunks().reserved_bytes().abs_diff(promised);
        ensure!(
            kept || reserved == 0 || !rig.is_powered(),
            "everything is committed, and {reserved} bytes are still set aside"
        );
        Ok(())
    }
}

/// A root was just written: where two devices work, two have it. (One that refused a root does not work any more.)
pub(crate) struct RootHolders;

impl Invariant for RootHolders {
    fn check(&self, rig: &mut Rig, _models: &mut Models) -> Compared {
        let devices = rig.engine()?.pool().devices();
        let online = devices
            .iter()
            // One that the labels call absent may have what lacks something: the newest root is beyond it.
            .filter(|device| device.state == DeviceState::Online && device.presence == Presence::Whole);
        let wanted = online.count().min(2);
        let holders = rig.machine.root_holders(rig.members.disks().into_iter());
        ensure!(
            holders >= wanted || !rig.is_powered(),
            "the newest root is durable on {holders} devices, and must be on {wanted}"
        );
        let explained = rig.condition.is_failing() || rig.condition.scarred;
        let halves = rig.machine.half_roots(rig.members.disks().into_iter());
        ensure!(
            halves == 0 || explained || !rig.is_powered(),
            "{halves} devices have one copy of their newest root where there must be two"
        );
        Ok(())
    }
}

/// Every copy of every table is good, unless something failed that may have cost one.
pub(crate) struct Tables;

impl Invariant for Tables {
    fn check(&self, rig: &mut Rig, _models: &mut Models) -> Compared {
        if rig.condition.is_failing() || rig.condition.scarred || !rig.is_powered() {
            return Ok(());
        }
        let damaged = rig.engine()?.chunks().verify_tables();
        ensure!(
            damaged.is_empty() || !rig.is_powered(),
            "nothing damaged the tables: {}",
            damaged.join("; ")
        );
        Ok(())
    }
}

/// What the last scrub found, when nothing can have damaged anything.
pub(crate) struct ScrubClean;

impl Invariant for ScrubClean {
    fn check(&self, rig: &mut Rig, _models: &mut Models) -> Compared {
        if !rig.is_powered() {
            return Ok(());
        }
        let engine = rig.engine()?;
        let status = engine.status();
        if let Some(scrub) = status.scrub.filter(|scrub| scrub.state == "done") {
            ensure!(
                scrub.errors == scrub.repaired || rig.condition.is_failing() || rig.condition.scarred,
                "a scrub found damage where there is none: {:?}",
                scrub.damage
            );
        }
        Ok(())
    }
}
