//! How a daemon ends its pool: `stop`, and what is said while that is under way or cannot come to its end.
//!
//! Invariants: nothing is taken away from users before all that they wrote until then is saved, unless that is given up by force; of a
//! pool that met an error after which this run saves nothing any more that is said at once and every time, and never that mending
//! something helps.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use terrace_control::{Failure, Server};
use terrace_engine::EngineError;

use crate::daemon::{blocks::Blocks, mounting::Mounts, open_pool::OpenPool, support::failed};

const BEING_STOPPED: &str = "the pool is being stopped";

/// See the module.
pub(crate) struct Ending {
    server: Arc<Server>,
    /// Set once the pool is being closed.
    closing: AtomicBool,
    /// Why it could not be closed, when that was tried last.
    unsaved: Mutex<Option<String>>,
}

impl Ending {
    /// Not begun. With it `server` ends.
    pub(crate) fn of(server: Arc<Server>) -> Self {
        Self {
            server,
            closing: AtomicBool::new(false),
            unsaved: Mutex::default(),
        }
    }

    /// Whether the pool is being closed: what fails from then on fails for that.
    pub(crate) fn is_begun(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Refuses what can save nothing any more, and while mounts or devices are in use that would go, or clients are served who are to
    /// be spared.
    pub(crate) fn check_stop(
        &self,
        pool: &OpenPool,
        mounts: &Mounts,
        blocks: &Blocks,
        force: bool,
        spare_clients: bool,
    ) -> Result<Value, Failure> {
        if !force {
            self.refuse_unsavable(pool)?;
            // What is to be destroyed may be gone already.
            if !spare_clients {
                refuse_final(pool)?;
            }
            mounts.refuse_busy()?;
            blocks.refuse_stop()?;
            if spare_clients {
                blocks.refuse_connected()?;
            }
        }
        Ok(Value::Null)
    }

    /// `stop`: refuses while mounts or devices are in use, unless forced; they are forgotten. Clients of what is served are
    /// disconnected, and keep what they were told is durable; where the pool is to be destroyed, `spare_clients` refuses for
    /// their sake as well. What is given up by force is told in the answer.
    pub(crate) fn stop(
        &self,
        pool: &OpenPool,
        mounts: &Mounts,
        blocks: &Blocks,
        force: bool,
        spare_clients: bool,
    ) -> Result<Value, Failure> {
        self.check_stop(pool, mounts, blocks, force, spare_clients)?;
        // While everything can still be read, and copied elsewhere if need be.
        if !force && !self.is_begun() {
            match pool.engine().save() {
                // Another one stops it at the same time.
                Ok(()) | Err(EngineError::Closed) => {}
                Err(error) => return Err(self.cannot_save(pool, &error)),
            }
        }
        mounts.unmount_all(pool.engine(), force)?;
        blocks.end_all(force).inspect_err(|_| mounts.go_on())?;
        pool.remember();
        self.closing.store(true, Ordering::SeqCst);
        let lost = match pool.engine().close() {
            Ok(()) => None,
            Err(error) if force => Some(error.to_string()),
            Err(error) => {
                *self.unsaved.lock() = Some(error.to_string());
                return Err(self.cannot_save(pool, &error));
            }
        };
        self.server.stop();
        Ok(json!({ "pool": pool.name(), "lost": lost }))
    }

    /// What is said of an error that keeps the pool from being saved.
    fn cannot_save(&self, pool: &OpenPool, error: &EngineError) -> Failure {
        if let Err(failure) = self.refuse_unsavable(pool) {
            return failure;
        }
        Failure {
            remedy: format!(
                "mend that and stop again; 'terrace stop {} --force' gives up what is not saved",
                pool.name()
            ),
            ..failed(&format!("close pool '{}'", pool.name()), error)
        }
    }

    fn refuse_unsavable(&self, pool: &OpenPool) -> Result<(), Failure> {
        match pool.engine().chunks().stopped() {
            // Closed by another one is not stopped by an error.
            Some(why) if !self.is_closed_well() => {
                Err(unsavable(pool, &format!("stop pool '{}'", pool.name()), &why))
            }
            _ => Ok(()),
        }
    }

    /// Whether it is being closed, and nothing has kept it from that so far.
    fn is_closed_well(&self) -> bool {
        self.is_begun() && self.unsaved.lock().is_none()
    }

    /// Why the pool takes nothing any more, if it does not.
    pub(crate) fn refusal(&self, pool: &OpenPool, what: &str) -> Option<Failure> {
        let name = pool.name();
        if self.is_closed_well() {
            let remedy = format!("run 'terrace start {name}' when it has stopped");
            return Some(Failure::new(what, BEING_STOPPED, remedy));
        }
        if let Some(why) = pool.engine().chunks().stopped() {
            return Some(unsavable(pool, what, &why));
        }
        let unsaved = self.unsaved.lock().clone()?;
        let why = unsaved.split("; ").next().unwrap_or_default();
        Some(Failure::new(
            what,
            format!("{BEING_STOPPED}, and could not be saved: {why}"),
            format!(
                "mend that and run 'terrace stop {name}' again ('--force' gives up what is not saved), then 'terrace start {name}'"
            ),
        ))
    }

    /// A request that failed because the pool was closed under it.
    pub(crate) fn because_it_stops(&self, pool: &OpenPool, failure: Failure) -> Failure {
        if failure.usage {
            return failure;
        }
        if !self.is_closed_well() {
            return self.refusal(pool, &failure.what).unwrap_or(failure);
        }
        if failure.why == BEING_STOPPED {
            return failure;
        }
        let remedy = format!("run 'terrace start {}' and do it again", pool.name());
        Failure::new(failure.what, BEING_STOPPED, remedy)
    }

    /// Unmounts (by force: nobody is left to ask) and closes.
    pub(crate) fn shut_down(&self, pool: &OpenPool, mounts: &Mounts, blocks: &Blocks) -> Result<(), Failure> {
        blocks.end_all_by_force();
        mounts.unmount_all_by_force();
        pool.remember();
        self.closing.store(true, Ordering::SeqCst);
        let outcome = pool
            .engine()
            .close()
            .map_err(|error| failed(&format!("close pool '{}'", pool.name()), &error));
        match &outcome {
            Ok(()) => tracing::info!("pool '{}' is closed", pool.name()),
            Err(failure) => tracing::error!("{failure}"),
        }
        outcome
    }
}

/// Refuses where closing loses what a device has, since its file was deleted under it.
fn refuse_final(pool: &OpenPool) -> Result<(), Failure> {
    let strays = pool.engine().pool().strays();
    let Some((path, stray)) = strays.iter().find(|(_, stray)| stray.is_final()) else {
        return Ok(());
    };
    let name = pool.name();
    Err(Failure::new(
        format!("stop pool '{name}'"),
        format!("device '{path}' is lost then: {stray}"),
        format!(
            "{}; 'terrace stop {name} --force' gives it up",
            rescue(pool, path)
        ),
    ))
}

/// What is done about a device whose file was deleted.
fn rescue(pool: &OpenPool, path: &str) -> String {
    format!(
        "'terrace pool replace {} {path} NEW --wait' moves what is on it to another one while it can be read",
        pool.name()
    )
}

/// What `status` says of devices that their paths do not lead to any more.
pub(crate) fn stray_warnings(pool: &OpenPool) -> Vec<Failure> {
    let strays = pool.engine().pool().strays().into_iter();
    let warnings = strays.map(|(path, stray)| {
        let remedy = match stray.is_final() {
            true => format!("before the pool is stopped {}", rescue(pool, &path)),
            false => format!(
                "move it back, or after 'terrace stop {}' say where it is: 'terrace pool import --search DIRECTORY'",
                pool.name()
            ),
        };
        Failure::new(format!("find device '{path}'"), stray, remedy)
    });
    warnings.collect()
}

/// What is said of a pool that met an error after which nothing is written any more.
fn unsavable(pool: &OpenPool, what: &str, why: &str) -> Failure {
    let name = pool.name();
    Failure::new(
        what,
        format!("writes are refused after an error, and nothing more can be saved in this run: {why}"),
        format!(
            "what fsync made durable is safe; 'terrace stop {name} --force' ends it without what was written since, then \
             'terrace start {name}' opens it again"
        ),
    )
}
