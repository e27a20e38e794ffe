//! Mounts of a pool: made, listed, written down, brought back, taken away.
//!
//! Invariants: a mount is written down before it is made and struck off when it ends by itself, by `unmount` or by
//! `stop`; a daemon that is killed or told to end by a signal leaves the list, so that the next one brings them back.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::{At, DatasetState, Datasets, FsError};
use terrace_engine::Engine;
use terrace_fuse::{Content, FuseError, MountOptions, Past, PastView, Session, UnmountMode};

use super::{
    answers::{Parameters, failed},
    read_ahead,
};
use crate::{
    places::Places,
    registry::{KnownMount, Registry},
};

struct Mounted {
    known: KnownMount,
    session: Arc<Session>,
}

struct Shared {
    places: Places,
    pool: String,
    mounted: Mutex<Vec<Mounted>>,
    /// Held while the list for the next start is read, changed and written.
    listing: Mutex<()>,
    /// Set when the daemon ends by a signal: the list stays.
    keep_list: AtomicBool,
}

/// The mounts of a pool.
pub struct Mounts {
    shared: Arc<Shared>,
}

impl Mounts {
    /// None yet.
    pub fn new(places: Places, pool: &str) -> Self {
        let shared = Shared {
            places,
            pool: pool.into(),
            mounted: Mutex::default(),
            listing: Mutex::default(),
            keep_list: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// What is mounted now.
    pub fn list(&self) -> Vec<KnownMount> {
        let mounted = self.shared.mounted.lock();
        mounted
            .iter()
            .filter(|mount| !mount.session.is_ended())
            .map(|mount| mount.known.clone())
            .collect()
    }

    /// Brings back what a dead daemon had mounted.
    pub fn restore(&self, engine: &Arc<Engine>) {
        let known = match Registry::new(&self.shared.places).mounts(&self.shared.pool) {
            Ok(known) => known,
            Err(failure) => {
                tracing::warn!("{failure}");
                return;
            }
        };
        for mount in known {
            let place = mount.directory.display().to_string();
            if let Err(error) = terrace_fuse::clear_stale(&mount.directory) {
                tracing::warn!("clear what is left at '{place}': {error}");
            }
            match self.make(engine, mount) {
                Ok(()) => tracing::info!("mounted again at '{place}'"),
                Err(failure) => {
                    tracing::error!("{failure}");
                    engine.event("mount", &failure.to_string());
                }
            }
        }
    }

    /// `mount`.
    pub fn mount(&self, engine: &Arc<Engine>, parameters: &Parameters) -> Result<Value, Failure> {
        let known = KnownMount {
            dataset: parameters.text("dataset")?,
            directory: PathBuf::from(parameters.text("directory")?),
            options: parameters.value("options")?,
        };
        let what = format!("mount '{}' at '{}'", known.dataset, known.directory.display());
        if self.list().iter().any(|mount| mount.directory == known.directory) {
            return Err(Failure::new(
                what,
                "something of this pool is mounted there already",
                format!("run 'terrace unmount {}' first", known.directory.display()),
            ));
        }
        self.shared.change_list(|list| {
            list.retain(|mount| mount.directory != known.directory);
            list.push(known.clone());
        })?;
        let outcome = self.make(engine, known.clone());
        if outcome.is_err() {
            self.shared.strike_off(&known.directory);
        }
        outcome.map(|()| json!({ "dataset": known.dataset, "directory": known.directory }))
    }

    fn make(&self, engine: &Arc<Engine>, known: KnownMount) -> Result<(), Failure> {
        let what = format!("mount '{}' at '{}'", known.dataset, known.directory.display());
        let datasets = engine.datasets();
        let mut options = MountOptions::of(known.dataset.clone());
        let mut at = None;
        for option in &known.options {
            match option.as_str() {
                "ro" => options.read_only = true,
                "rw" | "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "users" | "user" => {}
                "allow_other" => options.allow_other = Some(true),
                "nosuid" => options.no_set_id = true,
                "nodev" => options.no_devices = true,
                "noexec" => options.no_execute = true,
                "ring=off" => options.ring = false,
                "ring=on" => options.ring = true,
                "noatime" | "relatime" => options.no_access_times = option == "noatime",
                other => match other.strip_prefix("at=") {
                    Some(when) => {
                        let now = engine.environment().now();
                        at = Some(At::parse(when, now).map_err(|why| Failure::new(what.clone(), why, ""))?);
                    }
                    None if other.starts_with("x-") || other.starts_with("comment=") => {}
                    None => {
                        let remedy = "there are ro, at=TIME|@SNAPSHOT|CHECKPOINT, allow_other, nosuid, nodev, noexec, noatime, \
                                      ring=off";
                        return Err(Failure::new(
                            what,
                            format!("there is no mount option '{other}'"),
                            remedy,
                        )
                        .as_usage());
                    }
                },
            }
        }
        let (dataset, snapshot) = match known.dataset.split_once('@') {
            Some((dataset, snapshot)) => (dataset, Some(snapshot)),
            None => (known.dataset.as_str(), None),
        };
        if let Some(snapshot) = snapshot {
            at = Some(At::Snapshot(snapshot.to_owned()));
        }
        let state = datasets.state(dataset).map_err(|error| failed(&what, &error))?;
        let content = match &at {
            Some(at) => {
                options.read_only = true;
                Content::ReadOnly(
                    datasets
                        .view(dataset, at)
                        .map_err(|error| failed(&what, &error))?,
                )
            }
            None => {
                options.read_only |= state.settings().readonly;
                Content::Live(
                    datasets
                        .filesystem(dataset)
                        .map_err(|error| failed(&what, &error))?,
                )
            }
        };
        let past: Arc<dyn Past> = Arc::new(DatasetPast {
            datasets: datasets.clone(),
            state,
        });
        let session = terrace_fuse::mount(&known.directory, content, Some(past), &options)
            .map_err(|error| mount_failure(&what, &error))?;
        read_ahead::raise(&known.directory);
        let session = Arc::new(session);
        let directory = known.directory.clone();
        self.shared.mounted.lock().push(Mounted {
            known,
            session: session.clone(),
        });
        // Notices when somebody else unmounts it.
        let shared = self.shared.clone();
        let watched = std::thread::Builder::new()
            .name("mount-watch".into())
            .spawn(move || {
                session.wait();
                shared
                    .mounted
                    .lock()
                    .retain(|mount| !Arc::ptr_eq(&mount.session, &session));
                if !shared.keep_list.load(Ordering::SeqCst) {
                    shared.strike_off(&directory);
                }
            });
        if let Err(error) = watched {
            tracing::warn!("a mount is not watched: {error}");
        }
        Ok(())
    }

    /// `unmount`: a directory, or all mounts of a dataset.
    pub fn unmount(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let target = parameters.text("target")?;
        let directory = parameters.optional_text("directory")?;
        let mode = if parameters.flag("force")? {
            UnmountMode::Lazy
        } else {
            UnmountMode::IfUnused
        };
        let found = self.sessions(|known| {
            known.dataset == target
                || directory
                    .as_deref()
                    .is_some_and(|place| known.directory == Path::new(place))
        });
        if found.is_empty() {
            return Err(Failure::new(
                format!("unmount '{target}'"),
                "nothing of this pool is mounted there",
                "'terrace mount' without arguments lists the mounts",
            ));
        }
        for (directory, session) in &found {
            self.end(directory, session, mode)?;
        }
        let directories: Vec<_> = found.into_iter().map(|(directory, _)| directory).collect();
        Ok(json!({ "unmounted": directories }))
    }

    /// Takes all mounts away and forgets them.
    pub fn unmount_all(&self, force: bool) -> Result<(), Failure> {
        let mode = if force {
            UnmountMode::Lazy
        } else {
            UnmountMode::IfUnused
        };
        for (directory, session) in self.sessions(|_| true) {
            self.end(&directory, &session, mode)?;
        }
        self.shared.change_list(Vec::clear)
    }

    /// Takes all mounts away when the daemon must end; they stay written down.
    pub fn unmount_all_by_force(&self) {
        self.shared.keep_list.store(true, Ordering::SeqCst);
        for (directory, session) in self.sessions(|_| true) {
            let clean = session.unmount(UnmountMode::IfUnused);
            if clean.is_err()
                && let Err(error) = session.unmount(UnmountMode::Lazy)
            {
                tracing::warn!("unmount '{}': {error}", directory.display());
            }
        }
    }

    /// The dataset of mounts was renamed.
    pub fn renamed(&self, from: &str, to: &str) {
        let change = |mount: &mut KnownMount| {
            if let Some(rest) = mount.dataset.strip_prefix(from)
                && (rest.is_empty() || rest.starts_with(['/', '@']))
            {
                mount.dataset = format!("{to}{rest}");
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
    }

    fn sessions(&self, wanted: impl Fn(&KnownMount) -> bool) -> Vec<(PathBuf, Arc<Session>)> {
        let mounted = self.shared.mounted.lock();
        let found = mounted.iter().filter(|mount| wanted(&mount.known));
        found
            .map(|mount| (mount.known.directory.clone(), mount.session.clone()))
            .collect()
    }

    fn end(&self, directory: &Path, session: &Session, mode: UnmountMode) -> Result<(), Failure> {
        let what = format!("unmount '{}'", directory.display());
        session.unmount(mode).map_err(|error| match error {
            FuseError::Busy { .. } => Failure::new(
                what,
                "it is in use",
                format!(
                    "close what uses it ('fuser -vm {}' lists it), or add --force",
                    directory.display()
                ),
            ),
            error => failed(&what, &error),
        })?;
        self.shared
            .mounted
            .lock()
            .retain(|mount| mount.known.directory != directory);
        self.shared.strike_off(directory);
        Ok(())
    }
}

impl Shared {
    fn strike_off(&self, directory: &Path) {
        if let Err(failure) = self.change_list(|list| list.retain(|mount| mount.directory != directory)) {
            tracing::warn!("{failure}");
        }
    }

    /// Changes the list of mounts that is kept for the next start.
    fn change_list(&self, change: impl FnOnce(&mut Vec<KnownMount>)) -> Result<(), Failure> {
        let registry = Registry::new(&self.places);
        // Commands and the ends of mounts change it at the same time.
        let _listing = self.listing.lock();
        let mut list = registry.mounts(&self.pool)?;
        change(&mut list);
        registry.save_mounts(&self.pool, &list)
    }
}

fn mount_failure(what: &str, error: &FuseError) -> Failure {
    match error {
        FuseError::Directory { cause, .. } => Failure::new(
            what,
            cause,
            "give an existing, empty directory of yours; make it with mkdir",
        ),
        FuseError::Unavailable { .. } => Failure::new(
            what,
            error.to_string().replace(';', ","),
            "'terrace doctor' says more; without FUSE use 'terrace ls', 'cat', 'put' and 'get'",
        ),
        _ => failed(what, error),
    }
}

/// Earlier states of a dataset, by whatever name it has now.
struct DatasetPast {
    datasets: Arc<Datasets>,
    state: Arc<DatasetState>,
}

impl DatasetPast {
    fn view(&self, at: &At) -> Result<PastView, FsError> {
        let name = self.state.name();
        let checkpoint = self.datasets.resolve(&name, at).map_err(|_| FsError::NotFound)?;
        let tree = self
            .datasets
            .view(&name, &At::Checkpoint(checkpoint))
            .map_err(|_| FsError::NotFound)?;
        Ok(PastView { checkpoint, tree })
    }
}

impl Past for DatasetPast {
    fn snapshots(&self) -> Result<Vec<String>, FsError> {
        let held = self.state.held().read();
        Ok(held
            .iter()
            .filter(|(_, record)| !record.name.is_empty())
            .map(|(_, record)| record.name.clone())
            .collect())
    }

    fn snapshot(&self, name: &str) -> Result<PastView, FsError> {
        self.view(&At::Snapshot(name.to_owned()))
    }

    fn at(&self, when: &str) -> Result<PastView, FsError> {
        let now = self.datasets.environment().now();
        self.view(&At::parse(when, now).map_err(|_| FsError::NotFound)?)
    }
}
