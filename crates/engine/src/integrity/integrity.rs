//! `Integrity`: what was found damaged or lost, and the scrub that looks for it.
//!
//! Invariants: all work is done in bounded steps, which hold no lock while they read; what a command changed of the scrub outlasts a
//! crash from the moment it is answered.

use std::sync::Arc;

use terrace_chunk::ChunkStore;
use terrace_device::Clock;
use terrace_pool::{DeviceState, Pool};
use terrace_store::Store;

use super::{
    damaged_files::DamagedFile,
    lost_files::LostFiles,
    lost_metadata::LostMetadata,
    read_errors::{ReadErrors, both},
    scrub::Scrub,
};
use crate::{
    EngineError, JobStatus, LostStatus, ScrubStatus,
    floors::Floors,
    open_flag::OpenFlag,
    reporting::{Complaints, EventLog, SCRUB_JOB},
};

/// See the module.
pub(crate) struct Integrity {
    pool: Arc<Pool>,
    chunks: Arc<ChunkStore>,
    clock: Arc<dyn Clock>,
    open: Arc<OpenFlag>,
    events: Arc<EventLog>,
    complaints: Arc<Complaints>,
    scrub: Scrub,
    lost: Arc<LostFiles>,
    read_errors: ReadErrors,
    pub(crate) metadata: LostMetadata,
}

/// What a step of the scrub came to.
pub(crate) enum ScrubStep {
    /// There is none, or it rests.
    Idle,
    /// It read a piece, or ended before it had read everything.
    Worked,
    /// It has read everything.
    Done {
        found: Box<ScrubStatus>,
        /// The devices that lacked content when it began, and have it now but for what had no room.
        behind_before: Vec<u16>,
    },
}

