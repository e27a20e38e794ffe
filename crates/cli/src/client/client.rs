//! The command's side of the control socket: finds the daemon of a pool, starts it if there is none, asks it.
//!
//! Invariants: a daemon that gives no sign of life is told of within two seconds, with its process and the way out, and so is one that
//! stops giving any while it is waited for; work is waited for as long as it takes, as long as the daemon says that it lives and its devices answer.

mod wait;

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::de::DeserializeOwned;
use serde_json::Value;
use terrace_control::{Answer, Connection, ControlError, Failure, Request, RunLock};

use self::wait::{LOOK_INTERVAL, Wait, hello, is_silence, is_stopped, silence};
use super::launch;
use crate::{
    crash::Crashes,
    machine::{Places, Registry, output::ProgressDisplay},
};

/// How long a daemon may give no sign of life until it is told of.
pub const ANSWER_PATIENCE: Duration = Duration::from_millis(1600);

/// A connection to the daemon of one pool.
pub struct Client {
    connection: Connection,
    places: Places,
    pool: String,
    wait: Arc<Wait>,
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
        crate::machine::check_pool_name(pool)?;
        let begun = Instant::now();
        let deadline = begun + launch::PATIENCE;
        let mut is_told = false;
        loop {
            let connection = match hello(places, pool, patience) {
                Ok(_) => Connection::connect_within(&places.socket(pool), patience),
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
        let wait = Arc::new(Wait::new(places, pool));
        let mut client = Self {
            connection,
            places: places.clone(),
            pool: pool.into(),
            wait: wait.clone(),
        };
        let watched = client
            .connection
            .set_watch(LOOK_INTERVAL, Arc::new(move |silent| wait.goes_on(silent)));
        watched.map_err(|error| unreachable(pool, &error))?;
        Ok(client)
    }

    /// Others are to be looked at as well: this one has two seconds.
    pub fn one_of_several(self) -> Self {
        self.wait.is_one_of_several();
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
        self.wait.begin(operation, &arguments);
        let sent = self.connection.send(&Request::new(operation, arguments));
        sent.map_err(|error| self.lost(&error))
    }

    /// What is said when the connection fails.
    fn lost(&self, error: &ControlError) -> Failure {
        match is_silence(error) {
            true => {
                if let Some(device) = self.wait.silent_device() {
                    return launch::waits_for(&self.places, &self.pool, &device);
                }
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
