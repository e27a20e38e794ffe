//! Guests: those that are there are those that must be, and each has its file.

use terrace_dataset::{Context, ROOT, Tree};

use super::invariant::{Compared, Invariant};
use crate::{
    ensure,
    fs::{
        models::{GUEST_PREFIX, Models},
        rig::Rig,
    },
    violation::Violation,
};

/// The file that each guest has.
pub(crate) const GUEST_FILE: &[u8] = b"file";

/// Those that are there are those that must be.
pub(crate) struct GuestsCounted;

impl Invariant for GuestsCounted {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let list = rig.engine()?.datasets().list(None);
        let list = list.map_err(|error| Violation(format!("datasets cannot be listed: {error}")))?;
        let there: Vec<String> = list.into_iter().map(|one| one.name).collect();
        let there: Vec<&String> = there
            .iter()
            .filter(|name| name.starts_with(GUEST_PREFIX))
            .collect();
        models.guests.found(&there)?;
        Ok(())
    }
}

/// After an opening: the same, and each has its file.
pub(crate) struct GuestsFound;

impl Invariant for GuestsFound {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        GuestsCounted.check(rig, models)?;
        let (engine, context) = (rig.engine()?, Context::root());
        for (name, content) in models.guests.newest() {
            let Some(content) = content else { continue };
            let fail = |words: &dyn std::fmt::Display| Violation(format!("{name}: {words}"));
            let handle = engine.datasets().filesystem(name);
            let handle = handle.map_err(|error| fail(&error))?;
            let file = handle
                .lookup(&context, ROOT, GUEST_FILE)
                .map_err(|error| fail(&error))?;
            let mut buffer = vec![0; content.length as usize + 1];
            let read = handle.read(file.object, 0, &mut buffer);
            let read = read.map_err(|error| fail(&error))?;
            ensure!(
                buffer[..read] == content.bytes(),
                "{name}: its file has other content than was flushed"
            );
        }
        Ok(())
    }
}