impl Integrity {
    /// Of a pool that has just been opened.
    pub(crate) fn new(
        floors: &Floors,
        open: &Arc<OpenFlag>,
        events: &Arc<EventLog>,
        complaints: &Arc<Complaints>,
    ) -> Self {
        let monotonic = floors.clock.monotonic_nanoseconds();
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            clock: floors.clock.clone(),
            open: open.clone(),
            events: events.clone(),
            complaints: complaints.clone(),
            scrub: Scrub::of(&*floors.store, &floors.pool.devices(), monotonic),
            lost: Arc::default(),
            read_errors: ReadErrors::default(),
            metadata: LostMetadata::new(floors, events),
        }
    }

    /// What is known of files that were lost with devices, for the jobs that find out more.
    pub(crate) fn lost(&self) -> &Arc<LostFiles> {
        &self.lost
    }

    /// Starts a scrub in the background; false if one is running already.
    pub(crate) fn start_scrub(&self) -> Result<bool, EngineError> {
        self.open.check()?;
        let total = self.chunks.space().stored_bytes;
        let started = self.scrub.start(
            self.clock.now_nanoseconds(),
            self.clock.monotonic_nanoseconds(),
            total,
            &self.pool.devices(),
        );
        if started {
            self.events.add("scrub", "scrub started");
            // One that cannot be kept is worth having all the same: a device fails, perhaps.
            if let Err(error) = self.keep_progress_durably() {
                self.complaints.add("scrub", &error);
            }
        }
        Ok(started)
    }

    /// Pauses, resumes or cancels the scrub.
    pub(crate) fn change_scrub(&self, action: &str) -> Result<(), EngineError> {
        let now = self.clock.monotonic_nanoseconds();
        let changed = match action {
            "pause" => self.scrub.pause(now),
            "resume" => self.scrub.resume(now),
            _ => self.scrub.cancel(),
        };
        match changed {
            true => self.keep_progress_durably(),
            false => Err(EngineError::Invalid(
                "no scrub is running; 'terrace jobs' lists what runs".into(),
            )),
        }
    }

    /// Writes down how far the scrub is, or that none is under way.
    pub(crate) fn keep_progress(&self) -> Result<(), EngineError> {
        let now = self.clock.monotonic_nanoseconds();
        Ok(self
            .scrub
            .keep_progress(&self.chunks, &self.pool.devices(), now)?)
    }

    /// The same for what was asked for by hand.
    fn keep_progress_durably(&self) -> Result<(), EngineError> {
        self.keep_progress()?;
        Ok(self.chunks.flush(self.chunks.newest())?)
    }

    /// One step of the scrub.
    pub(crate) fn step_scrub(&self, now: u64) -> Result<ScrubStep, EngineError> {
        let stepped = self.scrub.step(&self.chunks, &self.pool.name(), now);
        if stepped.is_err() {
            // It failed. A pool that stopped keeps where it was, and it goes on when that is opened again.
            let _ = self.keep_progress();
        }
        let stepped = stepped?;
        for text in self.scrub.take_untold() {
            self.events.add("device", &text);
        }
        match stepped {
            None => return Ok(ScrubStep::Idle),
            Some(true) => return Ok(self.end_scrub()),
            Some(false) => {}
        }
        if self.scrub.is_keeping_due(now)
            && let Err(error) = self.keep_progress()
        {
            self.complaints.add("scrub", &error);
        }
        Ok(ScrubStep::Worked)
    }

    /// It has just ended, however that came.
    fn end_scrub(&self) -> ScrubStep {
        if let Some(status) = self.scrub.status() {
            let text = format!(
                "scrub {}: {} errors, {} repaired",
                status.state, status.errors, status.repaired
            );
            self.events.add("scrub", &text);
        }
        let (devices, now) = (self.pool.devices(), self.clock.now_nanoseconds());
        self.scrub.keep(&*self.chunks, &devices, now);
        // What it found is in its own list.
        self.lost.look_again();
        let Some(found) = self.scrub.status().filter(|status| status.state == "done") else {
            return ScrubStep::Worked;
        };
        self.read_errors.scrubbed(&self.chunks);
        let short = found.describe_short(&self.pool.name());
        if !short.is_empty() {
            self.events.add("scrub", &short);
        }
        ScrubStep::Done {
            found: Box::new(found),
            behind_before: self.scrub.behind_before(),
        }
    }

    /// One step of the search for the files that lost content; whether there was something to do.
    pub(crate) fn step_search(&self, now: u64) -> bool {
        let pool = self.pool.name();
        let looked = self.lost.step(&self.chunks, &pool, now);
        let met = self.read_errors.step(&self.chunks, &pool, now);
        looked || met
    }

    /// What lacked copies since there was no room for these has them now.
    pub(crate) fn note_completed(&self) {
        if let Err(error) = self.scrub.completed(&*self.chunks) {
            self.complaints.add("scrub", &error.into());
        }
    }

    /// Whether the last scrub ended before the pool was opened, and found no room for copies.
    pub(crate) fn was_left_short(&self) -> bool {
        self.scrub.is_from_before() && self.scrub.is_short()
    }

    /// What is to be told of a scrub that goes on after a restart; empty if there is none.
    pub(crate) fn describe_resumed(&self) -> String {
        self.scrub.describe_resumed()
    }

    /// The running scrub, or the last one that ended.
    pub(crate) fn scrub_status(&self) -> Option<ScrubStatus> {
        self.scrub.status_with(&self.pool.devices())
    }

    /// The scrub as a job, if it began since the pool was opened, or goes on since.
    pub(crate) fn scrub_job(&self) -> Option<JobStatus> {
        let scrub = self.scrub.status().filter(|_| !self.scrub.is_from_before())?;
        Some(JobStatus {
            id: SCRUB_JOB,
            kind: "scrub".into(),
            state: scrub.state,
            reason: format!("asked for by 'terrace scrub'{}", self.scrub.describe_awaited()),
            done_bytes: scrub.done_bytes,
            total_bytes: scrub.total_bytes,
            rate: scrub.rate,
            eta_seconds: scrub.eta_seconds,
            started: scrub.started,
        })
    }

    /// What was lost with devices, and what readers met, in short.
    pub(crate) fn lost_status(&self) -> Option<LostStatus> {
        let mut devices = self.pool.devices().into_iter();
        let gone = devices.any(|device| device.state == DeviceState::Missing || device.cut_off_bytes > 0);
        both(self.lost.status(gone), self.read_errors.status(&self.chunks))
    }

    /// Files with lost content from number `from` on, and whether there are more.
    pub(crate) fn lost_files(&self, from: usize, limit: usize) -> (Vec<DamagedFile>, bool) {
        let (mut others, _) = self.scrub.damaged_files();
        others.extend(self.read_errors.files());
        self.lost.page_with(others, from, limit)
    }

    /// Whether these are surely all that the last scrub found.
    pub(crate) fn all_damaged_are_named(&self) -> bool {
        self.scrub.damaged_files().1
    }
}
