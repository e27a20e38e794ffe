//! The command's side of the control socket: finds the daemon of a pool, starts it if there is none, asks it.
//!
//! Invariants: a daemon that gives no sign of life is told of within two seconds, with its process and the way out, and so is one that
//! stops giving any while it is waited for; work is waited for as long as it takes, as long as the daemon says that it lives.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::de::DeserializeOwned;
use serde_json::Value;
use terrace_control::{Answer, Connection, ControlError, Failure, HELLO, Request, RunLock};

use crate::{crash::Crashes, launch, output::ProgressDisplay, places::Places, registry::Registry};

/// How long a daemon may give no sign of life until it is told of.
pub const ANSWER_PATIENCE: Duration = Duration::from_millis(1600);
/// How often it is looked whether one that says nothing was stopped.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
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

/// A connection to the daemon of one pool.
pub struct Client {
    connection: Connection,
    places: Places,
    pool: String,
    /// What was asked for only looks.
    looks: Arc<AtomicBool>,
    /// Others are to be looked at as well: nobody waits for this one.
    is_one_of_several: Arc<AtomicBool>,
}

impl Client {
    /// Connects, starting the daemon if there is none.
    pub fn open(places: &Places, pool: &str) -> Result<Self, Failure> {
        Registry::new(places).require(pool)?;
        if let Some(client) = Self::open_running(places, pool)? {
            return Ok(client);
        }
        match Crashes::of(places, pool).refusal() {
            Some(failure) => Err(failure),
            None => Self::start(places, pool, launch::Accepted::default()),
        }
    }

    /// Starts the daemon and connects. Another command may be faster: then its daemon serves this one too.
    pub fn start(places: &Places, pool: &str, accepted: launch::Accepted) -> Result<Self, Failure> {
        let started = launch::start_daemon(places, pool, accepted);
        if let Some(client) = Self::open_running(places, pool)? {
            return Ok(client);
        }
        started?;
        Err(Failure::new(
            format!("reach the daemon of pool '{pool}'"),
            "it started and ended again",
            format!("see '{}'", places.log_file(pool).display()),
        ))
    }

    /// Connects if a daemon is running. One that is starting, stopping or dying is waited for.
    pub fn open_running(places: &Places, pool: &str) -> Result<Option<Self>, Failure> {
        let what = format!("reach the daemon of pool '{pool}'");
        Self::find(places, pool, ANSWER_PATIENCE).map_err(|error| error.into_failure(places, pool, &what))
    }

