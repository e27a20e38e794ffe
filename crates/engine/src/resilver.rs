//! Devices that were away and came back: what they missed is brought to them.
//!
//! Invariants: which devices are behind stands on the labels until it was looked at everything that may concern them, so that
//! a crash or a restart at any moment begins anew; a copy on such a device is read and verified like any other meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;
use terrace_chunk::{ChunkStore, ScrubCursor};
use terrace_mover::{JobKind, JobState, StoreSteps, StoreWork};
use terrace_pool::{DeviceInfo, DeviceState, Presence};
use terrace_store::StoreError;

use crate::{Engine, EngineError, losses::Losses};

/// How often it is tried to find room for what has too few copies, about a second apart.
const TRIES_MAX: u32 = 30;

/// After how long it is tried again to take devices back that missed something, nanoseconds.
const NEXT_TRY_NANOSECONDS: u64 = 10_000_000_000;

/// The job that is at it.
#[derive(Default)]
pub(crate) struct Resilvering {
    /// Its number, and for which devices.
    running: Mutex<Option<(u64, Vec<u16>)>>,
    /// When devices that missed something may be taken back again, nanoseconds of the clock.
    next_try: Mutex<u64>,
}

/// The steps of the job.
struct Resilver {
    chunks: Arc<ChunkStore>,
    losses: Arc<Losses>,
    devices: Vec<u16>,
    cursor: ScrubCursor,
    read_bytes: u64,
    /// Read by earlier tries, bytes.
    before_bytes: u64,
    completed: u64,
    repaired: u64,
    damaged: u64,
    short: u64,
    tries: u32,
}

impl Resilver {
    fn in_words(&self) -> String {
        let mut text = format!("{} copies written anew", self.completed + self.repaired);
        if self.damaged > 0 {
            text.push_str(&format!(
                ", {} chunks have no good copy ('terrace scrub' names the files)",
                self.damaged
            ));
        }
        if self.short > 0 {
            text.push_str(&format!(
                ", {} chunks still have fewer copies than their tier keeps, since there is no room: add a device or delete \
                 something, then run 'terrace scrub'",
                self.short
            ));
        }
        text
    }
}

impl StoreSteps for Resilver {
    fn step(&mut self, budget_bytes: u64) -> Result<StoreWork, StoreError> {
        let progress = self.chunks.scrub_step(&mut self.cursor, budget_bytes)?;
        self.completed += progress.completed;
        self.repaired += progress.repaired;
        self.damaged += (progress.damaged.len() + progress.damaged_metadata.len()) as u64;
        self.short += progress.short;
        let done = self.before_bytes + progress.done_bytes;
        let bytes = done.saturating_sub(self.read_bytes);
        self.read_bytes = done;
        let mut work = StoreWork {
            bytes,
            total_bytes: self.before_bytes + progress.total_bytes,
            finished: progress.finished,
            waits: false,
            note: None,
        };
        // Metadata that was written meanwhile lies on one device only.
        let mirrored = !progress.finished || self.chunks.mirror_now()?;
        if (!mirrored || self.short > 0) && self.tries < TRIES_MAX {
            // What was stored anew leaves room behind, once that is durable.
            (self.tries, self.before_bytes) = (self.tries + 1, done);
            (self.short, self.damaged) = (0, 0);
            self.cursor = ScrubCursor::only(self.devices.clone());
            (work.finished, work.waits) = (false, true);
        }
        if work.finished {
            work.note = Some(self.in_words());
            self.losses.look_again();
        }
        Ok(work)
    }
}

/// It missed something while the pool was open, and works.
pub(crate) fn is_out_of_step(device: &&DeviceInfo) -> bool {
    matches!(device.presence, Presence::Absent { .. }) && device.state == DeviceState::Online
}

fn is_behind(device: &&DeviceInfo) -> bool {
    device.presence == Presence::Behind && device.state != DeviceState::Missing
}

