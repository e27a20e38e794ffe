//! Mounts of a pool: made, listed, written down, brought back, taken away.
//!
//! Invariants: a mount is written down before it is made and struck off when it ends by itself, by `unmount` or by
//! `stop`; a daemon that is killed or told to end by a signal leaves the list, so that the next one brings them back.
//! A filesystem is mounted once, besides its past states: the kernel relies on names, sizes and content that it knows
//! of a mount, and would not learn what another changes.

mod bring_back;
mod mount_within;
mod options;
mod remount;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::At;
use terrace_engine::Engine;
use terrace_fuse::{Content, DatasetPast, FuseError, Past, Session, UnmountMode};

pub(super) use self::mount_within::mount_within;
use self::options::{is_read_only, is_remount, understand};
use crate::{
    daemon::support::{Missing, Parameters, failed, identity_of, read_ahead},
    machine::{KnownMount, Places, Registry},
};

struct Mounted {
    known: KnownMount,
    session: Arc<Session>,
}

struct Shared {
    places: Places,
    pool: String,
    mounted: Mutex<Vec<Mounted>>,
    /// What should be mounted and could not be brought back.
    missing: Mutex<Vec<(PathBuf, Missing)>>,
    /// Held while something is mounted, so that no two commands do the same at once; whether the pool is being stopped.
    mounting: Mutex<bool>,
    /// Held while the list for the next start is read, changed and written.
    listing: Mutex<()>,
    /// Set when the daemon ends by a signal: the list stays.
    keep_list: AtomicBool,
}

/// A mount that has ended, and where it was.
type Ended = (Weak<Session>, PathBuf);

/// The mounts of a pool.
pub struct Mounts {
    shared: Arc<Shared>,
    /// To the thread that strikes mounts off which have ended; there since the first mount.
    watcher: Mutex<Option<mpsc::Sender<Ended>>>,
}

/// While this is held nothing is mounted, brought back or struck off: what a name means can change, and the list with it.
pub struct Still<'a> {
    _mounting: MutexGuard<'a, bool>,
}

impl Mounts {
    /// None yet.
    pub fn new(places: Places, pool: &str) -> Self {
        let shared = Shared {
            places,
            pool: pool.into(),
            mounted: Mutex::default(),
            missing: Mutex::default(),
            mounting: Mutex::default(),
            listing: Mutex::default(),
            keep_list: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
            watcher: Mutex::default(),
        }
    }

    fn watcher(&self) -> std::io::Result<mpsc::Sender<Ended>> {
        let mut watcher = self.watcher.lock();
        if let Some(watcher) = &*watcher {
            return Ok(watcher.clone());
        }
        let (sender, ends) = mpsc::channel::<Ended>();
        let shared = self.shared.clone();
        std::thread::Builder::new()
            .name("mount-watch".into())
            .spawn(move || {
                for (session, directory) in ends {
                    if let Some(session) = session.upgrade() {
                        shared.ended(&session, &directory);
                    }
                }
            })?;
        *watcher = Some(sender.clone());
        Ok(sender)
    }

