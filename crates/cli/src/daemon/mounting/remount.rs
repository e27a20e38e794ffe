//! `mount -o remount`, by us and by mount(8) itself.
//!
//! Invariants: what is written down of a mount are the options that it has; where the kernel was told by others, its table
//! is followed.

use std::{
    os::fd::AsFd,
    path::Path,
    sync::{Arc, Weak, atomic::Ordering},
};

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::Value;
use terrace_control::Failure;
use terrace_dataset::Time;
use terrace_engine::Engine;
use terrace_fuse::Session;

use super::{
    Mounted, Mounts, Shared, answer, is_writable,
    options::{as_shown, is_read_only, remounted, understand},
    show_read_only,
};
use crate::{daemon::support::failed, machine::KnownMount};

impl Mounts {
    /// Changes the options of what is mounted at a directory: those that are `given`.
    pub(super) fn remount(
        &self,
        engine: &Arc<Engine>,
        directory: &Path,
        given: &[String],
    ) -> Result<Value, Failure> {
        let place = directory.display();
        let what = format!("change the mount at '{place}'");
        let _mounting = self.shared.mounting.lock();
        let found = self.sessions(|known| known.directory == directory);
        let Some((known, session)) = found.into_iter().find(|(_, session)| session.is_shown()) else {
            let remedy = "'terrace mount' without arguments lists the mounts";
            return Err(Failure::new(
                what,
                "nothing of this pool is mounted there",
                remedy,
            ));
        };
        let now = engine.environment().now();
        let mut changed = known.clone();
        changed.options = remounted(&known.options, given);
        let before = understand(&what, &known.dataset, &known.options, now)?;
        let mut wanted = understand(&what, &known.dataset, &changed.options, now)?;
        let is_past = known.dataset.contains('@') || before.at.is_some();
        let fixed = match () {
            () if before.at != wanted.at => Some("at"),
            () if before.options.ring != wanted.options.ring => Some("ring"),
            () => None,
        };
        if let Some(option) = fixed {
            let remedy = format!("run 'terrace unmount {place}', and mount it with the options wanted");
            return Err(Failure::new(
                what,
                format!("'{option}' cannot be changed while it is mounted"),
                remedy,
            ));
        }
        if is_past {
            if given.iter().any(|word| word == "rw") && !is_read_only(&changed.options) {
                let remedy = format!(
                    "make a clone of it with 'terrace clone', and mount that; '{place}' stays as it is"
                );
                return Err(Failure::new(what, "a past state can only be read", remedy));
            }
            wanted.options.read_only = true;
        }
        session
            .remount(&before.options, &wanted.options)
            .map_err(|error| failed(&what, &error))?;
        self.shared.note_options(&session, &changed)?;
        if is_writable(&changed)
            && let Ok(state) = engine.datasets().state(&changed.dataset)
        {
            show_read_only(&session, state.settings().readonly);
        }
        let told = understand(&what, &known.dataset, given, now)?.notes;
        Ok(answer(&changed, &told))
    }

    /// Follows the kernel's table of mounts for as long as there are mounts to be followed, on a thread of its own.
    pub fn follow_table(&self) {
        let shared = Arc::downgrade(&self.shared);
        let followed = std::thread::Builder::new()
            .name("mount-table".into())
            .spawn(move || follow(&shared));
        if let Err(error) = followed {
            tracing::warn!("the table of mounts is not followed: {error}");
        }
    }
}

fn follow(shared: &Weak<Shared>) {
    let table = match std::fs::File::open("/proc/self/mountinfo") {
        Ok(table) => table,
        Err(error) => return tracing::warn!("the table of mounts is not followed: {error}"),
    };
    loop {
        let mut waited = [PollFd::from_borrowed_fd(table.as_fd(), PollFlags::PRI)];
        match poll(&mut waited, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return tracing::warn!("the table of mounts is not followed: {error}"),
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        shared.follow_options();
    }
}

impl Shared {
    /// Takes over the options that the kernel was told by others.
    fn follow_options(&self) {
        let stopping = self.mounting.lock();
        if *stopping || self.keep_list.load(Ordering::SeqCst) {
            return;
        }
        let Ok(table) = terrace_fuse::mounts() else { return };
        let mounted: Vec<(KnownMount, Arc<Session>)> = {
            let mounted = self.mounted.lock();
            // Of several at one place the last one counts.
            let is_last = |mount: &&Mounted| {
                let same = mounted
                    .iter()
                    .rfind(|other| other.known.directory == mount.known.directory);
                same.is_some_and(|last| Arc::ptr_eq(&last.session, &mount.session))
            };
            let last = mounted.iter().filter(is_last);
            last.map(|mount| (mount.known.clone(), mount.session.clone()))
                .collect()
        };
        for (mut known, session) in mounted {
            let device = (0, session.connection_number());
            let is_its = |entry: &&terrace_fuse::MountEntry| {
                entry.device == device && entry.directory == known.directory
            };
            let Some(entry) = table.iter().find(is_its) else {
                // Somebody unmounted it, and something out of our sight keeps it: it is not to come back.
                let unlisted =
                    self.change_list(|list| list.retain(|mount| mount.directory != known.directory));
                if let Err(failure) = unlisted {
                    tracing::warn!("{failure}");
                }
                continue;
            };
            let shown = as_shown(&known.options, entry);
            if shown == known.options {
                continue;
            }
            known.options = shown;
            let what = format!("follow the mount at '{}'", known.directory.display());
            // What state it shows cannot change, whatever the time is.
            match understand(&what, &known.dataset, &known.options, Time::default()) {
                Ok(understood) => session.set_modes(&understood.options),
                Err(failure) => tracing::warn!("{failure}"),
            }
            if let Err(failure) = self.note_options(&session, &known) {
                tracing::warn!("{failure}");
            }
        }
    }

    /// A mount has these options from now on, also after the next start.
    fn note_options(&self, session: &Arc<Session>, changed: &KnownMount) -> Result<(), Failure> {
        for mount in self.mounted.lock().iter_mut() {
            if Arc::ptr_eq(&mount.session, session) {
                mount.known.options.clone_from(&changed.options);
            }
        }
        self.change_list(|list| {
            let same = list
                .iter_mut()
                .filter(|mount| mount.directory == changed.directory);
            same.for_each(|mount| mount.options.clone_from(&changed.options));
        })
    }
}
