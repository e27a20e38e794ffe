//! Guests: datasets that are made, get another name and go again while the run goes on, in some of the runs.
//!
//! What must hold: making, naming and destroying are durable when they return, so that the power may go at once; what
//! failed on the way happened wholly or not at all; a file that was flushed is there with its content; nothing that was
//! destroyed comes back.

use terrace_dataset::{Context, DatasetError, FileKind, NewDataset, ROOT, Tree};

use crate::{
    act::Act,
    fs::{
        checks::{GUEST_FILE, GuestsCounted},
        models::GUEST_PREFIX,
        world::World,
    },
    hardware::Random,
    models::Content,
    trace,
    violation::{Check, Violation},
};

/// Guests that a pool of a run has at most.
const GUESTS_MAX: usize = 4;
const BYTES_MAX: u64 = 60_000;

/// Now and then one comes, changes its name or goes.
pub(crate) struct ComeAndGo {
    /// Chance of their own, so that they do not change what else a seed does.
    random: Random,
    are_invited: bool,
    made: u64,
}

impl Act<World> for ComeAndGo {
    fn perform(&mut self, world: &mut World) -> Check {
        if !self.are_invited || !self.random.chance(1, 25) {
            return Ok(());
        }
        let names = world.models.guests.names();
        let some = (!names.is_empty()).then(|| self.random.pick(&names).clone());
        match (self.random.below(8), some) {
            (0..=1, Some(name)) => self.destroy(world, &name),
            (2..=3, Some(name)) => self.rename(world, &name),
            (4, Some(name)) => self.write(world, &name),
            (_, some) if names.len() < GUESTS_MAX => self.make(world, some),
            _ => Ok(()),
        }
    }
}

impl ComeAndGo {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6E57_5000_0000);
        Self {
            are_invited: random.chance(1, 3),
            random,
            made: 0,
        }
    }

    /// Below the pool, or below another one.
    fn new_name(&mut self, above: Option<String>) -> String {
        self.made += 1;
        let number = self.made;
        match above.filter(|above| above.matches('/').count() == 1 && self.random.chance(1, 3)) {
            Some(above) => format!("{above}/guest{number}"),
            None => format!("{GUEST_PREFIX}{number}"),
        }
    }

    fn make(&mut self, world: &mut World, above: Option<String>) -> Check {
        let name = self.new_name(above);
        let made = world
            .rig
            .engine()?
            .datasets()
            .create(&name, &NewDataset::default());
        world.models.guests.add(&name);
        match self.changed(world, "create", &name, made)? {
            true => self.write(world, &name),
            false => Ok(()),
        }
    }

    fn rename(&mut self, world: &mut World, name: &str) -> Check {
        let to = self.new_name(None);
        let renamed = world.rig.engine()?.datasets().rename(name, &to);
        world.models.guests.rename(name, &to);
        self.changed(world, "rename", name, renamed).map(drop)
    }

    fn destroy(&mut self, world: &mut World, name: &str) -> Check {
        let destroyed = world.rig.engine()?.datasets().destroy(name, true, true, false);
        world.models.guests.remove(name);
        self.changed(world, "destroy", name, destroyed.map(drop))
            .map(drop)
    }

    /// The guests are as the model says, or that failed; whether they are for certain. Then the power may go.
    fn changed(
        &mut self,
        world: &mut World,
        doing: &str,
        name: &str,
        done: Result<(), DatasetError>,
    ) -> Check<bool> {
        trace!(world.rig.trace, "{doing} {name}: {}", done.is_ok());
        match done {
            Ok(()) => {
                world.models.guests.synced();
                if self.random.chance(1, 3) {
                    world.reopen(true, false)?;
                }
                Ok(true)
            }
            Err(error) => {
                world.excuse(&format!("{doing} a dataset"), &error.to_string())?;
                if world.models.guests.is_uncertain() {
                    world.check(&GuestsCounted)?;
                }
                Ok(false)
            }
        }
    }

    /// Another file in the place of the one that it has.
    fn write(&mut self, world: &mut World, name: &str) -> Check {
        let content = Content::choose(&mut self.random, BYTES_MAX);
        let handle = match world.rig.engine()?.datasets().filesystem(name) {
            Ok(handle) => handle,
            Err(error) if world.rig.condition.is_failing() || !world.rig.is_powered() => {
                return world.excuse("opening a dataset", &error.to_string());
            }
            Err(error) => return Err(Violation(format!("{name} does not open: {error}"))),
        };
        world.models.guests.know(name, None);
        let context = Context::root();
        let written = match handle.lookup(&context, ROOT, GUEST_FILE) {
            Ok(_) => handle.unlink(&context, ROOT, GUEST_FILE).map(drop),
            Err(_) => Ok(()),
        };
        let written = written
            .and_then(|()| handle.create(&context, ROOT, GUEST_FILE, FileKind::File, 0o600, 0))
            .and_then(|made| handle.write(&context, made.object, 0, &content.bytes(), false))
            .and_then(|_| handle.sync());
        drop(handle);
        trace!(
            world.rig.trace,
            "{} bytes to {name}: {}",
            content.length,
            written.is_ok()
        );
        match written {
            Ok(()) => {
                world.models.guests.know(name, Some(content));
                Ok(())
            }
            Err(error) => world.after_error("writing to a dataset", &error),
        }
    }
}