impl Engine {
    /// Begins to bring the devices up to date that the labels call behind; does nothing if there are none, or a job is at it.
    pub(crate) fn start_resilver(&self) -> Result<(), EngineError> {
        let mut running = self.resilvering.running.lock();
        let devices = self.pool.devices();
        let behind: Vec<&DeviceInfo> = devices.iter().filter(is_behind).collect();
        let numbers: Vec<u16> = behind.iter().map(|device| device.number).collect();
        if let Some((job, known)) = &*running {
            let ended = self.mover.state_of(*job).is_none_or(|(state, _)| state.is_over());
            if !ended && numbers.iter().all(|number| known.contains(number)) {
                return Ok(());
            }
            if !ended {
                // Begun anew with the one that came later.
                self.mover.cancel(*job)?;
            }
        }
        *running = None;
        if behind.is_empty() {
            return Ok(());
        }
        let paths: Vec<String> = behind.iter().map(|device| format!("'{}'", device.path)).collect();
        let reason = format!("bringing {} up to date", paths.join(" and "));
        let steps = Resilver {
            chunks: self.chunks.clone(),
            losses: self.losses.clone(),
            devices: numbers.clone(),
            cursor: ScrubCursor::only(numbers.clone()),
            read_bytes: 0,
            before_bytes: 0,
            completed: 0,
            repaired: 0,
            damaged: 0,
            short: 0,
            tries: 0,
        };
        let job = self.mover.run(JobKind::Resilver, &reason, Box::new(steps))?;
        *running = Some((job, numbers));
        self.event("device", &format!("{reason} (job {job})"));
        Ok(())
    }

    /// Takes devices back that missed something of the log while the pool was open and work again: the log begins anew, and
    /// what else they missed is brought to them as to those that were away. Cheap while there are none.
    pub(crate) fn take_back_out_of_step(&self) -> Result<(), EngineError> {
        let devices = self.pool.devices();
        let numbers: Vec<u16> = devices
            .iter()
            .filter(is_out_of_step)
            .map(|device| device.number)
            .collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let now = self.clock.monotonic_nanoseconds();
        {
            let mut next_try = self.resilvering.next_try.lock();
            if *next_try > now {
                return Ok(());
            }
            *next_try = now + NEXT_TRY_NANOSECONDS;
        }
        let lacks = |device: &u16| !self.chunks.has_whole_log(*device);
        if numbers.iter().any(lacks) {
            self.chunks.begin_log_anew()?;
        }
        let whole: Vec<u16> = numbers.into_iter().filter(|device| !lacks(device)).collect();
        self.pool.take_back(&whole)?;
        // What came between the question and the answer was forgotten with what had been noted before.
        let lacking = whole.iter().filter(|device| lacks(device));
        lacking.for_each(|device| self.pool.note_lacking(*device));
        self.start_resilver()
    }

    /// Notes the end of the job on the labels. Cheap while there is none.
    pub(crate) fn settle_resilver(&self) -> Result<(), EngineError> {
        let mut running = self.resilvering.running.lock();
        let Some((job, devices)) = &*running else {
            return Ok(());
        };
        match self.mover.state_of(*job) {
            Some((JobState::Done, found)) => {
                for device in devices {
                    self.pool.note_whole(*device)?;
                    let path = self.device_path(*device);
                    self.event("device", &format!("'{path}' is up to date: {found}"));
                }
            }
            Some((state, _)) if !state.is_over() => return Ok(()),
            // The labels still say so: the next opening, or a scrub, does it.
            _ => {}
        }
        *running = None;
        Ok(())
    }

    /// A scrub of everything has ended, and did what the job would have done.
    pub(crate) fn scrubbed_all(&self) -> Result<(), EngineError> {
        if self.resilvering.running.lock().is_some() {
            return Ok(());
        }
        let devices = self.pool.devices();
        let mut behind = devices.iter().filter(is_behind);
        behind.try_for_each(|device| Ok(self.pool.note_whole(device.number)?))
    }

    /// What `status` says while devices are behind; empty if none is.
    pub(crate) fn behind_in_words(&self) -> String {
        let devices = self.pool.devices();
        if let Some(device) = devices.iter().find(is_out_of_step) {
            let pool = self.pool.name();
            return format!(
                "device '{}' missed something and is brought up to date as soon as there is room for it; 'terrace stop {pool}' and \
                 'terrace start {pool}' do that too",
                device.path
            );
        }
        let behind: Vec<&DeviceInfo> = devices.iter().filter(is_behind).collect();
        let Some(first) = behind.first() else {
            return String::new();
        };
        let more = match behind.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        let running = self.resilvering.running.lock().as_ref().map(|(job, _)| *job);
        let going_on = match running.and_then(|job| Some((job, self.mover.state_of(job)?.0))) {
            Some((job, JobState::Paused)) => {
                format!("job {job}, which would bring it up to date, is paused: 'terrace jobs resume {job}'")
            }
            Some((job, state)) if !state.is_over() => {
                format!("job {job} brings it up to date, until then some content has one copy less")
            }
            _ => format!("'terrace scrub {}' brings it up to date", self.pool.name()),
        };
        format!("device '{}'{more} came back or is new; {going_on}", first.path)
    }
}