    /// The same; whether it does not answer at all, within so long, is told apart.
    pub fn find(places: &Places, pool: &str, patience: Duration) -> Result<Option<Self>, Unanswered> {
        crate::places::check_pool_name(pool)?;
        let begun = Instant::now();
        let deadline = begun + launch::PATIENCE;
        let mut is_told = false;
        loop {
            let connection = match hello(places, pool, patience) {
                Ok(()) => Connection::connect_within(&places.socket(pool), patience),
                Err(error) => Err(error),
            };
            match connection {
                Ok(connection) => return Ok(Some(Self::watched(connection, places, pool)?)),
                Err(error) if is_silence(&error) => return Err(Unanswered::Silent(patience)),
                Err(error) if !is_absence(&error) => return Err(unreachable(pool, &error).into()),
                Err(_) if !RunLock::is_held(&places.lock_file(pool)) => return Ok(None),
                Err(_) if is_stopped(places, pool) => return Err(Unanswered::Silent(patience)),
                Err(_) if Instant::now() > deadline => return Err(launch::not_serving(places, pool).into()),
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(5));
                    if let Some(failure) = launch::held_by_stranger(places, pool, begun) {
                        return Err(failure.into());
                    }
                    if !is_told && begun.elapsed() > patience.min(ANSWER_PATIENCE) {
                        is_told = true;
                        launch::say_waiting(places, pool);
                    }
                }
            }
        }
    }

    fn watched(connection: Connection, places: &Places, pool: &str) -> Result<Self, Failure> {
        let mut client = Self {
            connection,
            places: places.clone(),
            pool: pool.into(),
            looks: Arc::default(),
            is_one_of_several: Arc::default(),
        };
        let wait = Wait {
            places: places.clone(),
            pool: pool.into(),
            looks: client.looks.clone(),
            is_one_of_several: client.is_one_of_several.clone(),
            is_told: AtomicBool::new(false),
            was_silent: AtomicBool::new(false),
            asked_at: AtomicU64::new(0),
        };
        let watched = client
            .connection
            .set_watch(LOOK_INTERVAL, Arc::new(move |silent| wait.goes_on(silent)));
        watched.map_err(|error| unreachable(pool, &error))?;
        Ok(client)
    }

    /// Others are to be looked at as well: this one has two seconds.
    pub fn one_of_several(self) -> Self {
        self.is_one_of_several.store(true, Ordering::Relaxed);
        self
    }

    /// Asks, and shows progress; items and content go to `take`.
    pub fn call_with(
        &mut self,
        operation: &str,
        arguments: Value,
        take: &mut dyn FnMut(Answer) -> Result<(), Failure>,
    ) -> Result<Value, Failure> {
        self.send(operation, arguments)?;
        self.finish(take)
    }

    /// Sends a request whose content follows.
    pub fn send(&mut self, operation: &str, arguments: Value) -> Result<(), Failure> {
        // Who follows waits for what has not happened yet.
        let looks = LOOKS.contains(&operation) && arguments["follow"] != Value::Bool(true);
        self.looks.store(looks, Ordering::Relaxed);
        let sent = self.connection.send(&Request::new(operation, arguments));
        sent.map_err(|error| self.lost(&error))
    }

    /// What is said when the connection fails.
    fn lost(&self, error: &ControlError) -> Failure {
        match is_silence(error) {
            true => {
                let what = format!("reach the daemon of pool '{}'", self.pool);
                launch::hanging(&self.places, &self.pool, &what, ANSWER_PATIENCE)
            }
            false => unreachable(&self.pool, error),
        }
    }

    /// The connection, for sending content.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Receives the answer.
    pub fn finish(&mut self, take: &mut dyn FnMut(Answer) -> Result<(), Failure>) -> Result<Value, Failure> {
        let mut display = ProgressDisplay::new();
        let mut own_failure = None;
        let outcome = self.connection.finish(&mut |answer| {
            if let Answer::Progress(progress) = &answer {
                display.show(progress);
                return Ok(());
            }
            take(answer).map_err(|failure| {
                own_failure = Some(failure);
                io::Error::other("given up")
            })
        });
        if let (None, Ok(value)) = (&own_failure, &outcome)
            && !matches!(value["state"].as_str(), Some("cancelled" | "failed"))
        {
            display.complete();
        }
        display.finish();
        match (own_failure, outcome) {
            (Some(failure), _) => Err(failure),
            (None, Ok(value)) => Ok(value),
            (None, Err(ControlError::Failed(failure))) => Err(failure),
            (None, Err(error)) => Err(self.lost(&error)),
        }
    }

    /// Asks; the answer is one value.
    pub fn call(&mut self, operation: &str, arguments: Value) -> Result<Value, Failure> {
        self.call_with(operation, arguments, &mut |_| Ok(()))
    }

    /// Asks, and waits for so long at most for each part of the answer.
    pub fn call_within(
        &mut self,
        operation: &str,
        arguments: Value,
        patience: Duration,
    ) -> Result<Value, Unanswered> {
        let Self { connection, pool, .. } = self;
        let over = move |silent: Duration| match silent < patience {
            true => Ok(()),
            false => Err(silence()),
        };
        let answer = connection
            .set_watch(LOOK_INTERVAL, Arc::new(over))
            .and_then(|()| {
                let request = Request::new(operation, arguments);
                connection.call(&request, &mut |_| Ok(()))
            });
        answer.map_err(|error| match error {
            ControlError::Failed(failure) => failure.into(),
            error if is_silence(&error) => Unanswered::Silent(patience),
            error => unreachable(pool, &error).into(),
        })
    }

    /// Asks; the answer is one value of a known form.
    pub fn ask<T: DeserializeOwned>(&mut self, operation: &str, arguments: Value) -> Result<T, Failure> {
        let value = self.call(operation, arguments)?;
        decode(value)
    }
}