    /// Waits until nobody is mounting or unmounting, and keeps others from it.
    pub fn hold_still(&self) -> Still<'_> {
        Still {
            _mounting: self.shared.mounting.lock(),
        }
    }

    /// What is mounted now, for programs.
    pub fn rows(&self) -> Value {
        let rows = self.list().into_iter().map(|mount| {
            json!({ "dataset": mount.dataset, "directory": mount.directory, "options": mount.options })
        });
        rows.collect()
    }

    /// What is mounted now.
    pub fn list(&self) -> Vec<KnownMount> {
        let mounted = self.shared.mounted.lock();
        // Once for all: the table has a line for each of them.
        let table = terrace_fuse::mounts().ok();
        mounted
            .iter()
            .filter(|mount| mount.session.is_shown_in(table.as_deref()))
            .map(|mount| mount.known.clone())
            .collect()
    }

    /// `mount`.
    pub fn mount(&self, engine: &Arc<Engine>, parameters: &Parameters) -> Result<Value, Failure> {
        let dataset = parameters.text("dataset")?;
        let directory = PathBuf::from(parameters.text("directory")?);
        let options: Vec<String> = parameters.value("options")?;
        if is_remount(&options) {
            return self.remount(engine, &directory, &options);
        }
        let what = format!("mount '{dataset}' at '{}'", directory.display());
        let stopping = self.shared.mounting.lock();
        if *stopping {
            let remedy = format!("run 'terrace start {}' when it has stopped", self.shared.pool);
            return Err(Failure::new(what, "the pool is being stopped", remedy));
        }
        // Words that mean nothing are refused first.
        understand(&what, &dataset, &options, engine.environment().now())?;
        if self.list().iter().any(|mount| mount.directory == directory) {
            return Err(Failure::new(
                what,
                "something of this pool is mounted there already",
                format!("run 'terrace unmount {}' first", directory.display()),
            ));
        }
        let known = KnownMount {
            identity: identity_of(engine.datasets(), &what, &subject_of(&dataset, &options))?,
            covers: others_at(&directory),
            dataset,
            directory,
            options,
        };
        // What is remembered stays so if this fails.
        let mut before = None;
        self.shared.change_list(|list| {
            // One that has just ended there: its end must not be taken for that of the new one.
            self.shared
                .mounted
                .lock()
                .retain(|mount| mount.known.directory != known.directory || !mount.session.is_ended());
            let at = list.iter().position(|mount| mount.directory == known.directory);
            before = at.map(|at| list.remove(at));
            list.push(known.clone());
        })?;
        let outcome = self.make(engine, known.clone());
        match &outcome {
            Ok(_) => self.shared.forget_missing(|place| place == known.directory),
            Err(_) => self.shared.change_list(|list| {
                list.retain(|mount| mount.directory != known.directory);
                list.extend(before.take());
            })?,
        }
        outcome.map(|notes| answer(&known, &notes))
    }

    /// Makes a mount; gives what is to be told of its options.
    fn make(&self, engine: &Arc<Engine>, known: KnownMount) -> Result<Vec<String>, Failure> {
        let what = format!("mount '{}' at '{}'", known.dataset, known.directory.display());
        let datasets = engine.datasets();
        let now = engine.environment().now();
        let understood = understand(&what, &known.dataset, &known.options, now)?;
        let (mut options, mut at) = (understood.options, understood.at);
        let (dataset, snapshot) = match known.dataset.split_once('@') {
            Some((dataset, snapshot)) => (dataset, Some(snapshot)),
            None => (known.dataset.as_str(), None),
        };
        if let Some(snapshot) = snapshot {
            at = Some(At::Snapshot(snapshot.to_owned()));
        }
        let state = datasets.state(dataset).map_err(|error| failed(&what, &error))?;
        if at.is_none() {
            self.cut_off_unseen(dataset);
        }
        if at.is_none()
            && let Some(other) = self
                .list()
                .iter()
                .find(|mount| is_live(mount) && mount.dataset == dataset)
        {
            let place = other.directory.display();
            return Err(Failure::new(
                what,
                format!("it is mounted at '{place}' already"),
                format!(
                    "use it there, show it at a second place with 'mount --bind {place} DIRECTORY', or run 'terrace unmount \
                     {place}' first"
                ),
            ));
        }
        options.extended_attributes = state.settings().extended_attributes;
        let content = match &at {
            Some(at) => {
                options.read_only = true;
                Content::ReadOnly(
                    datasets
                        .view(dataset, at)
                        .map_err(|error| failed(&what, &error))?,
                )
            }
            None => Content::Live(
                datasets
                    .filesystem(dataset)
                    .map_err(|error| failed(&what, &error))?,
            ),
        };
        let past = DatasetPast::new(datasets.clone(), dataset).map_err(|error| failed(&what, &error))?;
        let past: Arc<dyn Past> = Arc::new(past);
        let session = mount_within(
            engine.environment(),
            &known.directory,
            content,
            Some(past),
            options,
        )
        .map_err(|error| mount_failure(&what, &error))?;
        read_ahead::raise(&known.directory);
        if is_writable(&known) {
            show_read_only(&session, state.settings().readonly);
        }
        let session = Arc::new(session);
        let directory = known.directory.clone();
        self.shared.mounted.lock().push(Mounted {
            known,
            session: session.clone(),
        });
        // Notices when somebody else unmounts it.
        let ended = (Arc::downgrade(&session), directory);
        match self.watcher() {
            Ok(watcher) => session.when_ended(move || {
                let _ = watcher.send(ended);
            }),
            Err(error) => tracing::warn!("a mount is not watched: {error}"),
        }
        Ok(understood.notes)
    }

    /// Whoever still has a mount of this filesystem that is out of our sight, by open files or in another mount namespace, loses
    /// it to the next one: what one of two mounts changed the other would not learn.
    fn cut_off_unseen(&self, dataset: &str) {
        for (known, session) in self.sessions(|known| is_live(known) && known.dataset == dataset) {
            if !session.is_shown() && !session.is_ended() {
                let place = known.directory.display();
                tracing::warn!(
                    "what still uses the mount that was at '{place}' is cut off: it is mounted again"
                );
                session.cut_off();
            }
        }
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
        // Nothing that is struck off is being brought back.
        let _mounting = self.shared.mounting.lock();
        let mut found = self.sessions(|known| {
            known.dataset == target
                || directory
                    .as_deref()
                    .is_some_and(|place| known.directory == Path::new(place))
        });
        // What another mount namespace keeps is not here any more.
        found.retain(|(_, session)| session.is_shown());
        // What is remembered and could not be brought back is struck off.
        let missing: Vec<PathBuf> = {
            let missing = self.shared.missing.lock();
            let meant = missing.iter().filter(|(place, missing)| {
                missing.name == target
                    || directory
                        .as_deref()
                        .is_some_and(|given| place == Path::new(given))
            });
            meant.map(|(place, _)| place.clone()).collect()
        };
        if found.is_empty() && missing.is_empty() {
            return Err(Failure::new(
                format!("unmount '{target}'"),
                "nothing of this pool is mounted there",
                "'terrace mount' without arguments lists the mounts",
            ));
        }
        let mut notes = Vec::new();
        for (known, session) in &found {
            notes.extend(self.end_here(&known.directory, session, mode)?);
        }
        if !missing.is_empty() {
            self.shared
                .change_list(|list| list.retain(|mount| !missing.contains(&mount.directory)))?;
            self.shared
                .forget_missing(|place| missing.iter().any(|other| other == place));
        }
        let directories: Vec<_> = found.into_iter().map(|(known, _)| known.directory).collect();
        Ok(json!({ "unmounted": directories, "forgotten": missing, "note": told(&notes) }))
    }

    /// Refuses while a mount is in use. One in which others of ours are mounted is in use by these, and goes after them.
    pub fn refuse_busy(&self) -> Result<(), Failure> {
        let _mounting = self.shared.mounting.lock();
        let sessions = self.sessions(|_| true);
        let holds_another = |directory: &Path| {
            let mut others = sessions.iter().map(|(known, _)| &known.directory);
            others.any(|other| other != directory && other.starts_with(directory))
        };
        let alone = sessions
            .iter()
            .filter(|(known, _)| !holds_another(&known.directory));
        for (known, session) in alone {
            session
                .check_unused()
                .map_err(|error| unmount_failure(&known.directory, &error))?;
        }
        Ok(())
    }

    /// Takes all mounts away and forgets them; nothing can be mounted afterwards. If one is in use all stay.
    pub fn unmount_all(&self, engine: &Arc<Engine>, force: bool) -> Result<(), Failure> {
        let mode = if force {
            UnmountMode::Lazy
        } else {
            UnmountMode::IfUnused
        };
        let mut stopping = self.shared.mounting.lock();
        let mut gone: Vec<KnownMount> = Vec::new();
        for (known, session) in self.sessions(|_| true) {
            if let Err(failure) = self.end(&known.directory, &session, mode) {
                for known in gone.into_iter().rev() {
                    let again = self.shared.change_list(|list| list.push(known.clone()));
                    if let Err(failure) = again.and_then(|()| self.make(engine, known)) {
                        tracing::error!("{failure}");
                    }
                }
                return Err(failure);
            }
            gone.push(known);
        }
        // Also a list that cannot be read.
        self.shared.forget_all()?;
        self.shared.missing.lock().clear();
        *stopping = true;
        Ok(())
    }

    /// The pool is not stopped after all.
    pub fn go_on(&self) {
        *self.shared.mounting.lock() = false;
    }

    /// Refuses to destroy what is mounted, or with `recursive` has something below it that is.
    pub fn refuse_if_mounted(&self, verb: &str, name: &str, recursive: bool) -> Result<(), Failure> {
        let (dataset, snapshot) = match name.split_once('@') {
            Some((dataset, snapshot)) => (dataset, Some(snapshot)),
            None => (name, None),
        };
        for mount in self.list() {
            let (mounted, past) = past_of(&mount.dataset, &mount.options);
            let concerned = mounted == dataset
                || mounted
                    .strip_prefix(dataset)
                    .is_some_and(|rest| recursive && rest.starts_with('/'));
            if concerned && (snapshot.is_none() || snapshot == past) {
                let place = mount.directory.display();
                return Err(Failure::new(
                    format!("{verb} '{name}'"),
                    format!("'{}' is in use: mounted at '{place}'", mount.dataset),
                    format!("run 'terrace unmount {place}' first"),
                ));
            }
        }
        Ok(())
    }

    /// The mount of a filesystem as it is now, if there is one.
    pub fn live_session(&self, dataset: &str) -> Option<Arc<Session>> {
        let found = self.sessions(|known| is_live(known) && known.dataset == dataset);
        found.into_iter().map(|(_, session)| session).next()
    }

    /// Takes all mounts away when the daemon must end; they stay written down.
    pub fn unmount_all_by_force(&self) {
        self.shared.keep_list.store(true, Ordering::SeqCst);
        for (known, session) in self.sessions(|_| true) {
            let clean = session.unmount(UnmountMode::IfUnused);
            if clean.is_err()
                && let Err(error) = session.unmount(UnmountMode::Lazy)
            {
                tracing::warn!("unmount '{}': {error}", known.directory.display());
            }
        }
    }

    /// The property 'readonly' may be another one now.
    pub fn readonly_changed(&self, engine: &Engine) {
        for (known, session) in self.sessions(is_writable) {
            if let Ok(state) = engine.datasets().state(&known.dataset) {
                show_read_only(&session, state.settings().readonly);
            }
        }
    }

    /// Where changes of a filesystem can be made, as far as its properties let them.
    pub fn written_at(&self, dataset: &str) -> Option<PathBuf> {
        let found = self.sessions(|known| is_writable(known) && known.dataset == dataset);
        found.into_iter().map(|(known, _)| known.directory).next()
    }

    /// The last one first: it may be mounted in an earlier one, which is in use as long.
    fn sessions(&self, wanted: impl Fn(&KnownMount) -> bool) -> Vec<(KnownMount, Arc<Session>)> {
        let mounted = self.shared.mounted.lock();
        let found = mounted.iter().rev().filter(|mount| wanted(&mount.known));
        found
            .map(|mount| (mount.known.clone(), mount.session.clone()))
            .collect()
    }

    /// Ends a mount as far as this mount namespace goes; what is to be told of others that go on with it.
    fn end_here(
        &self,
        directory: &Path,
        session: &Arc<Session>,
        mode: UnmountMode,
    ) -> Result<Option<String>, Failure> {
        match session.unmount(mode) {
            Err(FuseError::Namespace { process, .. }) => {
                // It stays in `mounted`, for whoever mounts or stops next.
                self.shared
                    .change_list(|list| list.retain(|mount| mount.directory != directory))?;
                let place = directory.display();
                Ok(Some(format!(
                    "'{place}' is unmounted here; process {process}, in another mount namespace, still has it"
                )))
            }
            ended => {
                ended.map_err(|error| unmount_failure(directory, &error))?;
                self.shared.ended(session, directory);
                Ok(None)
            }
        }
    }

    fn end(&self, directory: &Path, session: &Arc<Session>, mode: UnmountMode) -> Result<(), Failure> {
        session
            .unmount(mode)
            .map_err(|error| unmount_failure(directory, &error))?;
        self.shared.ended(session, directory);
        Ok(())
    }
}

