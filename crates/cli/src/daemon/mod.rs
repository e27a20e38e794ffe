//! The daemon: holds one pool, serves its control socket and its mounts.
//!
//! Invariants: it serves only while it holds the pool's lock and has its devices open; it ends only after
//! everything was unmounted (or given up by force) and the pool was closed; what it was asked to mount, attach or
//! serve is written down before it is done, so that a killed daemon's mounts, devices and services come back.

mod blocks;
mod mounting;
mod requests;
mod support;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use terrace_control::{CONNECTIONS_MAX, Exchange, Failure, Handler, ProcessId, Request, RunLock, Server};
use terrace_device::{Cause, Device, DeviceError};
use terrace_engine::{Engine, EngineError, OpenOptions, Unwritten};
use terrace_pool::{DeviceState, PoolError};
use terrace_store::StoreError;

pub use crate::daemon::support::{device_paths, failed as failure_of};
use crate::{
    client::{Accepted, Readiness, launch},
    crash::{Crashes, Watch},
    daemon::support::{Parameters, failed},
    machine::{KeptEvents, KnownPool, Places, Registry},
};
use blocks::Blocks;
pub use blocks::clear_dead as clear_dead_blocks;
use mounting::Mounts;

/// How long open requests may take to end after `stop`.
const PATIENCE: Duration = Duration::from_secs(10);

/// The daemon of one pool.
pub struct Daemon {
    places: Places,
    pool: String,
    engine: Arc<Engine>,
    mounts: Mounts,
    blocks: Blocks,
    server: OnceLock<Arc<Server>>,
    /// Set once the pool is being closed: what fails from then on fails for that.
    closing: AtomicBool,
    /// Why it could not be closed, when that was tried last.
    unsaved: Mutex<Option<String>>,
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
    let closed = daemon.shut_down();
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
        server: OnceLock::new(),
        closing: AtomicBool::new(false),
        unsaved: Mutex::default(),
        last_run,
        pool: pool.into(),
        engine,
        places: places.clone(),
    });
    let _ = daemon.server.set(server.clone());
    daemon.remember_pool();
    daemon.mounts.restore(&daemon.engine);
    daemon.mounts.follow_table();
    daemon.blocks.restore(&daemon.engine);
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

/// How long a device may stay held by a process that is going away.
const LEAVING: Duration = Duration::from_secs(2);

