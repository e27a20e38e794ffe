//! Where this machine keeps what it knows: state (pools, mounts, logs) and sockets.
//!
//! Invariant: everything here can be lost without losing data; names of pools are checked before they become
//! parts of paths.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use terrace_control::Failure;

/// The directories in use.
#[derive(Debug, Clone)]
pub struct Places {
    state: PathBuf,
    run: PathBuf,
}

/// The user and group we run as: whoever runs a pool owns the root directories of its filesystems.
pub fn own_ids() -> (u32, u32) {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    (user.as_raw(), group.as_raw())
}

impl Places {
    /// From `$TERRACE_STATE_DIR`, else by whether the user is root, and the XDG variables. Makes the directories.
    pub fn find() -> Result<Self, Failure> {
        let places = Self::choose(
            env::var_os("TERRACE_STATE_DIR").map(PathBuf::from),
            rustix::process::geteuid().is_root(),
            &|name| {
                env::var_os(name)
                    .map(PathBuf::from)
                    .filter(|path| path.is_absolute())
            },
        )?;
        let shared = places.run.parent().filter(|above| **above == fallback());
        let made = shared.map(|above| (above, make_alone as fn(&Path) -> io::Result<()>));
        let private = [&*places.state, &*places.run].map(|directory| (directory, make_private as _));
        for (directory, make) in made.into_iter().chain(private) {
            make(directory).map_err(|error| {
                Failure::new(
                    format!("make '{}'", directory.display()),
                    error,
                    "run as root, or set TERRACE_STATE_DIR to a directory of yours",
                )
            })?;
        }
        Ok(places)
    }

    /// Below a directory, as if it were told by `$TERRACE_STATE_DIR`.
    #[cfg(test)]
    pub fn below(directory: &Path) -> Self {
        let places = Self {
            run: directory.join("run"),
            state: directory.to_owned(),
        };
        make_private(&places.run).unwrap_or_default();
        places
    }

    fn choose(
        given: Option<PathBuf>,
        root: bool,
        variable: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<Self, Failure> {
        if let Some(given) = given.filter(|path| !path.as_os_str().is_empty()) {
            let state = std::path::absolute(&given).map_err(|error| {
                Failure::new("find TERRACE_STATE_DIR", error, "set it to an absolute path")
            })?;
            return Ok(Self {
                run: state.join("run"),
                state,
            });
        }
        if root {
            return Ok(Self {
                state: "/var/lib/terrace".into(),
                run: "/run/terrace".into(),
            });
        }
        let state = variable("XDG_STATE_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
            .ok_or_else(|| {
                Failure::new(
                    "find the state directory",
                    "HOME is not set",
                    "set HOME or TERRACE_STATE_DIR",
                )
            })?
            .join("terrace");
        let run = variable("XDG_RUNTIME_DIR")
            .unwrap_or_else(fallback)
            .join("terrace");
        Ok(Self { state, run })
    }

    /// What is kept.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// What is known of a pool.
    pub fn pool_file(&self, pool: &str) -> PathBuf {
        self.state.join("pools").join(format!("{pool}.json"))
    }

    /// The directory of all of them.
    pub fn pool_directory(&self) -> PathBuf {
        self.state.join("pools")
    }

    /// The mounts that a pool should have.
    pub fn mounts_file(&self, pool: &str) -> PathBuf {
        self.state.join("mounts").join(format!("{pool}.json"))
    }

    /// The volumes that a pool should have attached and served.
    pub fn blocks_file(&self, pool: &str) -> PathBuf {
        self.state.join("blocks").join(format!("{pool}.json"))
    }

    /// What happened in a pool that did not take it.
    pub fn events_file(&self, pool: &str) -> PathBuf {
        self.state.join("events").join(format!("{pool}.json"))
    }

    /// The last words of the daemon, as long as it runs and if it ends unasked.
    pub fn crash_file(&self, pool: &str) -> PathBuf {
        self.state.join("crash").join(format!("{pool}.report"))
    }

    /// When the daemon aborted of late.
    pub fn aborts_file(&self, pool: &str) -> PathBuf {
        self.state.join("crash").join(format!("{pool}.json"))
    }

    /// Where the files are mounted that are underneath attached volumes.
    pub fn volume_directory(&self, pool: &str) -> PathBuf {
        self.run.join("volumes").join(pool)
    }

    /// Where attached volumes have names that stay: links to their devices.
    pub fn link_directory(&self) -> PathBuf {
        self.run.join("disk")
    }

    /// What the daemon has to say.
    pub fn log_file(&self, pool: &str) -> PathBuf {
        self.state.join("log").join(format!("{pool}.log"))
    }

    /// The daemon's socket.
    pub fn socket(&self, pool: &str) -> PathBuf {
        self.run.join(format!("{pool}.sock"))
    }

    /// Removes what the daemon of a pool left that is no longer known here; one that runs all the same keeps it.
    pub fn forget_daemon(&self, pool: &str) {
        let lock = self.lock_file(pool);
        // Held while it is removed, so that nobody's lock goes.
        if let Ok(Ok(_held)) = terrace_control::RunLock::acquire(&lock) {
            for path in [self.socket(pool), lock] {
                if let Err(error) = fs::remove_file(&path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::warn!(%error, path = %path.display(), "left behind");
                }
            }
        }
    }

    /// The daemon's lock and process id.
    pub fn lock_file(&self, pool: &str) -> PathBuf {
        self.run.join(format!("{pool}.pid"))
    }
}

/// Where there is no runtime directory of this user: a name that everybody knows, in a place where everybody may make it.
fn fallback() -> PathBuf {
    PathBuf::from(format!("/tmp/terrace-{}", rustix::process::geteuid().as_raw()))
}

/// Makes a directory for this user alone where others may have been quicker; refuses whatever they have made.
fn make_alone(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    match found.is_dir() && is_own {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is not a directory that you alone can write",
        )),
    }
}