/// What `mount` answers.
fn answer(known: &KnownMount, notes: &[String]) -> Value {
    json!({ "dataset": known.dataset, "directory": known.directory, "options": known.options, "note": told(notes) })
}

fn told(notes: &[String]) -> Option<String> {
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The dataset of a mount, and the snapshot of it that it shows, if it was named so.
fn past_of<'a>(dataset: &'a str, options: &'a [String]) -> (&'a str, Option<&'a str>) {
    match dataset.split_once('@') {
        Some((dataset, snapshot)) => (dataset, Some(snapshot)),
        None => {
            let mut options = options.iter();
            (dataset, options.find_map(|option| option.strip_prefix("at=@")))
        }
    }
}

/// What a mount shows, by name: a dataset, or a snapshot of one.
fn subject_of(dataset: &str, options: &[String]) -> String {
    match past_of(dataset, options) {
        (dataset, Some(snapshot)) => format!("{dataset}@{snapshot}"),
        (dataset, None) => dataset.to_owned(),
    }
}

/// What is mounted at a directory by others than us, in words.
fn others_at(directory: &Path) -> Option<String> {
    let entry = terrace_fuse::mount_at(directory).ok()??;
    Some(format!("{} of type {}", entry.source, entry.kind))
}

/// Where something is mounted below a directory, by whomever; the last one made, which can be unmounted first.
fn mounted_within(directory: &Path) -> Option<PathBuf> {
    let entries = terrace_fuse::mounts().unwrap_or_default().into_iter();
    let mut below = entries.map(|entry| entry.directory);
    below.rfind(|other| other != directory && other.starts_with(directory))
}

