//! Starting the daemon from a command: the same binary in a process group of its own, that tells when it is ready.
//!
//! Invariants: the command returns only when the daemon serves, or with the daemon's own words why it does not; what a
//! terminal sends to the command, or when it goes away, does not reach the daemon.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use terrace_control::{Failure, ProcessId, RunLock};

use crate::{crash::Crashes, machine::Places};

/// The one line that a daemon writes to its standard output when it serves, or cannot.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Readiness {
    /// It serves, as this process.
    Ready(u32),
    /// It does not.
    Failed(Failure),
}

/// Longest line that a starting daemon may write, bytes.
const READINESS_BYTES_MAX: u64 = 64 << 10;
/// How long a daemon may take to stop, or to be made by another command.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a pool is opened in spite of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Accepted {
    /// Devices are missing.
    pub degraded: bool,
    /// The log cannot be read to its end: what came there is given up.
    pub rewind: bool,
}

impl Accepted {
    /// As the options of a command say it.
    pub fn of(degraded: bool, rewind: bool) -> Self {
        Self {
            degraded: degraded || rewind,
            rewind,
        }
    }
}

/// Starts the daemon and waits until it serves.
pub fn start_daemon(places: &Places, pool: &str, accepted: Accepted) -> Result<u32, Failure> {
    let what = format!("start pool '{pool}'");
    let fail = |why: &dyn std::fmt::Display, remedy: &str| Failure::new(what.clone(), why, remedy);
    let log_path = places.log_file(pool);
    let log = log_path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| {
            fs::OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&log_path)
        })
        .map_err(|error| {
            fail(
                &format!("its log '{}': {error}", log_path.display()),
                "make room, or fix its owner",
            )
        })?;
    let program = std::env::current_exe().map_err(|error| fail(&error, "run terrace by its full path"))?;
    let mut command = Command::new(program);
    command
        // The program may be a copy called mount.terrace, which would take these words for a mount.
        .arg0("terrace")
        .args(["start", pool, "--foreground"])
        .args(accepted.degraded.then_some("--degraded"))
        // Who accepted that was asked.
        .args(
            accepted
                .rewind
                .then_some(["--rewind", "--yes"])
                .into_iter()
                .flatten(),
        )
        .env("TERRACE_READY", "1")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    // SAFETY: between fork and exec only setpgid, signal, fork and _exit are called, which are async-signal-safe; the
    // closure touches no memory of the parent. The second fork makes the daemon a child of init, in a process group
    // that no shell knows. It stays in the session of whoever starts it (docs/decisions/0009): a terminal's signals go
    // to its foreground group and to the session's leader, and the daemon is neither and has no terminal open.
    unsafe {
        command.pre_exec(|| {
            if libc::setpgid(0, 0) < 0 || libc::signal(libc::SIGHUP, libc::SIG_IGN) == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
            match libc::fork() {
                -1 => Err(std::io::Error::last_os_error()),
                0 => Ok(()),
                _ => libc::_exit(0),
            }
        });
    }
    let mut child = command.spawn().map_err(|error| fail(&error, ""))?;
    let stdout = child.stdout.take();
    // The middle process, which has ended.
    let _ = child.wait();
    let mut text = String::new();
    if let Some(stdout) = stdout {
        let _ = BufReader::new(stdout.take(READINESS_BYTES_MAX)).read_line(&mut text);
    }
    match serde_json::from_str(&text) {
        Ok(Readiness::Ready(pid)) => Ok(pid),
        Ok(Readiness::Failed(failure)) => Err(failure),
        Err(_) => {
            let words = Crashes::of(places, pool).last_words();
            Err(fail(
                &words.unwrap_or_else(|| "the daemon ended before it was ready".into()),
                &format!("see the end of '{}'", log_path.display()),
            ))
        }
    }
}

/// How long a daemon that holds its pool no more may take to be gone.
const LEAVING: Duration = Duration::from_secs(10);
/// After this time it is looked whether it is a daemon at all that is waited for: before it is said that one is.
const DOUBT: Duration = Duration::from_millis(1200);

/// What is said if the pool's lock is held by a process that is no daemon: that is not waited for. `waited` since when.
pub fn held_by_stranger(places: &Places, pool: &str, waited: Instant) -> Option<Failure> {
    if waited.elapsed() < DOUBT {
        return None;
    }
    let path = places.lock_file(pool);
    let stranger = RunLock::stranger(&path)?;
    Some(Failure::new(
        format!("reach the daemon of pool '{pool}'"),
        format!(
            "process {stranger}, which is none, holds the lock '{}'",
            path.display()
        ),
        "end that process, or make it let go of the file",
    ))
}

