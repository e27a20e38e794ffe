//! The daemon: holds one pool, serves its control socket and its mounts.
//!
//! Invariants: it serves only while it holds the pool's lock and has its devices open; it ends only after
//! everything was unmounted (or given up by force) and the pool was closed; what it was asked to mount, attach or
//! serve is written down before it is done, so that a killed daemon's mounts, devices and services come back.

mod blocks;
mod mounting;
mod open_pool;
mod requests;
mod support;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use terrace_control::{CONNECTIONS_MAX, Exchange, Failure, Handler, ProcessId, Request, RunLock, Server};
use terrace_engine::{OpenOptions, Unwritten, rfc3339};

pub use crate::daemon::support::{device_paths, failed as failure_of};
use crate::{
    client::{Accepted, Readiness, launch},
    crash::{Crashes, Watch},
    daemon::support::Parameters,
    machine::{KeptEvents, Places, Registry},
};
use blocks::Blocks;
pub use blocks::clear_dead as clear_dead_blocks;
use mounting::Mounts;
use open_pool::OpenPool;
pub use open_pool::{describe_pool, open_pool, open_when_free};
use requests::{
    datasets, devices, files, heat, jobs, moves, properties,
    stop::{self, Ending},
    tiers, where_is,
};

/// How long open requests may take to end after `stop`.
const PATIENCE: Duration = Duration::from_secs(10);

/// The daemon of one pool.
pub struct Daemon {
    pool: OpenPool,
    mounts: Mounts,
    blocks: Blocks,
    ending: Ending,
    /// How the run before ended, if nobody asked for that.
    last_run: Option<Unwritten>,
}

/// Runs the daemon in this process until it is told to stop.
pub fn run(places: Places, pool: &str, accepted: Accepted) -> Result<(), Failure> {
    support::allocator::give_memory_back();
    support::descriptors::raise_limit();
    let background = std::env::var_os("TERRACE_READY").is_some();
    let started = start(&places, pool, accepted);
    let tell = |readiness: &Readiness| {
        if background && let Ok(mut text) = serde_json::to_string(readiness) {
            text.push('\n');
            let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
            leave_stdout();
        }
    };
    let Started {
        daemon,
        server,
        lock,
        watch,
    } = match started {
        Ok(started) => started,
        Err(failure) => {
            tell(&Readiness::Failed(failure.clone()));
            return Err(failure);
        }
    };
    tell(&Readiness::Ready(std::process::id()));
    tracing::info!("pool '{pool}' is served by process {}", std::process::id());
    let served = server.run(daemon.clone(), PATIENCE);
    let closed = daemon
        .ending
        .shut_down(&daemon.pool, &daemon.mounts, &daemon.blocks);
    match closed {
        Ok(()) => watch.ended_well(),
        Err(_) => drop(watch),
    }
    drop(lock);
    served.map_err(|error| Failure::new(format!("serve pool '{pool}'"), error, ""))?;
    closed
}

struct Started<'a> {
    daemon: Arc<Daemon>,
    server: Arc<Server>,
    watch: Watch<'a>,
    lock: RunLock,
}

fn start<'a>(places: &'a Places, pool: &'a str, accepted: Accepted) -> Result<Started<'a>, Failure> {
    let what = format!("start pool '{pool}'");
    start_log();
    let known = Registry::new(places).require(pool)?;
    let lock_path = places.lock_file(pool);
    let lock = take_lock(&lock_path)
        .map_err(|error| {
            let why = format!("'{}': {error}", lock_path.display());
            Failure::new(what.clone(), why, "fix its owner and mode")
        })?
        .map_err(|holder| {
            let holder = RunLock::stranger(&lock_path).or(holder.map(|holder| holder.pid));
            let holder = holder.map_or_else(|| "another process".into(), |pid| format!("process {pid}"));
            let remedy = format!("use it, or run 'terrace stop {pool}' first");
            Failure::new(what.clone(), format!("{holder} holds it already"), remedy)
        })?;
    let watch = Crashes::of(places, pool).watch(&known.id);
    let last_run = Crashes::of(places, pool).filed(&known.id);
    let options = OpenOptions {
        degraded: accepted.degraded,
        rewind: accepted.rewind,
        owner: crate::machine::own_ids(),
        events: Some(Arc::new(KeptEvents::of(places, pool))),
        owns_process: true,
        ..OpenOptions::default()
    };
    let engine = open_pool(&known, options)?;
    let socket = places.socket(pool);
    let server = Server::bind(&socket).map_err(|error| {
        Failure::new(
            what.clone(),
            format!("its socket '{}': {error}", socket.display()),
            "take away what is there, or set TERRACE_STATE_DIR to another directory",
        )
    })?;
    let daemon = Arc::new(Daemon {
        mounts: Mounts::new(places.clone(), pool),
        blocks: Blocks::new(places.clone(), pool),
        ending: Ending::of(server.clone()),
        pool: OpenPool::new(places.clone(), pool, engine),
        last_run,
    });
    daemon.pool.remember();
    daemon.mounts.restore(daemon.pool.engine());
    daemon.mounts.follow_table();
    daemon.blocks.restore(daemon.pool.engine());
    watch_signals(&server).map_err(|error| Failure::new(what, format!("watch signals: {error}"), ""))?;
    Ok(Started {
        daemon,
        server,
        watch,
        lock,
    })
}

