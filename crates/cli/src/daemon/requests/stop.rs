//! How a daemon ends its pool: `stop`, and what is said while that is under way or cannot come to its end.
//!
//! Invariants: nothing is taken away from users before all that they wrote until then is saved, unless that is given up by force; of a
//! pool that met an error after which this run saves nothing any more that is said at once and every time, and never that mending
//! something helps.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_engine::EngineError;

use crate::daemon::{Daemon, support::failed};

const BEING_STOPPED: &str = "the pool is being stopped";

impl Daemon {
    /// Refuses what can save nothing any more, and while mounts or devices are in use that would go, or clients are served who are to
    /// be spared.
    pub(crate) fn check_stop(&self, force: bool, spare_clients: bool) -> Result<Value, Failure> {
        if !force {
            self.refuse_unsavable()?;
            // What is to be destroyed may be gone already.
            if !spare_clients {
                self.refuse_final()?;
            }
            self.mounts.refuse_busy()?;
            self.blocks.refuse_stop()?;
            if spare_clients {
                self.blocks.refuse_connected()?;
            }
        }
        Ok(Value::Null)
    }

    /// `stop`: refuses while mounts or devices are in use, unless forced; they are forgotten. Clients of what is served are
    /// disconnected, and keep what they were told is durable; where the pool is to be destroyed, `spare_clients` refuses for
    /// their sake as well. What is given up by force is told in the answer.
    pub(crate) fn stop(&self, force: bool, spare_clients: bool) -> Result<Value, Failure> {
        self.check_stop(force, spare_clients)?;
        // While everything can still be read, and copied elsewhere if need be.
        if !force && !self.closing.load(Ordering::SeqCst) {
            match self.engine.save() {
                // Another one stops it at the same time.
                Ok(()) | Err(EngineError::Closed) => {}
                Err(error) => return Err(self.cannot_save(&error)),
            }
        }
        self.mounts.unmount_all(&self.engine, force)?;
        self.blocks.end_all(force).inspect_err(|_| self.mounts.go_on())?;
        self.remember_pool();
        self.closing.store(true, Ordering::SeqCst);
        let lost = match self.engine.close() {
            Ok(()) => None,
            Err(error) if force => Some(error.to_string()),
            Err(error) => {
                *self.unsaved.lock() = Some(error.to_string());
                return Err(self.cannot_save(&error));
            }
        };
        if let Some(server) = self.server.get() {
            server.stop();
        }
        Ok(json!({ "pool": self.pool, "lost": lost }))
    }

    /// What is said of an error that keeps the pool from being saved.
    fn cannot_save(&self, error: &EngineError) -> Failure {
        if let Err(failure) = self.refuse_unsavable() {
            return failure;
        }
        Failure {
            remedy: format!(
                "mend that and stop again; 'terrace stop {} --force' gives up what is not saved",
                self.pool
            ),
            ..failed(&format!("close pool '{}'", self.pool), error)
        }
    }

    fn refuse_unsavable(&self) -> Result<(), Failure> {
        match self.engine.chunks().stopped() {
            // Closed by another one is not stopped by an error.
            Some(why) if !self.is_closed_well() => {
                Err(self.unsavable(&format!("stop pool '{}'", self.pool), &why))
            }
            _ => Ok(()),
        }
    }

    /// Refuses where closing loses what a device has, since its file was deleted under it.
    fn refuse_final(&self) -> Result<(), Failure> {
        let strays = self.engine.pool().strays();
        let Some((path, stray)) = strays.iter().find(|(_, stray)| stray.is_final()) else {
            return Ok(());
        };
        let pool = &self.pool;
        Err(Failure::new(
            format!("stop pool '{pool}'"),
            format!("device '{path}' is lost then: {stray}"),
            format!("{}; 'terrace stop {pool} --force' gives it up", self.rescue(path)),
        ))
    }

    /// What is done about a device whose file was deleted.
    fn rescue(&self, path: &str) -> String {
        format!(
            "'terrace pool replace {} {path} NEW --wait' moves what is on it to another one while it can be read",
            self.pool
        )
    }

    /// What `status` says of devices that their paths do not lead to any more.
    pub(crate) fn stray_warnings(&self) -> Vec<Failure> {
        let strays = self.engine.pool().strays().into_iter();
        let warnings = strays.map(|(path, stray)| {
            let remedy = match stray.is_final() {
                true => format!("before the pool is stopped {}", self.rescue(&path)),
                false => format!(
                    "move it back, or after 'terrace stop {}' say where it is: 'terrace pool import --search DIRECTORY'",
                    self.pool
                ),
            };
            Failure::new(format!("find device '{path}'"), stray, remedy)
        });
        warnings.collect()
    }

    /// Whether it is being closed, and nothing has kept it from that so far.
    fn is_closed_well(&self) -> bool {
        self.closing.load(Ordering::SeqCst) && self.unsaved.lock().is_none()
    }

    /// What is said of a pool that met an error after which nothing is written any more.
    fn unsavable(&self, what: &str, why: &str) -> Failure {
        let pool = &self.pool;
        Failure::new(
            what,
            format!("writes are refused after an error, and nothing more can be saved in this run: {why}"),
            format!(
                "what fsync made durable is safe; 'terrace stop {pool} --force' ends it without what was written since, then \
                 'terrace start {pool}' opens it again"
            ),
        )
    }

    /// Why the pool takes nothing any more, if it does not.
    pub(crate) fn refusal(&self, what: &str) -> Option<Failure> {
        let pool = &self.pool;
        if self.is_closed_well() {
            let remedy = format!("run 'terrace start {pool}' when it has stopped");
            return Some(Failure::new(what, BEING_STOPPED, remedy));
        }
        if let Some(why) = self.engine.chunks().stopped() {
            return Some(self.unsavable(what, &why));
        }
        let unsaved = self.unsaved.lock().clone()?;
        let why = unsaved.split("; ").next().unwrap_or_default();
        Some(Failure::new(
            what,
            format!("{BEING_STOPPED}, and could not be saved: {why}"),
            format!(
                "mend that and run 'terrace stop {pool}' again ('--force' gives up what is not saved), then 'terrace start {pool}'"
            ),
        ))
    }

    /// A request that failed because the pool was closed under it.
    pub(crate) fn because_it_stops(&self, failure: Failure) -> Failure {
        if failure.usage {
            return failure;
        }
        if !self.is_closed_well() {
            return self.refusal(&failure.what).unwrap_or(failure);
        }
        if failure.why == BEING_STOPPED {
            return failure;
        }
        let remedy = format!("run 'terrace start {}' and do it again", self.pool);
        Failure::new(failure.what, BEING_STOPPED, remedy)
    }
}
