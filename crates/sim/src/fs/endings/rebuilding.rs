//! An end of a run: a pool is rebuilt from its devices into another one, with or without its root slots.
//!
//! What must hold: of a pool at rest with whole devices everything comes back, without its root slots too as long as the
//! rebuilding says that nothing is missing; the source is not changed.

use std::{collections::BTreeMap, sync::Arc};

use terrace_dataset::At;
use terrace_engine::{Engine, OpenOptions, PoolSpec, RebuildOptions, TierSpec, rebuild};

use crate::{
    act::Act,
    ensure,
    fs::{checks::dump, models::Models, world::World},
    hardware::{FaultKind, Machine, PAGE_BYTES, Random, SharedRandom},
    rig::MIB,
    trace,
    violation::{Check, Violation},
};

/// Pages of a device that hold its root slots.
const ROOT_PAGES: std::ops::Range<usize> = 64..192;

/// See the module.
pub(crate) struct Rebuild;

impl Act<World> for Rebuild {
    fn perform(&mut self, world: &mut World) -> Check {
        if !world.at_rest()? {
            return Ok(());
        }
        let machine = world.rig.machine.clone();
        let rootless = world.rig.random.chance(1, 2);
        if rootless {
            trace!(world.rig.trace, "all root slots are gone");
            for disk in world.rig.members.disks() {
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
        let source = world
            .rig
            .members
            .disks()
            .into_iter()
            .map(|disk| devices[disk].clone())
            .collect();
        let place = Machine::new(
            &[(256 * MIB, false), (256 * MIB, false)],
            world.rig.random.fork(9),
            world.rig.coverage.clone(),
            world.rig.trace.clone(),
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
        let options = |random: &mut Random| OpenOptions {
            randomness: Arc::new(SharedRandom::new(random.fork(3))),
            memory_bytes: Some(16 * MIB),
            ..OpenOptions::driven(place.clock.clone(), random.next())
        };
        let target = Engine::create_on(&spec, vec![place.plug_in()], options(&mut world.rig.random))
            .map_err(|error| Violation(format!("cannot make the new pool: {error}")))?;
        let report = rebuild(
            source,
            Some(&target),
            RebuildOptions::default(),
            &mut |_, _, _| {},
        )
        .map_err(|error| Violation(format!("cannot be rebuilt: {error}")))?;
        world.rig.coverage.hit(FaultKind::Rebuilt);
        trace!(
            world.rig.trace,
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
        let engine = Engine::open(place.plug_in(), options(&mut world.rig.random))
            .map_err(|error| Violation(format!("the rebuilt pool does not open: {error}")))?;
        Self::compare(&engine, &world.models)
    }
}

impl Rebuild {
    /// The pool that was rebuilt has everything.
    fn compare(engine: &Engine, models: &Models) -> Check {
        for filesystem in &models.filesystems {
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
        for volume in &models.volumes {
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
