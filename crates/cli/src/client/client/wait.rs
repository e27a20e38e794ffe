//! `Wait`: what is looked at while an answer is waited for.
//!
//! Invariants: what the daemon does is waited for as long as it lives and its devices answer; where one does not, that is said within two
//! seconds, and it is given up after four in which nothing moved. What only looks is never waited for longer than half a minute.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::Value;
use terrace_control::{Connection, ControlError, HELLO, Request, RunLock};

use super::ANSWER_PATIENCE;
use crate::{client::launch, machine::Places};

/// How often it is looked whether one that says nothing was stopped.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How long a look at a daemon that lives may take until it is said that it waits for something.
const LOOK_PATIENCE: Duration = Duration::from_millis(1800);
/// After this time it is given up: nothing that only looks takes so long.
const LOOK_PATIENCE_MAX: Duration = Duration::from_secs(30);
/// Operations that only look, and wait for nothing but locks and devices.
const LOOKS: [&str; 12] = [
    "status",
    "io_counters",
    "events",
    "command_log",
    "jobs",
    "pool_properties",
    "format",
    "tiers",
    "list",
    "get_properties",
    "mounts",
    "dataset_heat",
];

/// See the module.
pub(crate) struct Wait {
    places: Places,
    pool: String,
    /// What was asked for only looks.
    looks: AtomicBool,
    /// What was asked for waits for what has not happened yet.
    follows: AtomicBool,
    /// Others are to be looked at as well: nobody waits for this one.
    is_one_of_several: AtomicBool,
    is_told: AtomicBool,
    was_silent: AtomicBool,
    /// How long it had been silent when it was last asked for a sign of life, milliseconds.
    asked_at: AtomicU64,
    /// The wait was given up. The connection may be in the middle of a frame, so it is of no further use.
    is_given_up: AtomicBool,
    /// A device that did not answer at the last look.
    silent_device: Mutex<Option<String>>,
}

impl Wait {
    pub(crate) fn new(places: &Places, pool: &str) -> Self {
        Self {
            places: places.clone(),
            pool: pool.to_owned(),
            looks: AtomicBool::default(),
            follows: AtomicBool::default(),
            is_one_of_several: AtomicBool::default(),
            is_told: AtomicBool::default(),
            was_silent: AtomicBool::default(),
            asked_at: AtomicU64::default(),
            is_given_up: AtomicBool::default(),
            silent_device: Mutex::default(),
        }
    }

    /// What is waited for from now on.
    pub(crate) fn begin(&self, operation: &str, arguments: &Value) {
        let follows = arguments["follow"] == Value::Bool(true);
        self.follows.store(follows, Ordering::Relaxed);
        self.looks
            .store(LOOKS.contains(&operation) && !follows, Ordering::Relaxed);
    }

    pub(crate) fn is_one_of_several(&self) {
        self.is_one_of_several.store(true, Ordering::Relaxed);
    }

    /// The device for which it was given up.
    pub(crate) fn silent_device(&self) -> Option<String> {
        self.silent_device.lock().clone()
    }

    /// Whether to wait on; `silent`: for how long nothing has moved. Giving up is final.
    pub(crate) fn goes_on(&self, silent: Duration) -> io::Result<()> {
        if self.is_given_up.load(Ordering::Relaxed) {
            return Err(silence());
        }
        let goes_on = self.look(silent);
        self.is_given_up.store(goes_on.is_err(), Ordering::Relaxed);
        goes_on
    }

    fn look(&self, silent: Duration) -> io::Result<()> {
        if is_stopped(&self.places, &self.pool) {
            *self.silent_device.lock() = None;
            return Err(silence());
        }
        // Once in a while: who works long is asked only whether he lives.
        let now = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
        let last = Some(self.asked_at.load(Ordering::Relaxed)).filter(|last| *last <= now);
        if now < last.unwrap_or(0) + LOOK_PATIENCE.as_millis() as u64 {
            return Ok(());
        }
        self.asked_at.store(now, Ordering::Relaxed);
        let alive = match hello_once(&self.places, &self.pool, ANSWER_PATIENCE) {
            Err(error) if is_silence(&error) => {
                *self.silent_device.lock() = None;
                // Once may be one that is closing.
                return match self.was_silent.swap(true, Ordering::Relaxed) {
                    true => Err(silence()),
                    false => Ok(()),
                };
            }
            alive => alive.unwrap_or(Value::Null),
        };
        self.was_silent.store(false, Ordering::Relaxed);
        self.look_for_silent_devices(&alive)?;
        if !self.looks.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.is_one_of_several.load(Ordering::Relaxed) || silent > LOOK_PATIENCE_MAX {
            return Err(silence());
        }
        if !self.is_told.swap(true, Ordering::Relaxed) {
            launch::say_waiting(&self.places, &self.pool);
        }
        Ok(())
    }

