//! Guests: datasets that are made, get another name and go again while the run goes on, in some of the runs.
//!
//! What must hold: making, naming and destroying are durable when they return, so that the power may go at once; what
//! failed on the way happened wholly or not at all; a file that was flushed is there with its content; nothing that was
//! destroyed comes back.

use std::collections::BTreeMap;

use terrace_dataset::{Context, DatasetError, FileKind, NewDataset, ROOT, Tree};

use crate::{
    ensure,
    fs::level::Run,
    hardware::Random,
    models::{Content, History},
    trace,
    violation::{Check, Violation},
};

/// Every guest has a name that begins so.
const PREFIX: &str = "pool/guest";
/// Guests that a pool of a run has at most.
const GUESTS_MAX: usize = 4;
const FILE: &[u8] = b"file";
const BYTES_MAX: u64 = 60_000;

/// The guests by full name, with what is in the file of each; `None`: that is not known.
type Names = BTreeMap<String, Option<Content>>;

/// The guests of a run.
pub(crate) struct Guests {
    /// Chance of their own, so that they do not change what else a seed does.
    random: Random,
    are_invited: bool,
    made: u64,
    history: History<Names>,
}

impl Guests {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6E57_5000_0000);
        Self {
            are_invited: random.chance(1, 3),
            random,
            made: 0,
            history: History::new(Names::new()),
        }
    }
}

impl Run {
    /// Now and then one comes, changes its name or goes.
    pub(crate) fn guests_come_and_go(&mut self) -> Check {
        if !self.guests.are_invited || !self.guests.random.chance(1, 25) {
            return Ok(());
        }
        let names: Vec<String> = self.guests.history.newest().keys().cloned().collect();
        let some = (!names.is_empty()).then(|| self.guests.random.pick(&names).clone());
        match (self.guests.random.below(8), some) {
            (0..=1, Some(name)) => self.destroy_guest(&name),
            (2..=3, Some(name)) => self.rename_guest(&name),
            (4, Some(name)) => self.write_to_guest(&name),
            (_, some) if names.len() < GUESTS_MAX => self.make_guest(some),
            _ => Ok(()),
        }
    }

    /// Below the pool, or below another one.
    fn new_name(&mut self, above: Option<String>) -> String {
        self.guests.made += 1;
        let number = self.guests.made;
        match above.filter(|above| above.matches('/').count() == 1 && self.guests.random.chance(1, 3)) {
            Some(above) => format!("{above}/guest{number}"),
            None => format!("{PREFIX}{number}"),
        }
    }

    fn make_guest(&mut self, above: Option<String>) -> Check {
        let name = self.new_name(above);
        let made = self.engine()?.datasets().create(&name, &NewDataset::default());
        let mut names = self.guests.history.newest().clone();
        names.insert(name.clone(), None);
        let certain = self.changed("create", &name, names, made)?;
        match certain {
            true => self.write_to_guest(&name),
            false => Ok(()),
        }
    }