/// What is said of a daemon that holds the pool and does not answer.
pub fn not_serving(places: &Places, pool: &str) -> Failure {
    Failure::new(
        format!("reach the daemon of pool '{pool}'"),
        format!(
            "it has held the pool for {} seconds without serving",
            PATIENCE.as_secs()
        ),
        format!("see '{}'", places.log_file(pool).display()),
    )
}

/// What is said of a daemon that takes requests and does not answer them for so long: it may wait for a device that does not answer
/// either, and only who looks knows that it waits in vain.
pub fn hanging(places: &Places, pool: &str, what: &str, patience: Duration) -> Failure {
    let log = places.log_file(pool);
    let by_force = format!("'terrace stop --force {pool}'");
    let (why, remedy) = match RunLock::holder(&places.lock_file(pool)) {
        Some(holder) if holder.is_stopped() => (
            format!(
                "its daemon, process {}, was stopped (SIGSTOP) and does not answer",
                holder.pid
            ),
            format!(
                "'kill -CONT {}' lets it go on; {by_force} ends it (what fsync made durable is safe)",
                holder.pid
            ),
        ),
        Some(ProcessId { pid, .. }) => (
            format!(
                "its daemon, process {pid}, has not answered for {} seconds",
                patience.as_secs_f64().round().max(1.0)
            ),
            format!(
                "'{}' may say what it waits for; {by_force} or 'kill -9 {pid}' ends it (what fsync made durable is safe), then do this \
                 again",
                log.display()
            ),
        ),
        None => (
            format!(
                "its daemon has not answered for {} seconds",
                patience.as_secs_f64().round().max(1.0)
            ),
            format!("see '{}'", log.display()),
        ),
    };
    Failure::new(what, why, remedy)
}

/// Says once that a daemon that holds a pool is waited for, and how to get out of that.
pub fn say_waiting(places: &Places, pool: &str) {
    let who = match RunLock::holder(&places.lock_file(pool)) {
        Some(ProcessId { pid, .. }) => {
            format!("its daemon, process {pid}, which lives and has not answered yet")
        }
        None => "its daemon, which has not answered yet".to_owned(),
    };
    eprintln!(
        "terrace: pool '{pool}': waiting for {who}: it may be opening or closing, or wait for a device; '{}' may say for what, \
         'terrace stop --force {pool}' ends it (what fsync made durable is safe)",
        places.log_file(pool).display()
    );
}

/// The remedy for a silent device.
pub fn silence_remedy(pool: &str) -> String {
    format!(
        "'terrace status {pool}' shows whether it answers again; 'terrace stop --force {pool}' ends the daemon (what fsync made durable is \
         safe), and 'terrace start --degraded {pool}' goes on without the device once it is detached"
    )
}

/// Who the daemon of a pool is, in brackets.
fn process_of(places: &Places, pool: &str) -> String {
    let holder = RunLock::holder(&places.lock_file(pool));
    holder.map_or_else(String::new, |ProcessId { pid, .. }| {
        format!(" (its daemon is process {pid})")
    })
}

/// Says once that a device of a pool is waited for, maybe.
pub fn say_waiting_for(places: &Places, pool: &str, device: &str) {
    eprintln!(
        "terrace: pool '{pool}'{}: its device '{device}' does not answer, and what was asked for may be waiting for it; {}",
        process_of(places, pool),
        silence_remedy(pool)
    );
}

/// Nothing has moved while a device of a pool does not answer.
pub fn waits_for(places: &Places, pool: &str, device: &str) -> Failure {
    Failure::new(
        format!("wait for pool '{pool}'{}", process_of(places, pool)),
        format!("its device '{device}' does not answer; what was asked for may still be done when it does"),
        silence_remedy(pool),
    )
}

/// Waits until the daemon that was told to stop no longer holds the pool, and has let go of its devices. One that somebody else has
/// started since then is not waited for.
pub fn wait_for_end(places: &Places, pool: &str, stopped: Option<ProcessId>) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    let lock = places.lock_file(pool);
    let is_another = || RunLock::holder(&lock).is_some_and(|holder| stopped.is_some_and(|old| old != holder));
    while RunLock::is_held(&lock) && !is_another() {
        if Instant::now() > deadline {
            let log = places.log_file(pool);
            let (who, remedy) = match stopped {
                Some(ProcessId { pid, .. }) => (
                    format!("its daemon, process {pid},"),
                    format!("see '{}'; 'kill -9 {pid}' ends it if it hangs", log.display()),
                ),
                None => ("its daemon".to_owned(), format!("see '{}'", log.display())),
            };
            return Err(Failure::new(
                format!("stop pool '{pool}'"),
                format!("{who} has not ended after {} seconds", PATIENCE.as_secs()),
                remedy,
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // Its devices it lets go of last, with its life; whoever opens them waits a little for that as well.
    let deadline = Instant::now() + LEAVING;
    while stopped.is_some_and(|old| old.is_alive()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
