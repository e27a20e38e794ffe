//! `Engine`: an open pool and everything that runs in it.
//!
//! Invariants: what was acknowledged before [`Engine::close`] returned `Ok` is on the devices; after it nothing is
//! written any more; the threads only call what [`Engine::tick`] and [`Engine::step`] call.

pub use crate::lifecycle::FormatNews;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use terrace_chunk::ChunkStore;
use terrace_dataset::{Datasets, Environment};
use terrace_device::{Clock, Randomness};
use terrace_mover::Mover;
use terrace_pool::{Pool, PoolState};
use terrace_store::Store;

use crate::{
    EngineError,
    background::{Standing, Workers},
    devices::{Leaving, Resilvering},
    integrity::{Losses, Met, Scrub},
    reporting::{Alarms, Entry, Journal, KeepEvents, Ring},
    resident::Resident,
};

/// An open pool. All methods may be called from any thread.
pub struct Engine {
    pub(crate) pool: Arc<Pool>,
    pub(crate) chunks: Arc<ChunkStore>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) datasets: Arc<Datasets>,
    pub(crate) environment: Arc<Environment>,
    pub(crate) mover: Arc<Mover>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) journal: Journal,
    pub(crate) event_keeper: Option<Arc<dyn KeepEvents>>,
    pub(crate) scrub: Scrub,
    pub(crate) leaving: Leaving,
    pub(crate) resilvering: Resilvering,
    pub(crate) losses: Arc<Losses>,
    pub(crate) met: Met,
    pub(crate) randomness: Arc<dyn Randomness>,
    pub(crate) opened_nanoseconds: u64,
    pub(crate) memory_override: Option<u64>,
    pub(crate) commit_interval_milliseconds: AtomicU64,
    pub(crate) device_timeout_milliseconds: AtomicU64,
    /// Since when the copy of the log on a slower device is behind, as far as was seen; 0: it is not.
    pub(crate) behind_since_nanoseconds: AtomicU64,
    /// When it was last looked at which memory can be lent.
    pub(crate) lent_nanoseconds: AtomicU64,
    /// Of a process that serves this pool alone.
    pub(crate) resident: Option<Resident>,
    /// Datasets of which metadata was out of reach when the pool was opened.
    pub(crate) kept_from_changes: Vec<String>,
    pub(crate) turn: AtomicU64,
    pub(crate) workers: Workers,
    pub(crate) closed: AtomicBool,
    /// Whether everything was saved; held while that is tried.
    pub(crate) saved: Mutex<bool>,
    pub(crate) last_complaint: Mutex<String>,
    pub(crate) alarms: Alarms,
}

impl Engine {
    /// Name of the pool.
    pub fn name(&self) -> String {
        self.pool.name()
    }

    /// The pool below.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The same store with its maintenance.
    pub fn chunks(&self) -> &Arc<ChunkStore> {
        &self.chunks
    }

    /// The datasets.
    pub fn datasets(&self) -> &Arc<Datasets> {
        &self.datasets
    }

    /// Caches, budget and heat.
    pub fn environment(&self) -> &Arc<Environment> {
        &self.environment
    }

    /// The mover.
    pub fn mover(&self) -> &Arc<Mover> {
        &self.mover
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Commits and flushes all that was written, and goes on.
    ///
    /// # Errors
    /// `Closed`, and what could not be made durable.
    pub fn save(&self) -> Result<(), EngineError> {
        self.check_open()?;
        Ok(self.datasets.save_all()?)
    }

    /// Commits, flushes and writes a checkpoint, ends the threads. Later calls of other methods fail or do nothing.
    /// After an error it may be called again: it succeeds only when everything is saved.
    ///
    /// # Errors
    /// What could not be made durable.
    pub fn close(&self) -> Result<(), EngineError> {
        let mut saved = self.saved.lock();
        if *saved {
            return Ok(());
        }
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.workers.stop();
            // It may have been met a moment ago.
            self.tell_stopped();
            self.event("closed", "the pool was closed");
            // What users wrote comes first: without its heat the pool is only slower for a while.
            if let Err(error) = self.mover.save() {
                tracing::warn!("the heat of regions was not saved: {error}");
            }
            if let Err(error) = self.keep_scrub() {
                tracing::warn!("how far the scrub is was not saved: {error}");
            }
        }
        self.datasets.save_all()?;
        self.chunks.close()?;
        *saved = true;
        Ok(())
    }

