//! What is written down of mounts: brought back, and kept true as names change.
//!
//! Invariants: names change while mounts are held still, so that nothing is mounted or brought back by a name that means something
//! else a moment later; what could not be brought back stays written down and is told; nothing comes back under a name that means
//! another dataset by now, nor on top of what others have mounted there meanwhile.

use std::{path::PathBuf, sync::Arc};

use terrace_control::Failure;
use terrace_engine::Engine;

use super::{Mounts, Still, options, others_at, past_of, subject_of};
use crate::{
    daemon::support::{Missing, Use, check_identity, renamed},
    machine::{KnownMount, Registry},
};

impl Mounts {
    /// What should be mounted and could not be brought back.
    pub fn missing(&self) -> Vec<Missing> {
        let missing = self.shared.missing.lock();
        missing.iter().map(|(_, missing)| missing.clone()).collect()
    }

    /// Brings back what should be mounted and is not: what a dead daemon had, what could not be brought back before.
    pub fn restore(&self, engine: &Arc<Engine>) {
        let stopping = self.shared.mounting.lock();
        if *stopping {
            return;
        }
        let pool = &self.shared.pool;
        // Somebody unmounted these, and nobody has struck them off yet: they are not to come back.
        for (known, session) in self.sessions(|_| true) {
            if session.is_ended() {
                self.shared.ended(&session, &known.directory);
            } else if !self.list().iter().any(|other| other.directory == known.directory) {
                // Kept by something out of our sight.
                let unlist =
                    |list: &mut Vec<KnownMount>| list.retain(|mount| mount.directory != known.directory);
                if let Err(failure) = self.shared.change_list(unlist) {
                    tracing::warn!("{failure}");
                }
            }
        }
        let known = match Registry::new(&self.shared.places).mounts(pool) {
            Ok(known) => known,
            Err(failure) => {
                tracing::warn!("{failure}");
                let missing = Missing::list(pool, "mounted", failure);
                *self.shared.missing.lock() = vec![(PathBuf::new(), missing)];
                return;
            }
        };
        let mut missing = Vec::new();
        for mount in known {
            if self.list().iter().any(|other| other.directory == mount.directory) {
                continue;
            }
            let (directory, name) = (mount.directory.clone(), mount.dataset.clone());
            let place = directory.display().to_string();
            match self.bring_back(engine, mount) {
                Ok(()) => tracing::info!("mounted again at '{place}'"),
                Err(failure) => {
                    let one = Missing::new(Use::Mount, &name, place, failure);
                    let said = one.failure(pool).to_string();
                    tracing::error!("{said}");
                    engine.event("mount", &said);
                    missing.push((directory, one));
                }
            }
        }
        *self.shared.missing.lock() = missing;
    }

    /// One that was mounted. What others have mounted there meanwhile is not covered.
    fn bring_back(&self, engine: &Arc<Engine>, mut mount: KnownMount) -> Result<(), Failure> {
        let place = mount.directory.display().to_string();
        let what = format!("mount '{}' again at '{place}'", mount.dataset);
        // Its options may have been changed while nobody served it.
        if let Some(left) = terrace_fuse::mount_at(&mount.directory).ok().flatten()
            && left.kind == terrace_fuse::MOUNT_KIND
            && left.source == mount.dataset
        {
            mount.options = options::as_shown(&mount.options, &left);
        }
        if let Err(error) = terrace_fuse::clear_stale(&mount.directory) {
            tracing::warn!("clear what is left at '{place}': {error}");
        }
        let subject = subject_of(&mount.dataset, &mount.options);
        check_identity(engine.datasets(), &what, &subject, mount.identity)?;
        if let Some(there) = others_at(&mount.directory)
            && mount.covers.as_ref() != Some(&there)
        {
            return Err(Failure::new(
                what,
                format!("another filesystem is mounted there ({there})"),
                format!("take it away with 'umount {place}'"),
            ));
        }
        self.make(engine, mount).map(drop)
    }

    /// The dataset of mounts was renamed, while they were held still.
    pub fn renamed(&self, _still: &Still<'_>, from: &str, to: &str) {
        let change = |mount: &mut KnownMount| {
            if let Some(name) = renamed(&mount.dataset, from, to) {
                mount.dataset = name;
            } else if let (Some((dataset, old)), Some((_, new))) = (from.split_once('@'), to.split_once('@'))
                && mount.dataset == dataset
            {
                let option = format!("at=@{old}");
                let named = mount.options.iter_mut().filter(|other| **other == option);
                named.for_each(|option| *option = format!("at=@{new}"));
            }
        };
        self.shared
            .mounted
            .lock()
            .iter_mut()
            .for_each(|mount| change(&mut mount.known));
        if let Err(failure) = self.shared.change_list(|list| list.iter_mut().for_each(change)) {
            tracing::warn!("{failure}");
        }
        for (_, missing) in self.shared.missing.lock().iter_mut() {
            if let Some(name) = renamed(&missing.name, from, to) {
                missing.name = name;
            }
        }
    }

    /// Datasets and snapshots are gone, while mounts were held still; none of them is mounted. What should have been is not
    /// remembered any more.
    pub fn destroyed(&self, _still: &Still<'_>, datasets: &[String], snapshots: &[String]) {
        let is_gone = |mount: &KnownMount| {
            let (dataset, _) = past_of(&mount.dataset, &mount.options);
            datasets.iter().any(|gone| gone == dataset)
                || snapshots.contains(&subject_of(&mount.dataset, &mount.options))
        };
        let mut gone = Vec::new();
        let changed = self.shared.change_list(|list| {
            gone = list.iter().filter(|mount| is_gone(mount)).cloned().collect();
            list.retain(|mount| !is_gone(mount));
        });
        if let Err(failure) = changed {
            tracing::warn!("{failure}");
        }
        self.shared
            .forget_missing(|place| gone.iter().any(|mount| mount.directory == place));
    }
}
