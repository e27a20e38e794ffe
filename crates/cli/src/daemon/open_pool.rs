//! `OpenPool`: the pool that the daemon holds, open, and the registry's record of it; and how it is opened.
//!
//! Invariant: the record follows every change of the devices, so that the next start finds them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use terrace_control::Failure;
use terrace_device::{Cause, Device, DeviceError};
use terrace_engine::{Engine, EngineError, OpenOptions};
use terrace_pool::{DeviceState, PoolError};
use terrace_store::StoreError;

use super::support::{device_paths, failed};
use crate::machine::{KnownPool, Places, Registry};

/// See the module.
pub struct OpenPool {
    places: Places,
    name: String,
    engine: Arc<Engine>,
}

impl OpenPool {
    /// Holds one that is open.
    pub fn new(places: Places, name: &str, engine: Arc<Engine>) -> Self {
        Self {
            places,
            name: name.into(),
            engine,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What does the work.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Everything that was written is durable afterwards, as of the checkpoint returned.
    pub fn sync(&self) -> Result<u64, Failure> {
        let what = format!("sync pool '{}'", self.name);
        let checkpoint = self.engine.tick().map_err(|error| failed(&what, &error))?;
        let store = self.engine.store();
        store
            .flush(store.newest())
            .map_err(|error| failed(&what, &error))?;
        Ok(checkpoint)
    }

    /// Writes down what it is now.
    pub fn remember(&self) {
        let registry = Registry::new(&self.places);
        let mut known = describe_pool(&self.engine);
        // Until a device of that path is part of the pool again.
        if let Ok(Some(before)) = registry.find(&self.name) {
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