/// Opens a device; while another process holds it, tries again for a moment: a daemon that was stopped or killed lets
/// go of its files one after the other, of its devices last.
pub fn open_when_free(path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
    let deadline = Instant::now() + LEAVING;
    loop {
        match terrace_device::open_path(path) {
            Err(error) if error.cause == Cause::InUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
}

/// Opens a known pool's devices, wherever they were last.
pub fn open_pool(known: &KnownPool, options: OpenOptions) -> Result<Arc<Engine>, Failure> {
    let what = format!("open pool '{}'", known.name);
    let (degraded, rewind) = (options.degraded, options.rewind);
    let mut devices = Vec::new();
    let paths = device_paths(known);
    for (at, path) in paths.iter().enumerate() {
        match open_when_free(path) {
            Ok(device) => devices.push(device),
            Err(error) if degraded => tracing::warn!("opening without device '{}': {error}", path.display()),
            Err(error) => {
                let without = format!("'terrace start {} --degraded'", known.name);
                let remedy = match error.cause {
                    Cause::InUse => format!(
                        "'fuser -v {}' names it, perhaps a daemon of this very pool that another state directory knows; if it is none, \
                         {without} opens the pool without that device",
                        path.display()
                    ),
                    _ if path.exists() => format!("mend that, or start without it: {without}"),
                    _ => format!(
                        "if it has moved, run 'terrace pool import --search DIRECTORY'; if it is gone, {without} opens the pool \
                         without it"
                    ),
                };
                let others = paths[at + 1..].iter().filter(|path| !path.exists()).count();
                let why = match others {
                    0 => error.to_string(),
                    others => format!("{error}, and {others} more of its devices are not there"),
                };
                return Err(Failure::new(what, why, remedy));
            }
        }
    }
    if devices.is_empty() {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(Failure::new(
            what,
            format!("none of its devices can be opened: {}", paths.join(", ")),
            format!(
                "connect one of them and type 'terrace start {} --degraded', or say where they are now: 'terrace pool import --search \
                 DIRECTORY'",
                known.name
            ),
        ));
    }
    let engine = Engine::open(devices, options).map_err(|error| {
        let mut failure = failed(&what, &error);
        let damaged = matches!(
            error,
            EngineError::Store(StoreError::DamagedMetadata(_)) | EngineError::Pool(PoolError::NoRoot(_))
        );
        if damaged {
            let name = &known.name;
            let going_back = match rewind {
                true => String::new(),
                false => format!(
                    "'terrace start {name} --rewind -n' whether the last state before that can be opened and what that gives up, "
                ),
            };
            failure.remedy = format!(
                "'terrace verify {name}' says what is damaged and changes nothing, {going_back}'terrace verify {name} --rebuild NEWPOOL' \
                 saves what can be saved"
            );
        } else if degraded && failure.remedy.is_empty() {
            // What is there is too little.
            failure.remedy = format!(
                "bring the devices back and type 'terrace start {name}', or save what is left with 'terrace verify {name} --rebuild \
                 NEWPOOL'",
                name = known.name
            );
        }
        failure
    })?;
    let id = terrace_pool::format_id(&engine.pool().id());
    if id != known.id {
        return Err(Failure::new(
            what,
            format!("the devices hold another pool, with id {id}, not {}", known.id),
            "run 'terrace pool import --search DIRECTORY' to find the right ones",
        ));
    }
    Ok(engine)
}

/// What is known of an open pool.
pub fn describe_pool(engine: &Engine) -> KnownPool {
    let space = engine.store().space();
    let devices = engine.pool().devices();
    KnownPool {
        name: engine.name(),
        id: terrace_pool::format_id(&engine.pool().id()),
        devices: devices.iter().map(|device| PathBuf::from(&device.path)).collect(),
        left_out: Vec::new(),
        size_bytes: space.size_bytes,
        used_bytes: space.used_bytes,
        format_version: engine.format_version(),
    }
}

impl Daemon {
    fn remember_pool(&self) {
        let registry = Registry::new(&self.places);
        let mut known = describe_pool(&self.engine);
        // Until a device of that path is part of the pool again.
        if let Ok(Some(before)) = registry.find(&self.pool) {
            let is_missing = |path: &PathBuf| {
                let devices = self.engine.pool().devices();
                let mut there = devices
                    .iter()
                    .filter(|device| device.state != DeviceState::Missing);
                !there.any(|device| Path::new(&device.path) == path)
            };
            known.left_out = before.left_out.into_iter().filter(is_missing).collect();
        }
        if let Err(failure) = registry.save(&known) {
            tracing::warn!("{failure}");
        }
    }

    /// Unmounts (by force: nobody is left to ask) and closes.
    fn shut_down(&self) -> Result<(), Failure> {
        self.blocks.end_all_by_force();
        self.mounts.unmount_all_by_force();
        self.remember_pool();
        self.closing.store(true, Ordering::SeqCst);
        let outcome = self
            .engine
            .close()
            .map_err(|error| failed(&format!("close pool '{}'", self.pool), &error));
        match &outcome {
            Ok(()) => tracing::info!("pool '{}' is closed", self.pool),
            Err(failure) => tracing::error!("{failure}"),
        }
        outcome
    }
}

impl Handler for Daemon {
    fn alive(&self) -> Value {
        json!({ "silent_devices": self.engine.silent_devices() })
    }

    fn crowded(&self) -> Failure {
        let cause = format!("{CONNECTIONS_MAX} commands run at once already");
        match self.engine.silent_devices().first() {
            Some(device) => Failure::new(
                "serve the request",
                format!("{cause}, and wait as the device '{device}' does not answer"),
                launch::silence_remedy(&self.pool),
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
            Err(failure) if !closes && self.closing.load(Ordering::SeqCst) => {
                Err(self.because_it_stops(failure))
            }
            outcome => outcome,
        }
    }
}

impl Daemon {
    /// Of a full pool, also what takes room there and is in no list of files or snapshots.
    fn with_what_takes_room(&self, mut failure: Failure) -> Failure {
        if failure.why.contains("the pool is full") {
            let more = [self.engine.set_aside_in_words(), self.engine.retained_in_words()];
            for words in more.iter().filter(|words| !words.is_empty()) {
                failure.remedy = format!("{}; {words}", failure.remedy);
            }
        }
        failure
    }

    fn log_command(&self, parameters: &Parameters) -> Result<(), Failure> {
        if let Some(words) = parameters.optional_text("command_line")? {
            let user = parameters.optional_text("user")?.unwrap_or_default();
            self.engine.log_command(&user, &words);
        }
        Ok(())
    }

    /// A sign of life, with what should be mounted, attached or served and is not; `retry` tries that again first. A pool that takes
    /// nothing any more says why.
    fn ping(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let refuses = self.refusal(&format!("start pool '{}'", self.pool));
        if parameters.flag("retry")? && refuses.is_none() {
            self.mounts.restore(&self.engine);
            self.blocks.restore(&self.engine);
        }
        let not_restored = self.not_restored();
        Ok(
            json!({ "pool": self.pool, "pid": std::process::id(), "not_restored": not_restored, "refuses": refuses }),
        )
    }

    /// What should be mounted, attached or served and is not.
    fn not_restored(&self) -> Vec<Value> {
        let missing = self.mounts.missing().into_iter().chain(self.blocks.missing());
        missing.map(|missing| missing.row(&self.pool)).collect()
    }

    fn perform(&self, parameters: &Parameters, exchange: &mut Exchange) -> Result<Value, Failure> {
        match parameters.operation() {
            "ping" => self.ping(parameters),
            "check_stop" => self.check_stop(parameters.flag("force")?, parameters.flag("spare_clients")?),
            "stop" => self.stop(parameters.flag("force")?, parameters.flag("spare_clients")?),
            "status" => Ok(self.with_blocks(support::answers::encode(&self.status())?)),
            "io_counters" => support::answers::encode(&self.engine.io_counters()),
            "events" => self.events(parameters, exchange),
            "command_log" => self.command_log(),
            "jobs" => support::answers::encode(&self.engine.jobs()),
            "job_action" => self.job_action(parameters),
            "scrub" => self.scrub(parameters, exchange),
            "compact" => self.compact(parameters, exchange),
            "plan_compact" => self.plan_compact(),
            "lost" => self.lost(parameters),
            "device_add" => self.device_add(parameters),
            "device_leave" => self.device_leave(parameters, exchange),
            "device_replace" => self.device_replace(parameters, exchange),
            "device_resize" => self.device_resize(parameters, exchange),
            "sync" => self.sync(),
            "pool_properties" => Ok(self.pool_properties()),
            "format" => Ok(self.format()),
            "upgrade" => self.upgrade(),
            "pool_set" => self.pool_set(parameters),
            "tiers" => Ok(self.tiers()),
            "tier_set" => self.tier_set(parameters),
            "list" => self.list(parameters),
            "create" => self.create(parameters),
            "plan_resize" => self.plan_resize(parameters),
            "resize" => self.resize(parameters),
            "get_properties" => self.get_properties(parameters),
            "set_properties" => self.set_properties(parameters),
            "inherit" => self.inherit(parameters),
            "rename" => self.rename(parameters),
            "destroy" => self.destroy(parameters),
            "snapshot" => self.snapshot(parameters),
            "mount" => self.mounts.mount(&self.engine, parameters),
            "unmount" => self.mounts.unmount(parameters),
            "attach" => self.blocks.attach(&self.engine, parameters),
            "detach" => self.blocks.detach(parameters),
            "serve" => self.blocks.serve(&self.engine, parameters),
            "unserve" => self.blocks.unserve(parameters),
            "mounts" => Ok(self.mounts.rows()),
            "ls" => self.ls(parameters, exchange),
            "cat" => self.cat(parameters, exchange),
            "get_tree" => self.get_tree(parameters, exchange),
            "put_tree" => self.put_tree(parameters, exchange),
            "where" => self.where_is(parameters),
            "regions" => self.regions(parameters),
            "tier_devices" => self.tier_devices(),
            "what_if" => self.what_if(parameters),
            "clear_heat" => self.clear_heat(),
            "plan_clear_heat" => Ok(self.plan_clear_heat()),
            "dataset_heat" => self.dataset_heat(),
            "placement" => self.placement(parameters, exchange),
            "hold" => self.hold(parameters),
            "prune" => self.prune(parameters),
            // Asked for by tests of what is told of it; who may ask could kill the daemon as well.
            "debug_panic" => panic!("asked for by 'terrace debug panic'"),
            other => Err(Failure::new(
                format!("do '{other}'"),
                "this daemon does not know it",
                format!("restart it with 'terrace stop {}' after the upgrade", self.pool),
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