/// Takes the pool's lock. One that is held by a process that is gone is waited for: its last threads are ending, or
/// a command just looks whether it is held.
fn take_lock(path: &Path) -> std::io::Result<Result<RunLock, Option<ProcessId>>> {
    let deadline = Instant::now() + crate::client::PATIENCE;
    loop {
        match RunLock::acquire(path)? {
            Err(holder)
                if !holder.is_some_and(|holder| holder.is_alive())
                    && RunLock::stranger(path).is_none()
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return Ok(outcome),
        }
    }
}

impl Handler for Daemon {
    fn alive(&self) -> Value {
        json!({ "silent_devices": self.pool.engine().silent_devices() })
    }

    fn crowded(&self) -> Failure {
        let cause = format!("{CONNECTIONS_MAX} commands run at once already");
        match self.pool.engine().silent_devices().first() {
            Some(device) => Failure::new(
                "serve the request",
                format!("{cause}, and wait as the device '{device}' does not answer"),
                launch::silence_remedy(self.pool.name()),
            ),
            None => Failure::new("serve the request", cause, "try again when some have ended"),
        }
    }

    fn handle(&self, request: Request, exchange: &mut Exchange) -> Result<Value, Failure> {
        let parameters = Parameters::new(&request.operation, request.arguments);
        // What changed the pool is written down, as the user typed it; what closes it, before.
        let closes = parameters.operation() == "stop";
        if closes {
            self.log_command(&parameters)?;
        }
        let outcome = self
            .perform(&parameters, exchange)
            .map_err(|failure| self.with_what_takes_room(failure));
        if outcome.is_ok() && !closes {
            self.log_command(&parameters)?;
        }
        match outcome {
            Err(failure) if !closes && self.ending.is_begun() => {
                Err(self.ending.because_it_stops(&self.pool, failure))
            }
            outcome => outcome,
        }
    }
}

impl Daemon {
    /// Of a full pool, also what takes room there and is in no list of files or snapshots.
    fn with_what_takes_room(&self, mut failure: Failure) -> Failure {
        if failure.why.contains("the pool is full") {
            let more = [
                self.pool.engine().describe_set_aside(),
                self.pool.engine().describe_retained(),
            ];
            for words in more.iter().filter(|words| !words.is_empty()) {
                failure.remedy = format!("{}; {words}", failure.remedy);
            }
        }
        failure
    }

    fn log_command(&self, parameters: &Parameters) -> Result<(), Failure> {
        if let Some(words) = parameters.optional_text("command_line")? {
            let user = parameters.optional_text("user")?.unwrap_or_default();
            self.pool.engine().log_command(&user, &words);
        }
        Ok(())
    }

    /// A sign of life, with what should be mounted, attached or served and is not; `retry` tries that again first. A pool that takes
    /// nothing any more says why.
    fn ping(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let refuses = self
            .ending
            .refusal(&self.pool, &format!("start pool '{}'", self.pool.name()));
        if parameters.flag("retry")? && refuses.is_none() {
            self.mounts.restore(self.pool.engine());
            self.blocks.restore(self.pool.engine());
        }
        let not_restored = self.not_restored();
        Ok(
            json!({ "pool": self.pool.name(), "pid": std::process::id(), "not_restored": not_restored, "refuses": refuses }),
        )
    }

    /// What should be mounted, attached or served and is not.
    fn not_restored(&self) -> Vec<Value> {
        let missing = self.mounts.missing().into_iter().chain(self.blocks.missing());
        missing.map(|missing| missing.row(self.pool.name())).collect()
    }

    /// The pool as it is, with what is mounted, attached and served of it, and what could not be brought back.
    fn status(&self) -> Result<Value, Failure> {
        let (pool, blocks) = (&self.pool, &self.blocks);
        let mut status = support::answers::encode(&datasets::status(pool, &self.mounts))?;
        for row in status["datasets"].as_array_mut().into_iter().flatten() {
            datasets::add_blocks(blocks, row);
        }
        status["not_restored"] = json!(self.not_restored());
        status["last_run"] = json!(
            (self.last_run.as_ref())
                .map(|end| json!({ "time": rfc3339(end.nanoseconds), "kind": end.kind, "text": end.text }))
        );
        let warnings = stop::stray_warnings(pool).into_iter().chain(blocks.warnings());
        let warnings = warnings
            .map(|warning| json!({ "what": warning.what, "why": warning.why, "remedy": warning.remedy }));
        status["warnings"] = warnings.collect();
        Ok(status)
    }

