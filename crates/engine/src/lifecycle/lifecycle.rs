//! `Lifecycle`: what happens when a pool has been opened, and when it is closed.
//!
//! Invariants: what was acknowledged before [`Lifecycle::close`] returned `Ok` is on the devices; after it nothing is written any more;
//! nothing runs in a thread before the settings that the pool keeps are in force, nor when this was dropped.

use std::sync::Arc;

use terrace_chunk::ChunkStore;
use terrace_dataset::{Datasets, Environment};
use terrace_mover::Mover;
use terrace_pool::{Pool, PoolState};
use terrace_sync::{Mutex, rank};

use crate::{
    EngineError,
    background::{Clockwork, Workers},
    devices::DeviceManager,
    floors::Floors,
    integrity::Integrity,
    open_flag::OpenFlag,
    reporting::{Alarms, EventLog, LOST_TAIL, describe_abandoned_tail},
};

/// See the module.
pub(crate) struct Lifecycle {
    pub(super) pool: Arc<Pool>,
    pub(super) chunks: Arc<ChunkStore>,
    pub(super) datasets: Arc<Datasets>,
    pub(super) environment: Arc<Environment>,
    pub(super) mover: Arc<Mover>,
    pub(super) open: Arc<OpenFlag>,
    pub(super) events: Arc<EventLog>,
    alarms: Arc<Alarms>,
    integrity: Arc<Integrity>,
    devices: Arc<DeviceManager>,
    pub(super) clockwork: Arc<Clockwork>,
    workers: Workers,
    /// Takes the place of the `memory` property.
    pub(super) memory_override: Option<u64>,
    /// Whether everything was saved; held while that is tried.
    saved: Mutex<bool, rank::engine::Saved>,
}

impl Lifecycle {
    /// Of a pool that has just been opened; nothing goes on yet.
    pub(crate) fn new(
        floors: &Floors,
        open: &Arc<OpenFlag>,
        reports: (&Arc<EventLog>, &Arc<Alarms>),
        integrity: &Arc<Integrity>,
        devices: &Arc<DeviceManager>,
        clockwork: &Arc<Clockwork>,
        memory_override: Option<u64>,
    ) -> Self {
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            datasets: floors.datasets.clone(),
            environment: floors.environment.clone(),
            mover: floors.mover.clone(),
            open: open.clone(),
            events: reports.0.clone(),
            alarms: reports.1.clone(),
            integrity: integrity.clone(),
            devices: devices.clone(),
            clockwork: clockwork.clone(),
            workers: Workers::default(),
            memory_override,
            saved: Mutex::default(),
        }
    }

    /// Puts in force what the pool keeps, goes on with what was under way, and starts the threads if there are to be any.
    pub(crate) fn begin(&self, new: bool, threads: bool) -> Result<(), EngineError> {
        // They come before what this opening tells.
        self.events.take_kept();
        self.devices.tiers.apply();
        self.recall_cleared_heat();
        self.apply_properties();
        self.devices.resume();
        if let Some(cause) = self.chunks.given_up() {
            self.events.add("lost", &describe_abandoned_tail(cause));
        }
        if self.chunks.end_without().is_some() {
            self.events.add("lost", LOST_TAIL);
        }
        self.alarms.report_opened(new);
        let going_on = self.integrity.describe_resumed();
        if !going_on.is_empty() {
            self.events.add("scrub", &going_on);
        }
        if !threads {
            let others = Arc::downgrade(&self.clockwork);
            self.environment.clock.drive_with(Arc::new(move || {
                if let Some(clockwork) = others.upgrade() {
                    clockwork.stand_in_for_threads();
                }
            }));
            return Ok(());
        }
        self.workers
            .start(&self.clockwork, &self.environment.read_ahead)
            .map_err(|error| EngineError::Invalid(format!("start threads: {error}")))
    }

    /// Commits and flushes all that was written, and goes on.
    pub(crate) fn save(&self) -> Result<(), EngineError> {
        self.open.check()?;
        Ok(self.datasets.save_all()?)
    }

    /// Commits, flushes and writes a checkpoint, ends the threads. After an error it may be called again: it succeeds only when
    /// everything is saved.
    pub(crate) fn close(&self) -> Result<(), EngineError> {
        let mut saved = self.saved.lock();
        if *saved {
            return Ok(());
        }
        if self.open.close() {
            self.workers.stop();
            // It may have been met a moment ago.
            self.alarms.report_stopped();
            self.events.add("closed", "the pool was closed");
            // What users wrote comes first: without its heat the pool is only slower for a while.
            if let Err(error) = self.mover.save() {
                tracing::warn!("the heat of regions was not saved: {error}");
            }
            if let Err(error) = self.integrity.keep_progress() {
                tracing::warn!("how far the scrub is was not saved: {error}");
            }
        }
        self.datasets.save_all()?;
        self.chunks.close()?;
        *saved = true;
        Ok(())
    }

    /// The same, and marks it on the labels.
    pub(crate) fn close_as(&self, state: PoolState) -> Result<(), EngineError> {
        match self.close() {
            // What is destroyed need not be saved, and what cannot be saved could not be destroyed otherwise.
            Err(error) if state == PoolState::Destroyed => {
                tracing::warn!(%error, "a pool that is destroyed could not be saved");
            }
            closed => closed?,
        }
        Ok(self.pool.set_state(state)?)
    }
}

impl Drop for Lifecycle {
    fn drop(&mut self) {
        // Without a clean close this is a crash: recovery replays the log. Threads must not outlive it.
        self.workers.stop();
    }
}
