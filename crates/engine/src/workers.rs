//! The engine's threads: what calls the steps when nobody else does.
//!
//! Invariants: a worker holds only a weak reference to the engine and no lock while it waits; `stop` returns when
//! all have ended; a worker that meets an error says so once and goes on slowly, since others may still succeed.

use std::{
    sync::{Arc, Weak},
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::Engine;

/// Shortest rest of a worker that found nothing to do.
const REST_MIN: Duration = Duration::from_millis(5);
/// Longest.
const REST_MAX: Duration = Duration::from_millis(200);

/// A flag that threads can wait for.
#[derive(Default)]
pub(crate) struct StopFlag {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    /// Waits for at most `time`; true if it was set.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.changed.wait_for(&mut stopped, time);
        }
        *stopped
    }

    pub(crate) fn set(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }
}

/// The running threads.
#[derive(Default)]
pub(crate) struct Workers {
    stop: Arc<StopFlag>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts them.
    pub(crate) fn start(&self, engine: &Arc<Engine>) -> std::io::Result<()> {
        self.spawn("ticker", engine, |engine| match engine.tick() {
            Ok(_) => engine.commit_interval(),
            Err(error) => {
                engine.complain("commit", &error);
                engine.commit_interval().max(Duration::from_secs(1))
            }
        })?;
        let mut rest = REST_MIN;
        self.spawn("store", engine, move |engine| {
            rest = match engine.store_step() {
                Ok(true) => Duration::ZERO,
                Ok(false) => (rest * 2).clamp(REST_MIN, REST_MAX),
                Err(error) => {
                    engine.complain("store", &error);
                    Duration::from_secs(1)
                }
            };
            rest
        })?;
        let mut rest = REST_MIN;
        self.spawn("upkeep", engine, move |engine| {
            rest = match engine.upkeep_step() {
                Ok(true) => Duration::from_micros(200),
                Ok(false) => (rest * 2).clamp(REST_MIN, REST_MAX),
                Err(error) => {
                    engine.complain("upkeep", &error);
                    Duration::from_secs(1)
                }
            };
            rest
        })?;
        self.spawn("mover", engine, |engine| match engine.mover_step() {
            Ok(None) => Duration::ZERO,
            // Looks now and then: a job may have been added by hand.
            Ok(Some(wait)) => wait.clamp(REST_MIN, REST_MAX),
            Err(error) => {
                engine.complain("mover", &error);
                Duration::from_secs(1)
            }
        })?;
        self.spawn("flusher", engine, |engine| match engine.flush_step() {
            Ok(true) => Duration::ZERO,
            Ok(false) => REST_MIN,
            Err(error) => {
                engine.complain("flush", &error);
                Duration::from_millis(500)
            }
        })
    }

    /// A thread that calls `work` and rests for as long as it says.
    fn spawn(
        &self,
        name: &str,
        engine: &Arc<Engine>,
        mut work: impl FnMut(&Engine) -> Duration + Send + 'static,
    ) -> std::io::Result<()> {
        let (stop, engine): (_, Weak<Engine>) = (self.stop.clone(), Arc::downgrade(engine));
        let thread = std::thread::Builder::new()
            .name(format!("terrace-{name}"))
            .spawn(move || {
                let mut rest = REST_MIN;
                while !stop.wait(rest) {
                    let Some(engine) = engine.upgrade() else { return };
                    rest = work(&engine);
                }
            })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Ends them and waits for that. Does nothing the second time.
    pub(crate) fn stop(&self) {
        self.stop.set();
        let threads = std::mem::take(&mut *self.threads.lock());
        let own = std::thread::current().id();
        for thread in threads {
            // The last reference to the engine may be dropped by one of its own threads.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
    }
}