    fn perform(&self, parameters: &Parameters, exchange: &mut Exchange) -> Result<Value, Failure> {
        let (pool, mounts, blocks) = (&self.pool, &self.mounts, &self.blocks);
        match parameters.operation() {
            "ping" => self.ping(parameters),
            "check_stop" => self.ending.check_stop(
                pool,
                mounts,
                blocks,
                parameters.flag("force")?,
                parameters.flag("spare_clients")?,
            ),
            "stop" => self.ending.stop(
                pool,
                mounts,
                blocks,
                parameters.flag("force")?,
                parameters.flag("spare_clients")?,
            ),
            "status" => self.status(),
            "io_counters" => support::answers::encode(&pool.engine().io_counters()),
            "events" => jobs::events(pool, parameters, exchange),
            "command_log" => jobs::command_log(pool),
            "jobs" => support::answers::encode(&pool.engine().jobs()),
            "job_action" => jobs::job_action(pool, parameters),
            "scrub" => jobs::scrub(pool, parameters, exchange),
            "compact" => jobs::compact(pool, parameters, exchange),
            "plan_compact" => jobs::plan_compact(pool),
            "lost" => devices::lost(pool, parameters),
            "device_add" => devices::device_add(pool, parameters),
            "device_leave" => devices::device_leave(pool, parameters, exchange),
            "device_replace" => devices::device_replace(pool, parameters, exchange),
            "device_resize" => devices::device_resize(pool, parameters, exchange),
            "sync" => jobs::sync(pool),
            "pool_properties" => Ok(tiers::pool_properties(pool)),
            "format" => Ok(tiers::format(pool)),
            "upgrade" => tiers::upgrade(pool),
            "pool_set" => tiers::pool_set(pool, parameters),
            "tiers" => Ok(tiers::tiers(pool)),
            "tier_set" => tiers::tier_set(pool, parameters),
            "list" => datasets::list(pool, mounts, blocks, parameters),
            "create" => datasets::create(pool, parameters),
            "plan_resize" => datasets::plan_resize(pool, blocks, parameters),
            "resize" => datasets::resize(pool, blocks, parameters),
            "get_properties" => properties::get_properties(pool, parameters),
            "set_properties" => properties::set_properties(pool, mounts, blocks, parameters),
            "inherit" => properties::inherit(pool, mounts, blocks, parameters),
            "rename" => datasets::rename(pool, mounts, blocks, parameters),
            "destroy" => datasets::destroy(pool, mounts, blocks, parameters),
            "snapshot" => datasets::snapshot(pool, parameters),
            "mount" => mounts.mount(pool.engine(), parameters),
            "unmount" => mounts.unmount(parameters),
            "attach" => blocks.attach(pool.engine(), parameters),
            "detach" => blocks.detach(parameters),
            "serve" => blocks.serve(pool.engine(), parameters),
            "unserve" => blocks.unserve(parameters),
            "mounts" => Ok(mounts.rows()),
            "ls" => files::ls(pool, parameters, exchange),
            "cat" => files::cat(pool, parameters, exchange),
            "get_tree" => files::get_tree(pool, parameters, exchange),
            "put_tree" => files::put_tree(pool, mounts, parameters, exchange),
            "where" => where_is::where_is(pool, parameters),
            "regions" => heat::regions(pool, parameters),
            "tier_devices" => heat::tier_devices(pool),
            "what_if" => heat::what_if(pool, parameters),
            "clear_heat" => heat::clear_heat(pool),
            "plan_clear_heat" => Ok(heat::plan_clear_heat(pool)),
            "dataset_heat" => heat::dataset_heat(pool),
            "placement" => moves::placement(pool, parameters, exchange),
            "hold" => datasets::hold(pool, parameters),
            "prune" => datasets::prune(pool, parameters),
            // Asked for by tests of what is told of it; who may ask could kill the daemon as well.
            "debug_panic" => panic!("asked for by 'terrace debug panic'"),
            other => Err(Failure::new(
                format!("do '{other}'"),
                "this daemon does not know it",
                format!(
                    "restart it with 'terrace stop {}' after the upgrade",
                    self.pool.name()
                ),
            )),
        }
    }
}

fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TERRACE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // What it could not write to its log it would write to the same place, and panic when that failed as well.
        .log_internal_errors(false)
        .try_init();
}

/// SIGTERM and SIGINT end the daemon cleanly; mounts stay written down and come back with the next start.
fn watch_signals(server: &Arc<Server>) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let server = server.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if signal != SIGHUP {
                    tracing::info!("ends: signal {signal} was received");
                    server.stop();
                }
            }
        })?;
    Ok(())
}

/// Once it is known that the daemon serves, its standard output belongs to nobody.
fn leave_stdout() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        use std::os::fd::AsRawFd;
        // SAFETY: both descriptors are open; the old standard output is only written to through its number.
        unsafe { libc::dup2(null.as_raw_fd(), libc::STDOUT_FILENO) };
    }
}
