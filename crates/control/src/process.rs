//! Who holds a pool: a lock file that dies with its process, and the process id in it.
//!
//! Invariants: the lock (flock) is what excludes, the process id only informs; a process id is believed only if the
//! process that has it started at the recorded time, so that a reused number is never taken for the daemon; whoever lets go
//! of the lock empties the file, which itself stays: one that is taken away could be locked by somebody who had it open.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
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

    /// Whether it was stopped, by SIGSTOP or by a debugger: it does nothing until it is told to go on.
    pub fn is_stopped(&self) -> bool {
        self.is_alive() && state_of(self.pid).is_some_and(|state| matches!(state, 'T' | 't'))
    }

    /// Ends it at once, as `kill -9` does; nobody else who has its number by now.
    ///
    /// # Errors
    /// If it may not be.
    pub fn kill(&self) -> io::Result<()> {
        let number = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let Some(number) = number.filter(|_| self.is_alive()) else {
            return Ok(());
        };
        // The number cannot be given anew while this is open.
        let process = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())?;
        if !self.is_alive() {
            return Ok(());
        }
        Ok(rustix::process::pidfd_send_signal(
            process,
            rustix::process::Signal::KILL,
        )?)
    }
}

/// The letter of a process's state.
fn state_of(pid: u32) -> Option<char> {
    let stat = read_stat(pid)?;
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}

fn start_ticks(pid: u32) -> Option<u64> {
    let stat = read_stat(pid)?;
    // The name (field 2) may hold anything, also spaces and brackets: fields are counted from its last bracket.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn read_stat(pid: u32) -> Option<String> {
    let mut stat = String::new();
    File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .take(4096)
        .read_to_string(&mut stat)
        .ok()?;
    Some(stat)
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
        let file = open(path).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => None,
            Err(_) => read_process(path).filter(ProcessId::is_alive),
        }
    }

    /// Whether anybody holds the lock: also a process that was killed and whose threads have not all ended.
    pub fn is_held(path: &Path) -> bool {
        open(path).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// A process that holds the lock and is not the one whose number is in the file: no daemon, which writes that at once.
    /// Asked for after a while of waiting, in which a daemon that has just begun has done so.
    pub fn stranger(path: &Path) -> Option<u32> {
        let file = fs::metadata(path).ok()?;
        let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
        let place = format!("{major:02x}:{minor:02x}:{}", file.ino());
        let locks = fs::read_to_string("/proc/locks").ok()?;
        // "1: FLOCK  ADVISORY  WRITE 4711 fd:00:1234 0 EOF"
        let holder = locks.lines().find_map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words[..] {
                [_, "FLOCK", _, "WRITE", pid, at, ..] if at == place => pid.parse().ok(),
                _ => None,
            }
        })?;
        let is_known = read_process(path).is_some_and(|known| known.pid == holder && known.is_alive());
        (!is_known && start_ticks(holder).is_some()).then_some(holder)
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Still locked, so that it is nobody else's number that goes. One that stays is nobody's, as after a kill.
        let _ = self.file.set_len(0);
    }
}

/// Opens it for reading; does not wait if it is a pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

fn read_process(path: &Path) -> Option<ProcessId> {
    let mut text = Vec::new();
    open(path).ok()?.take(4096).read_to_end(&mut text).ok()?;
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
        // Nobody's number is left, and the file is: somebody may be about to lock it.
        assert_eq!(fs::read(&path).unwrap(), b"");
        RunLock::acquire(&path).unwrap().unwrap();
    }

    #[test]
    fn a_holder_that_is_no_daemon_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool.lock");
        let lock = RunLock::acquire(&path).unwrap().unwrap();
        assert_eq!(RunLock::stranger(&path), None);
        let daemon = fs::read(&path).unwrap();
        drop(lock);
        assert_eq!(RunLock::stranger(&path), None);
        // Somebody takes the lock and leaves the number of a daemon that has ended.
        let other = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        fs::write(&path, r#"{"pid":1,"start_ticks":0}"#).unwrap();
        assert_eq!(RunLock::stranger(&path), Some(std::process::id()));
        fs::write(&path, daemon).unwrap();
        assert_eq!(RunLock::stranger(&path), None);
        // The number of a daemon that has ended, and that the process which has the lock got after it.
        let reused = ProcessId {
            start_ticks: 1,
            ..ProcessId::own()
        };
        fs::write(&path, serde_json::to_vec(&reused).unwrap()).unwrap();
        assert_eq!(RunLock::stranger(&path), Some(std::process::id()));
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