/// Makes a directory, and those above it, for this user alone; refuses one of somebody else.
pub fn make_private(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let owner = fs::metadata(directory)?.uid();
    let own = rustix::process::geteuid().as_raw();
    if owner != own && own != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it belongs to user {owner}"),
        ));
    }
    Ok(())
}

/// Writes a file so that it is either the old or the new one, whatever happens.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let directory = path
        .parent()
        .ok_or_else(|| io::Error::other("a path without a directory"))?;
    make_private(directory)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Of this call alone: others of this process may be replacing the same file.
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".new{}-{call}", std::process::id()));
    let new = directory.join(name);
    let mut file = fs::File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(directory)?.sync_all()
}

/// Checks a pool's name before it becomes part of a path.
pub fn check_pool_name(name: &str) -> Result<(), Failure> {
    let good = name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if good {
        return Ok(());
    }
    Err(Failure::new(
        format!("pool '{name}'"),
        "this is no name for a pool",
        "use 1 to 64 letters, digits, '-', '_' or '.', starting with a letter",
    )
    .as_usage())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_places_follow_variables_and_user() {
        let none = |_: &str| None;
        let places = Places::choose(Some("/x/y".into()), true, &none).unwrap();
        assert_eq!(places.socket("tank"), Path::new("/x/y/run/tank.sock"));
        let places = Places::choose(None, true, &none).unwrap();
        assert_eq!(
            places.pool_file("tank"),
            Path::new("/var/lib/terrace/pools/tank.json")
        );
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/home/u"));
        let places = Places::choose(None, false, &home).unwrap();
        assert_eq!(places.state(), Path::new("/home/u/.local/state/terrace"));
        let runtime = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("/run/user/7"));
        assert!(Places::choose(None, false, &runtime).is_err());
    }

    #[test]
    fn what_others_made_where_all_may_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        make_alone(&at("own")).unwrap();
        make_alone(&at("own")).unwrap();
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(at("own"), at("link")).unwrap();
        fs::write(at("file"), b"").unwrap();
        for name in ["open", "link", "file"] {
            let error = make_alone(&at(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}");
        }
    }

    #[test]
    fn one_file_is_replaced_by_several_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let path = &path;
                scope.spawn(move || {
                    for length in 1..100 {
                        replace_file(path, &vec![writer; length * 100]).unwrap();
                        let found = fs::read(path).unwrap();
                        assert!(!found.is_empty() && found.iter().all(|byte| *byte == found[0]));
                    }
                });
            }
        });
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "nothing is left"
        );
    }

    #[test]
    fn names_cannot_leave_the_directory() {
        for bad in ["", "..", "a/b", "-x", "a b", "1a", &"a".repeat(65)] {
            assert!(check_pool_name(bad).is_err(), "{bad}");
        }
        assert!(check_pool_name("tank-1.x_y").is_ok());
    }
}
