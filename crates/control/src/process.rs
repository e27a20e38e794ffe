//! Who holds a pool: a lock file that dies with its process, and the process id in it.
//!
//! Invariants: the lock (flock) is what excludes, the process id only informs; a process id is believed only if the
//! process that has it started at the recorded time, so that a reused number is never taken for the daemon.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// A process, told from later ones with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started, clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl ProcessId {
    /// This process.
    pub fn own() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            start_ticks: start_ticks(pid).unwrap_or(0),
        }
    }

    /// Whether it still runs (a zombie does not).
    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }
}

fn start_ticks(pid: u32) -> Option<u64> {
    let mut stat = String::new();
    File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .take(4096)
        .read_to_string(&mut stat)
        .ok()?;
    // The name (field 2) may hold anything, also spaces and brackets: fields are counted from its last bracket.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The held lock of a pool's daemon.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    path: PathBuf,
}

impl RunLock {
    /// Takes the lock file, or tells who has it.
    ///
    /// # Errors
    /// An I/O error if the file cannot be made.
    pub fn acquire(path: &Path) -> io::Result<Result<Self, Option<ProcessId>>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(Err(read_process(path)));
        }
        let mut lock = Self {
            file,
            path: path.to_owned(),
        };
        lock.file.set_len(0)?;
        lock.file.rewind()?;
        let text = serde_json::to_vec(&ProcessId::own()).map_err(io::Error::other)?;
        lock.file.write_all(&text)?;
        Ok(Ok(lock))
    }

    /// Who holds the lock, if anybody does.
    pub fn holder(path: &Path) -> Option<ProcessId> {
        let file = File::open(path).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => None,
            Err(_) => read_process(path).filter(ProcessId::is_alive),
        }
    }

    /// Whether anybody holds the lock: also a process that was killed and whose threads have not all ended.
    pub fn is_held(path: &Path) -> bool {
        File::open(path).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn read_process(path: &Path) -> Option<ProcessId> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(4096).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_alive_and_an_impostor_is_not() {
        let own = ProcessId::own();
        assert!(own.is_alive());
        assert!(
            !ProcessId {
                start_ticks: own.start_ticks + 1,
                ..own
            }
            .is_alive()
        );
        assert!(
            !ProcessId {
                pid: u32::MAX,
                start_ticks: 1
            }
            .is_alive()
        );
    }

    #[test]
    fn one_holder_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool.lock");
        assert_eq!(RunLock::holder(&path), None);
        let lock = RunLock::acquire(&path).unwrap().unwrap();
        assert_eq!(RunLock::holder(&path), Some(ProcessId::own()));
        assert!(RunLock::is_held(&path));
        assert_eq!(
            RunLock::acquire(&path).unwrap().unwrap_err(),
            Some(ProcessId::own())
        );
        drop(lock);
        assert_eq!(RunLock::holder(&path), None);
        assert!(!RunLock::is_held(&path));
        RunLock::acquire(&path).unwrap().unwrap();
    }

    #[test]
    fn a_garbled_lock_file_names_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool.lock");
        let _lock = RunLock::acquire(&path).unwrap().unwrap();
        std::fs::write(&path, b"\xff{{{{").unwrap();
        assert_eq!(RunLock::holder(&path), None);
    }
}
