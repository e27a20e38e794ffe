//! Tiers that are set otherwise, and data that is moved or pinned by hand; scrubs.
//!
//! What must hold: none of it changes what any dataset shows.

use terrace_mover::MoverError;
use terrace_pool::Landing;

use super::devices::stop_soon;
use crate::{
    act::Act,
    fs::{
        clients::{Client, Read},
        models::{Body, Node},
        world::World,
    },
    trace,
    violation::Check,
};

/// Other settings of a tier or of migration.
pub(crate) struct ChangeTier;

impl Act<World> for ChangeTier {
    fn perform(&mut self, world: &mut World) -> Check {
        stop_soon(&mut world.rig);
        let engine = world.rig.engine()?;
        if world.rig.random.chance(1, 2) {
            let value = if world.rig.random.chance(1, 2) {
                "on"
            } else {
                "off"
            };
            trace!(world.rig.trace, "migration={value}");
            let set = engine.set_property("migration", value);
            world.models.settings.migration(value, set.is_ok());
            return match set {
                Ok(()) => Ok(()),
                Err(error) => world.excuse("set migration", &error.to_string()),
            };
        }
        let tiers = engine.pool().tiers();
        let mut settings = world.rig.random.pick(&tiers).settings.clone();
        settings.high_water = *world.rig.random.pick(&[0.02, 0.1, 0.5, 0.85]);
        settings.low_water = settings.high_water / 2.0;
        settings.promote_after = world.rig.random.between(0, 3) as u32;
        settings.landing =
            *world
                .rig
                .random
                .pick(&[Landing::OFF, Landing::SEQUENTIAL, Landing::RANDOM, Landing::ALL]);
        trace!(world.rig.trace, "tier {settings:?}");
        let set = engine.set_tier(&settings.name.clone(), settings.clone());
        world.models.settings.tier(settings, set.is_ok());
        match set {
            Ok(_) => Ok(()),
            Err(error) => world.excuse("set a tier", &error.to_string()),
        }
    }
}

/// A file or a whole dataset is moved or pinned to a tier; or a scrub begins.
pub(crate) struct MoveByHand;

impl Act<World> for MoveByHand {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        if world.rig.random.chance(1, 4) {
            let started = engine.start_scrub();
            trace!(world.rig.trace, "scrub: {}", started.is_ok());
            return Ok(());
        }
        let index = world.rig.random.index(world.models.filesystems.len());
        let Some(handle) = world.rig.handles.filesystem(index) else {
            return Ok(());
        };
        let filesystem = &world.models.filesystems[index];
        let files = filesystem
            .history
            .newest()
            .tree
            .objects(|node: &Node| matches!(node.body, Body::File(_)));
        let object = if files.is_empty() || world.rig.random.chance(1, 4) {
            0
        } else {
            *world.rig.random.pick(&files)
        };
        let directories = filesystem
            .history
            .newest()
            .tree
            .objects(|node: &Node| matches!(node.body, Body::Directory(_)));
        let tiers = engine.pool().tiers();
        let tier = world.rig.random.pick(&tiers).settings.name.clone();
        let number = handle.dataset().number();
        if !directories.is_empty() && world.rig.random.chance(1, 5) {
            let directory = *world.rig.random.clone().pick(&directories);
            return Self::pin_directory(world, number, directory, &tier);
        }
        let (words, done) = match world.rig.random.below(5) {
            0 => ("promote", engine.mover().promote(number, object).map(drop)),
            1 => ("demote", engine.mover().demote(number, object).map(drop)),
            2 if object != 0 => ("pin", engine.mover().pin(number, object, &tier).map(drop)),
            3 if object != 0 => ("unpin", engine.mover().unpin(number, object).map(drop)),
            _ => ("move", engine.mover().move_to(number, object, &tier).map(drop)),
        };
        match words {
            "pin" => world
                .models
                .settings
                .pin(number, object, Some(&tier), done.is_ok()),
            "unpin" => world.models.settings.pin(number, object, None, done.is_ok()),
            _ => {}
        }
        trace!(
            world.rig.trace,
            "{words} {object} of {} ({tier}): {}",
            world.models.filesystems[index].name,
            done.is_ok()
        );
        match done {
            Err(MoverError::Store(error)) => world.excuse(words, &error.to_string()),
            _ => Self::use_what_was_moved(&mut Client::of(world, index), &files),
        }
    }
}

impl MoveByHand {
    /// A directory is pinned with what lies beneath, or is not any more.
    fn pin_directory(world: &mut World, dataset: u32, directory: u64, tier: &str) -> Check {
        let engine = world.rig.engine()?;
        let pins = world.rig.random.chance(2, 3);
        let done = match pins {
            true => engine.mover().pin(dataset, directory, tier).map(drop),
            false => engine.mover().unpin(dataset, directory).map(drop),
        };
        world
            .models
            .settings
            .pin(dataset, directory, pins.then_some(tier), done.is_ok());
        trace!(
            world.rig.trace,
            "pin directory {directory} ({tier}): {}",
            done.is_ok()
        );
        match done {
            Err(MoverError::Store(error)) => world.excuse("pin", &error.to_string()),
            _ => Ok(()),
        }
    }

    /// In runs that read the same again and again, what was moved by hand is moved at once, and some of it then read.
    fn use_what_was_moved(client: &mut Client<'_>, files: &[u64]) -> Check {
        if client.world.rig.reads_of_the_same < 2 {
            return Ok(());
        }
        let engine = client.world.rig.engine()?;
        for _ in 0..64 {
            if let Err(error) = engine.mover().step() {
                return client.world.excuse("step of the mover", &error.to_string());
            }
        }
        drop(engine);
        for object in files.iter().take(4) {
            Read::read_again(client, *object, 0)?;
        }
        Ok(())
    }
}
