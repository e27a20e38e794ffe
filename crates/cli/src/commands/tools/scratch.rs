//! `Scratch`: a machine of its own for a command that shows or measures something: a directory with a state directory,
//! devices and a mount in it.
//!
//! Invariants: what is run there are the commands that a user types; daemon, mount and files are gone when it is
//! dropped, also after a failure or Ctrl-C; nothing is ever removed through a mount that is still there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use terrace_control::{Failure, RunLock};
use terrace_device::format_size;

/// See the module.
pub struct Scratch {
    place: Place,
}

/// Where it is; may outlive it, to no use.
#[derive(Clone)]
pub struct Place {
    directory: PathBuf,
    program: PathBuf,
    pool: &'static str,
}

impl Scratch {
    /// Makes the directory in `above` (a temporary one if `None`), where `needed_bytes` must be free. `pool` is the pool
    /// that will be in it, and names the directory.
    pub fn make(above: Option<&Path>, pool: &'static str, needed_bytes: u64) -> Result<Self, Failure> {
        let what = || format!("make a place for '{pool}'");
        let failed = |error: &dyn std::fmt::Display| Failure::new(what(), error, "give another directory");
        let above = above.map_or_else(std::env::temp_dir, Path::to_path_buf);
        fs::create_dir_all(&above).map_err(|error| failed(&error))?;
        let above = fs::canonicalize(&above).map_err(|error| failed(&error))?;
        let free = rustix::fs::statvfs(&above).map_or(0, |found| found.f_bavail * found.f_frsize);
        if free < needed_bytes {
            return Err(Failure::new(
                what(),
                format!(
                    "'{}' has {} free, and {} are needed",
                    above.display(),
                    format_size(free),
                    format_size(needed_bytes)
                ),
                "give another directory, or less data with --size",
            ));
        }
        let directory = above.join(format!("terrace-{pool}-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| failed(&error))?;
        let place = Place {
            program: std::env::current_exe().map_err(|error| failed(&error))?,
            directory,
            pool,
        };
        let scratch = Self { place };
        scratch.clean_up_on_signal();
        Ok(scratch)
    }

    /// Where everything of it lies.
    pub fn directory(&self) -> &Path {
        &self.place.directory
    }

    /// Where it is, for a thread of its own.
    pub fn place(&self) -> Place {
        self.place.clone()
    }

    /// A command there.
    pub fn command(&self, words: &[&str]) -> Command {
        self.place.command(words)
    }

    /// Runs a command, which must succeed, and returns what it printed.
    pub fn run(&self, words: &[&str]) -> Result<String, Failure> {
        let what = || format!("run 'terrace {}'", words.join(" "));
        let output = self
            .command(words)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Failure::new(what(), error, ""))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("terrace: ");
        Err(Failure::new(what(), said, ""))
    }

    fn clean_up_on_signal(&self) {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) else {
            return;
        };
        let place = self.place();
        let _ = std::thread::Builder::new()
            .name("scratch-signals".into())
            .spawn(move || {
                if signals.forever().next().is_some() {
                    place.clean_up();
                    std::process::exit(130);
                }
            });
    }
}

impl Place {
    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A command there.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(words)
            .env("TERRACE_STATE_DIR", self.directory.join("state"))
            .current_dir(&self.directory);
        command
    }

    /// Ends daemon and mount, removes the files.
    fn clean_up(&self) {
        let Self {
            directory,
            program,
            pool,
        } = self;
        if !directory.exists() {
            return;
        }
        let state = directory.join("state");
        let stop = Command::new(program)
            .args(["stop", pool, "--force"])
            .env("TERRACE_STATE_DIR", &state)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !stop.is_ok_and(|status| status.success())
            && let Some(holder) = RunLock::holder(&state.join(format!("run/{pool}.pid")))
            && let Some(pid) = i32::try_from(holder.pid)
                .ok()
                .and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        // Never through a mount that is still there.
        let mounts = terrace_fuse::mounts().unwrap_or_default();
        let inside = mounts
            .iter()
            .filter(|mount| mount.directory.starts_with(directory));
        let left = inside
            .filter(|mount| terrace_fuse::clear_stale(&mount.directory).is_err())
            .count();
        let still = terrace_fuse::mounts()
            .unwrap_or_default()
            .iter()
            .any(|mount| mount.directory.starts_with(directory));
        if left > 0 || still {
            eprintln!(
                "terrace: '{}' is still mounted; unmount it and remove the directory",
                directory.display()
            );
        } else if let Err(error) = fs::remove_dir_all(directory) {
            eprintln!(
                "terrace: remove '{}': {error}; remove it by hand",
                directory.display()
            );
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.place.clean_up();
    }
}