/// Whether a mount shows its dataset as it is now.
fn is_live(mount: &KnownMount) -> bool {
    !mount.dataset.contains('@') && !mount.options.iter().any(|option| option.starts_with("at="))
}

/// Whether changes can be made there: only what can never be written is mounted so, as the property may be set otherwise.
fn is_writable(mount: &KnownMount) -> bool {
    is_live(mount) && !is_read_only(&mount.options)
}

/// Tells the kernel of 'readonly'; the filesystem refuses by itself, so where the kernel cannot be told little is lost.
fn show_read_only(session: &Session, read_only: bool) {
    if let Err(error) = session.show_read_only(read_only) {
        tracing::debug!("tell '{}' of 'readonly': {error}", session.directory().display());
    }
}

impl Shared {
    fn forget_missing(&self, is_meant: impl Fn(&Path) -> bool) {
        self.missing.lock().retain(|(place, _)| !is_meant(place));
    }

    /// A mount has ended: whoever notices first strikes it off, unless the daemon ends and it is to come back.
    fn ended(&self, session: &Arc<Session>, directory: &Path) {
        // In one go: once it is out of `mounted`, the directory may be mounted at and written down again.
        let _listing = self.listing.lock();
        let first = {
            let mut mounted = self.mounted.lock();
            let before = mounted.len();
            mounted.retain(|mount| !Arc::ptr_eq(&mount.session, session));
            // What is mounted there by now is another one.
            mounted.len() < before && !mounted.iter().any(|mount| mount.known.directory == directory)
        };
        if first
            && !self.keep_list.load(Ordering::SeqCst)
            && let Err(failure) = self.rewrite_list(|list| list.retain(|mount| mount.directory != directory))
        {
            tracing::warn!("{failure}");
        }
    }