    /// Closes the pool and marks it on the labels, so that only `pool import` takes it up again.
    ///
    /// # Errors
    /// As [`close`](Self::close), and if the labels cannot be written.
    pub fn close_as(&self, state: PoolState) -> Result<(), EngineError> {
        match self.close() {
            // What is destroyed need not be saved, and what cannot be saved could not be destroyed otherwise.
            Err(error) if state == PoolState::Destroyed => {
                tracing::warn!(%error, "a pool that is destroyed could not be saved");
            }
            closed => closed?,
        }
        Ok(self.pool.set_state(state)?)
    }

    pub(crate) fn check_open(&self) -> Result<(), EngineError> {
        if self.closed.load(Ordering::SeqCst) {
            Err(EngineError::Closed)
        } else {
            Ok(())
        }
    }

    /// What decides how long background work rests.
    pub(crate) fn standing(&self) -> Standing {
        Standing {
            now_nanoseconds: self.clock.monotonic_nanoseconds(),
            requests: self.environment.foreground.requests(),
            free_bytes: self.chunks.landing_bytes(),
            is_pressed: self.chunks.is_pressed(),
            courtesy: self.chunks.courtesy(),
        }
    }

    /// Starts a scrub in the background; false if one is running already.
    ///
    /// # Errors
    /// `Closed`.
    pub fn start_scrub(&self) -> Result<bool, EngineError> {
        self.check_open()?;
        let total = self.store.space().stored_bytes;
        let started = self.scrub.start(
            self.clock.now_nanoseconds(),
            self.clock.monotonic_nanoseconds(),
            total,
            &self.pool.devices(),
        );
        if started {
            self.event("scrub", "scrub started");
            // One that cannot be kept is worth having all the same: a device fails, perhaps.
            if let Err(error) = self.keep_scrub_durably() {
                self.complain("scrub", &error);
            }
        }
        Ok(started)
    }

    /// Writes down how far the scrub is, or that none is under way.
    pub(crate) fn keep_scrub(&self) -> Result<(), EngineError> {
        let now = self.clock.monotonic_nanoseconds();
        Ok(self
            .scrub
            .keep_progress(&self.chunks, &self.pool.devices(), now)?)
    }

    /// The same for what was asked for by hand: it outlasts a crash from the moment it is answered.
    pub(crate) fn keep_scrub_durably(&self) -> Result<(), EngineError> {
        self.keep_scrub()?;
        Ok(self.store.flush(self.store.newest())?)
    }

    /// Notes that something happened.
    pub fn event(&self, kind: &str, text: &str) {
        self.journal.add(
            &*self.store,
            Ring::Events,
            self.clock.now_nanoseconds(),
            kind,
            text,
        );
        if let Some(keeper) = &self.event_keeper {
            let unwritten = self.journal.unwritten(Ring::Events);
            if !unwritten.is_empty() {
                keeper.keep(&terrace_pool::format_id(&self.pool.id()), &unwritten);
            }
        }
    }

    /// Takes the events of an earlier run into the pool, that did not take them then.
    pub(crate) fn take_kept_events(&self) {
        let Some(keeper) = &self.event_keeper else { return };
        let id = terrace_pool::format_id(&self.pool.id());
        let kept = keeper.kept(&id);
        if kept.is_empty() {
            return;
        }
        let taken = self.journal.add_kept(&*self.store, Ring::Events, kept);
        // Until they are durable they stay where they are.
        let taken = taken.and_then(|()| self.store.flush(self.store.newest()));
        match taken {
            Ok(()) if self.journal.unwritten(Ring::Events).is_empty() => keeper.keep(&id, &[]),
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "events of an earlier run were not taken into the pool"),
        }
    }

    /// Notes a command that changed the pool.
    pub fn log_command(&self, user: &str, words: &str) {
        self.journal.add(
            &*self.store,
            Ring::Commands,
            self.clock.now_nanoseconds(),
            user,
            words,
        );
    }

    /// Events with a number of at least `from`, oldest first.
    ///
    /// # Errors
    /// What the store says.
    pub fn events(&self, from: u64) -> Result<Vec<Entry>, EngineError> {
        Ok(self.journal.read(&*self.store, Ring::Events, from, usize::MAX)?)
    }

    /// The command log, oldest first.
    ///
    /// # Errors
    /// What the store says.
    pub fn commands(&self) -> Result<Vec<Entry>, EngineError> {
        Ok(self.journal.read(&*self.store, Ring::Commands, 0, usize::MAX)?)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Without a clean close this is a crash: recovery replays the log. Threads must not outlive it.
        self.workers.stop();
    }
}