    fn rename_guest(&mut self, name: &str) -> Check {
        let to = self.new_name(None);
        let renamed = self.engine()?.datasets().rename(name, &to);
        let moved = |other: &String| match other.strip_prefix(name) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => other.clone(),
        };
        let names = self.guests.history.newest().iter();
        let names = names.map(|(other, content)| (moved(other), *content)).collect();
        self.changed("rename", name, names, renamed).map(drop)
    }

    fn destroy_guest(&mut self, name: &str) -> Check {
        let destroyed = self.engine()?.datasets().destroy(name, true, true, false);
        let mut names = self.guests.history.newest().clone();
        let below = format!("{name}/");
        names.retain(|other, _| other != name && !other.starts_with(&below));
        self.changed("destroy", name, names, destroyed.map(drop))
            .map(drop)
    }

    /// The guests are these now, or that failed; whether they are for certain. Then the power may go.
    fn changed(
        &mut self,
        doing: &str,
        name: &str,
        names: Names,
        done: Result<(), DatasetError>,
    ) -> Check<bool> {
        trace!(self.trace, "{doing} {name}: {}", done.is_ok());
        self.guests.history.push(names);
        match done {
            Ok(()) => {
                self.guests.history.synced();
                if self.guests.random.chance(1, 3) {
                    self.reopen(true, false)?;
                }
                Ok(true)
            }
            Err(error) => {
                self.excuse(&format!("{doing} a dataset"), &error.to_string())?;
                if self.guests.history.uncertain() > 0 {
                    self.count_guests()?;
                }
                Ok(false)
            }
        }
    }

    /// Another file in the place of the one that it has.
    fn write_to_guest(&mut self, name: &str) -> Check {
        let content = Content::choose(&mut self.guests.random, BYTES_MAX);
        let fail = |error: DatasetError| Violation(format!("{name} does not open: {error}"));
        let handle = match self.engine()?.datasets().filesystem(name) {
            Ok(handle) => handle,
            Err(error) if self.storm || self.hurt || !self.rig.machine.is_powered() => {
                return self.excuse("opening a dataset", &error.to_string());
            }
            Err(error) => return Err(fail(error)),
        };
        self.know_guest(name, None);
        let context = Context::root();
        let written = match handle.lookup(&context, ROOT, FILE) {
            Ok(_) => handle.unlink(&context, ROOT, FILE).map(drop),
            Err(_) => Ok(()),
        };
        let written = written
            .and_then(|()| handle.create(&context, ROOT, FILE, FileKind::File, 0o600, 0))
            .and_then(|made| handle.write(&context, made.object, 0, &content.bytes(), false))
            .and_then(|_| handle.sync());
        drop(handle);
        trace!(
            self.trace,
            "{} bytes to {name}: {}",
            content.length,
            written.is_ok()
        );
        match written {
            Ok(()) => {
                self.know_guest(name, Some(content));
                Ok(())
            }
            Err(error) => self.after_error("writing to a dataset", &error),
        }
    }

    fn know_guest(&mut self, name: &str, content: Option<Content>) {
        self.guests.history.amend(|names| {
            if let Some(known) = names.get_mut(name) {
                *known = content;
            }
        });
    }

    /// Those that are there are those that must be.
    fn count_guests(&mut self) -> Check {
        let engine = self.engine()?;
        let list = engine.datasets().list(None);
        let list = list.map_err(|error| Violation(format!("datasets cannot be listed: {error}")))?;
        let there: Vec<String> = list.into_iter().map(|one| one.name).collect();
        let there: Vec<&String> = there.iter().filter(|name| name.starts_with(PREFIX)).collect();
        self.guests
            .history
            .recovered(
                |names| names.keys().eq(there.iter().copied()),
                |names| format!("{:?} are there, not {:?}", there, names.keys()),
            )
            .map_err(|violation| Violation(format!("datasets: {violation}")))?;
        self.guests.history.synced();
        Ok(())
    }

    /// After an opening: the same, and each has its file.
    pub(crate) fn check_guests(&mut self) -> Check {
        self.count_guests()?;
        let (engine, context) = (self.engine()?, Context::root());
        for (name, content) in self.guests.history.newest() {
            let Some(content) = content else { continue };
            let fail = |words: &dyn std::fmt::Display| Violation(format!("{name}: {words}"));
            let handle = engine.datasets().filesystem(name);
            let handle = handle.map_err(|error| fail(&error))?;
            let file = handle
                .lookup(&context, ROOT, FILE)
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

    /// At the end all go.
    pub(crate) fn dismiss_guests(&mut self) -> Check {
        let engine = self.engine()?;
        for name in self.guests.history.newest().keys() {
            let gone = engine.datasets().destroy(name, true, true, false);
            let gone = gone.or_else(|error| match error {
                // With the one above it.
                DatasetError::NotFound(_) => Ok(Default::default()),
                other => Err(other),
            });
            gone.map_err(|error| Violation(format!("{name} cannot be destroyed: {error}")))?;
        }
        self.guests.history = History::new(Names::new());
        Ok(())
    }
}
