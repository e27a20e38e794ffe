//! What makes changes durable: fsync and flush, and ticks of the clock.
//!
//! What must hold: what a call has made durable, by the promise of its dataset, is behind every later opening; nothing
//! older than the commit interval is ever lost, but for what is kept in RAM alone; a full pool refuses the writer, and
//! takes what it has accepted.

use std::ops::RangeInclusive;

use terrace_dataset::FsError;

use crate::{
    act::Act,
    fs::{
        checks::{AcceptedFits, Counts, Reserved, RetainedKept, Rooms, TickInterrupted},
        models::{Promise, ROOT},
        world::World,
    },
    trace,
    violation::Check,
};

/// A flush of the first volume, or an fsync of a filesystem.
pub(crate) struct Fsync;

impl Act<World> for Fsync {
    fn perform(&mut self, world: &mut World) -> Check {
        if !world.models.volumes.is_empty() && world.rig.random.chance(1, 5) {
            return Self::flush_volume(world);
        }
        let rig = &mut world.rig;
        let index = rig.random.index(world.models.filesystems.len());
        let filesystem = &mut world.models.filesystems[index];
        let Some(handle) = rig.handles.filesystem(index) else {
            return Ok(());
        };
        let result = match rig.random.chance(1, 2) {
            true => handle.sync(),
            false => handle.sync_object(ROOT),
        };
        match result {
            Ok(()) => {
                trace!(rig.trace, "{}: fsync", filesystem.name);
                if filesystem.promise.covers_flush() {
                    filesystem.history.synced();
                    world.models.flushed();
                }
                Ok(())
            }
            Err(error) => {
                let full = error == FsError::NoSpace;
                world.check(&AcceptedFits { doing: "fsync", full })?;
                world.after_error("fsync", &error)
            }
        }
    }
}

impl Fsync {
    fn flush_volume(world: &mut World) -> Check {
        let Some(handle) = world.rig.handles.volume(0) else {
            return Ok(());
        };
        // The second asks for it whatever the volume's durability.
        let whatever = !world.rig.random.chance(1, 2);
        let done = match whatever {
            false => handle.flush(),
            true => handle.flush_always(),
        };
        match done {
            Ok(()) => {
                let volume = &mut world.models.volumes[0];
                trace!(world.rig.trace, "{}: flushed", volume.name);
                if whatever || volume.promise.covers_flush() {
                    volume.history.synced();
                    world.models.flushed();
                }
                Ok(())
            }
            Err(error) => world.after_error("flush of a volume", &error),
        }
    }
}

/// Time goes on, and what is due is committed, as the test's clock asks for it or as the daemon's does.
pub(crate) struct Tick;

impl Act<World> for Tick {
    fn perform(&mut self, world: &mut World) -> Check {
        let rig = &mut world.rig;
        let engine = rig.engine()?;
        let seconds = match rig.random.below(30) {
            0 => rig.random.between(1000, 9000),
            1..=3 => rig.random.between(30, 200),
            _ => 5,
        };
        rig.machine.clock.advance(seconds * 1_000_000_000);
        let before = rig.now_seconds();
        let of_daemon = rig.random.chance(1, 3);
        let first = engine.datasets().checkpoint();
        let done = match of_daemon {
            false => engine.tick().map(drop),
            true => engine.commit_due().map(drop),
        };
        let closed = first..=engine.datasets().checkpoint() - 1;
        match done {
            Ok(()) => Self::committed(world, &closed, before, of_daemon),
            Err(error) => {
                world.check(&TickInterrupted(closed))?;
                let words = error.to_string();
                let full = words.contains("is full");
                world.check(&AcceptedFits { doing: "tick", full })?;
                world.excuse("tick", &words)
            }
        }
    }
}

impl Tick {
    /// These checkpoints were closed: nothing older than the commit interval is ever lost.
    fn committed(world: &mut World, closed: &RangeInclusive<u64>, before: i64, of_daemon: bool) -> Check {
        trace!(world.rig.trace, "checkpoints {closed:?}");
        world.models.committed();
        if of_daemon {
            // What it let go of last is not durable yet.
            world.models.flushed();
        }
        for index in 0..world.models.filesystems.len() {
            let in_ram = world.models.filesystems[index].promise == Promise::Ram;
            let closed = (!in_ram).then(|| closed.clone());
            world.check(&RetainedKept {
                index,
                closed,
                before,
            })?;
        }
        match of_daemon {
            true => world.models.held_is_durable(),
            false => world.models.flushed(),
        }
        world.check(&Counts)?;
        world.check(&Rooms)?;
        world.check(&Reserved)
    }
}