    /// A silent device may block the operation, directly or through another thread. The first look says so and the second gives up:
    /// a thread that waits in the kernel returns when the kernel does, which may be never.
    fn look_for_silent_devices(&self, alive: &Value) -> io::Result<()> {
        let now = alive["silent_devices"][0].as_str().map(str::to_owned);
        let was_silent = std::mem::replace(&mut *self.silent_device.lock(), now.clone()).is_some();
        let Some(device) = now.filter(|_| !self.follows.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        if was_silent {
            return Err(silence());
        }
        if !self.is_told.swap(true, Ordering::Relaxed) {
            launch::say_waiting_for(&self.places, &self.pool, &device);
        }
        Ok(())
    }
}

/// Whether an error means that somebody is there and says nothing.
pub(crate) fn is_silence(error: &ControlError) -> bool {
    let ControlError::Socket(error) = error else {
        return false;
    };
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

pub(crate) fn silence() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nothing came")
}

/// Whether the process that holds a pool was stopped.
pub(crate) fn is_stopped(places: &Places, pool: &str) -> bool {
    RunLock::holder(&places.lock_file(pool)).is_some_and(|holder| holder.is_stopped())
}

/// Asks for a sign of life, on a connection of its own: a daemon that was killed may still be connected to, as long
/// as one of its threads has not ended.
pub(crate) fn hello(places: &Places, pool: &str, patience: Duration) -> Result<Value, ControlError> {
    // Twice: one that is closing may have let the first in, and serves nobody any more.
    let half = patience / 2;
    match hello_once(places, pool, half) {
        Err(error) if is_silence(&error) && !is_stopped(places, pool) => hello_once(places, pool, half),
        outcome => outcome,
    }
}

fn hello_once(places: &Places, pool: &str, patience: Duration) -> Result<Value, ControlError> {
    let mut connection = Connection::connect_within(&places.socket(pool), patience)?;
    let (places, pool) = (places.clone(), pool.to_owned());
    let over = move |silent: Duration| match silent < patience && !is_stopped(&places, &pool) {
        true => Ok(()),
        false => Err(silence()),
    };
    connection.set_watch(LOOK_INTERVAL.min(patience), Arc::new(over))?;
    connection.call(&Request::new(HELLO, Value::Null), &mut |_| Ok(()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;
    use terrace_control::{Exchange, Failure, Handler, Server};

    use super::*;

    /// Says these words of itself.
    struct Nobody(Value);

    impl Handler for Nobody {
        fn handle(&self, _: Request, _: &mut Exchange) -> Result<Value, Failure> {
            Ok(Value::Null)
        }

        fn alive(&self) -> Value {
            self.0.clone()
        }
    }

    #[test]
    fn work_that_takes_long_is_waited_for_while_the_daemon_lives() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::below(directory.path());
        let server = Server::bind(&places.socket("tank")).unwrap();
        let serving = server.clone();
        let thread =
            std::thread::spawn(move || serving.run(Arc::new(Nobody(Value::Null)), Duration::from_secs(10)));
        let wait = |looks: bool, is_one_of_several: bool| {
            let wait = Wait::new(&places, "tank");
            wait.begin(if looks { "status" } else { "scrub" }, &Value::Null);
            if is_one_of_several {
                wait.is_one_of_several();
            }
            wait
        };
        let hours =
            |wait: &Wait| (1..100).try_for_each(|hour| wait.goes_on(Duration::from_secs(3600 * hour)));
        hours(&wait(false, false)).unwrap();
        hours(&wait(false, true)).unwrap();
        // A look takes no hours; beside others it has no more than its two seconds.
        let look = wait(true, false);
        look.goes_on(Duration::from_secs(10)).unwrap();
        assert!(
            look.is_told.load(Ordering::Relaxed),
            "it is said what is waited for"
        );
        assert_eq!(
            look.goes_on(Duration::from_secs(40)).unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        let look = wait(true, true);
        look.goes_on(Duration::from_secs(1)).unwrap();
        assert!(look.goes_on(Duration::from_secs(2)).is_err());
        server.stop();
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn commands_give_up_on_a_silent_device_but_followers_wait() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::below(directory.path());
        let server = Server::bind(&places.socket("tank")).unwrap();
        let serving = server.clone();
        let says = Nobody(json!({ "silent_devices": ["/dev/gone"] }));
        let thread = std::thread::spawn(move || serving.run(Arc::new(says), Duration::from_secs(10)));
        let wait = Wait::new(&places, "tank");
        wait.begin("snapshot", &Value::Null);
        wait.goes_on(Duration::from_secs(1)).unwrap();
        assert!(!wait.is_told.load(Ordering::Relaxed));
        wait.goes_on(Duration::from_secs(2)).unwrap();
        assert!(wait.is_told.load(Ordering::Relaxed));
        assert!(wait.goes_on(Duration::from_secs(4)).is_err());
        assert_eq!(wait.silent_device().as_deref(), Some("/dev/gone"));
        let wait = Wait::new(&places, "tank");
        wait.begin("events", &json!({ "follow": true }));
        (1..100).for_each(|second| wait.goes_on(Duration::from_secs(second)).unwrap());
        server.stop();
        thread.join().unwrap().unwrap();
    }

    /// Whoever listens and never answers; `is_full`: nor lets anybody in.
    #[test]
    fn a_daemon_without_a_sign_of_life_is_given_up_soon_also_where_nobody_is_let_in() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::below(directory.path());
        let listener = std::os::unix::net::UnixListener::bind(places.socket("tank")).unwrap();
        let patience = Duration::from_millis(50);
        let is_silent = || is_silence(&hello(&places, "tank", patience).unwrap_err());
        assert!(is_silent());
        rustix::net::listen(&listener, 0).unwrap();
        let mut waiting = Vec::new();
        while let Ok(connection) = Connection::connect_within(&places.socket("tank"), patience) {
            waiting.push(connection);
        }
        assert!(is_silent());
    }
}