/// Why there is no answer.
pub enum Unanswered {
    /// It was refused, or the daemon ended.
    Refused(Failure),
    /// The daemon is there, and nothing came for so long.
    Silent(Duration),
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

impl Unanswered {
    /// As what users read.
    pub fn into_failure(self, places: &Places, pool: &str, what: &str) -> Failure {
        match self {
            Self::Refused(failure) => failure,
            Self::Silent(patience) => launch::hanging(places, pool, what, patience),
        }
    }
}

/// Whether an error means that somebody is there and says nothing.
fn is_silence(error: &ControlError) -> bool {
    let ControlError::Socket(error) = error else {
        return false;
    };
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn silence() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nothing came")
}

/// Whether the process that holds a pool was stopped.
fn is_stopped(places: &Places, pool: &str) -> bool {
    RunLock::holder(&places.lock_file(pool)).is_some_and(|holder| holder.is_stopped())
}

/// Asks for a sign of life, on a connection of its own: a daemon that was killed may still be connected to, as long
/// as one of its threads has not ended.
fn hello(places: &Places, pool: &str, patience: Duration) -> Result<(), ControlError> {
    // Twice: one that is closing may have let the first in, and serves nobody any more.
    let half = patience / 2;
    match hello_once(places, pool, half) {
        Err(error) if is_silence(&error) && !is_stopped(places, pool) => hello_once(places, pool, half),
        outcome => outcome,
    }
}

fn hello_once(places: &Places, pool: &str, patience: Duration) -> Result<(), ControlError> {
    let mut connection = Connection::connect_within(&places.socket(pool), patience)?;
    let (places, pool) = (places.clone(), pool.to_owned());
    let over = move |silent: Duration| match silent < patience && !is_stopped(&places, &pool) {
        true => Ok(()),
        false => Err(silence()),
    };
    connection.set_watch(LOOK_INTERVAL.min(patience), Arc::new(over))?;
    connection
        .call(&Request::new(HELLO, Value::Null), &mut |_| Ok(()))
        .map(drop)
}

/// What is looked at while an answer is waited for.
struct Wait {
    places: Places,
    pool: String,
    looks: Arc<AtomicBool>,
    is_one_of_several: Arc<AtomicBool>,
    is_told: AtomicBool,
    was_silent: AtomicBool,
    /// How long it had been silent when it was last asked for a sign of life, milliseconds.
    asked_at: AtomicU64,
}

impl Wait {
    /// Whether it is waited on; `silent`: for how long nothing has moved.
    fn goes_on(&self, silent: Duration) -> io::Result<()> {
        if is_stopped(&self.places, &self.pool) {
            return Err(silence());
        }
        // Once in a while: who works long is asked only whether he lives.
        let now = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
        let last = Some(self.asked_at.load(Ordering::Relaxed)).filter(|last| *last <= now);
        if now < last.unwrap_or(0) + LOOK_PATIENCE.as_millis() as u64 {
            return Ok(());
        }
        self.asked_at.store(now, Ordering::Relaxed);
        let is_silent =
            hello_once(&self.places, &self.pool, ANSWER_PATIENCE).is_err_and(|error| is_silence(&error));
        // Once may be one that is closing.
        if self.was_silent.swap(is_silent, Ordering::Relaxed) && is_silent {
            return Err(silence());
        }
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
}

/// Whether an error means that nobody serves there, rather than that something is wrong.
fn is_absence(error: &ControlError) -> bool {
    match error {
        ControlError::Closed => true,
        ControlError::Socket(error) => matches!(
            error.kind(),
            io::ErrorKind::NotFound
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::NotConnected
        ),
        _ => false,
    }
}

/// A value of the daemon as what it should be.
pub fn decode<T: DeserializeOwned>(value: Value) -> Result<T, Failure> {
    serde_json::from_value(value).map_err(|error| {
        Failure::new(
            "understand the daemon",
            error,
            "restart it: it may be of another version than this command",
        )
    })
}

/// What is said when the daemon cannot be talked to.
pub fn unreachable(pool: &str, error: &ControlError) -> Failure {
    Failure::new(
        format!("talk to the daemon of pool '{pool}'"),
        error,
        format!("run 'terrace start {pool}' and try again"),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use terrace_control::{Exchange, Handler, Server};

    use super::*;

    struct Nobody;

    impl Handler for Nobody {
        fn handle(&self, _: Request, _: &mut Exchange) -> Result<Value, Failure> {
            Ok(Value::Null)
        }
    }

    #[test]
    fn work_that_takes_long_is_waited_for_while_the_daemon_lives() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::below(directory.path());
        let server = Server::bind(&places.socket("tank")).unwrap();
        let serving = server.clone();
        let thread = std::thread::spawn(move || serving.run(Arc::new(Nobody), Duration::from_secs(10)));
        let wait = |looks: bool, is_one_of_several: bool| Wait {
            places: places.clone(),
            pool: "tank".into(),
            looks: Arc::new(AtomicBool::new(looks)),
            is_one_of_several: Arc::new(AtomicBool::new(is_one_of_several)),
            is_told: AtomicBool::default(),
            was_silent: AtomicBool::default(),
            asked_at: AtomicU64::default(),
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