    /// Nothing is to be mounted by the next start.
    fn forget_all(&self) -> Result<(), Failure> {
        let _listing = self.listing.lock();
        Registry::new(&self.places).save_mounts(&self.pool, &[])
    }

    /// Changes the list of mounts that is kept for the next start.
    fn change_list(&self, change: impl FnOnce(&mut Vec<KnownMount>)) -> Result<(), Failure> {
        // Commands and the ends of mounts change it at the same time.
        let _listing = self.listing.lock();
        self.rewrite_list(change)
    }

    /// The same; `listing` is held.
    fn rewrite_list(&self, change: impl FnOnce(&mut Vec<KnownMount>)) -> Result<(), Failure> {
        let registry = Registry::new(&self.places);
        let mut list = registry.mounts(&self.pool)?;
        change(&mut list);
        registry.save_mounts(&self.pool, &list)
    }
}

fn unmount_failure(directory: &Path, error: &FuseError) -> Failure {
    let what = format!("unmount '{}'", directory.display());
    match error {
        FuseError::Busy { .. } => match mounted_within(directory) {
            // No list of processes tells of that.
            Some(inner) => Failure::new(
                what,
                format!("it is in use: '{}' is mounted in it", inner.display()),
                "unmount that first, or add --force",
            ),
            None => Failure::new(
                what,
                "it is in use",
                format!(
                    "close what uses it ('fuser -vm {}' lists it), or add --force",
                    directory.display()
                ),
            ),
        },
        error => failed(&what, error),
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
