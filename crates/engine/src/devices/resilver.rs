//! Devices that were away and came back: what they missed is brought to them; and content that lacks copies since a scrub found no
//! room for them.
//!
//! Invariants: which devices are behind stands on the labels until it was looked at everything that may concern them, so that
//! a crash or a restart at any moment begins anew; a copy on such a device is read and verified like any other meanwhile.
//! Where room for the copies that it lacks ran out, it stays behind, and is looked at again when there is more room. So is what a
//! scrub left short, also after a restart: which content that is stands nowhere, but that there is some, in what is kept of the scrub.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use terrace_chunk::ChunkStore;
use terrace_device::Clock;
use terrace_mover::{JobKind, JobState, Mover};
use terrace_pool::{DeviceInfo, DeviceState, Pool, Presence};
use terrace_store::Store;
use terrace_sync::{Mutex, rank};

use super::{names::DeviceNames, resilver_job::ResilverJob};
use crate::{
    EngineError, ScrubStatus,
    floors::Floors,
    integrity::{Integrity, is_behind},
    reporting::{EventLog, describe_outdated},
};

/// After how long it is tried again to take devices back that missed something, nanoseconds.
const NEXT_TRY_NANOSECONDS: u64 = 10_000_000_000;

/// After how long it is tried again at first to find room for what has too few copies, nanoseconds; twice that after each
/// try in vain.
const FIRST_PAUSE_NANOSECONDS: u64 = 60_000_000_000;
/// And at most.
const PAUSE_NANOSECONDS_MAX: u64 = 3_600_000_000_000;
/// Segments that there must be room for beyond what was left when the last try ended: each try reads all that the devices
/// have.
const MORE_ROOM_SEGMENTS: u64 = 2;

/// Room ran out, so that the devices stay behind.
struct Short {
    /// What writers could get then, bytes.
    available_bytes: u64,
    /// Free segments of each tier then: the copies are for one of them, and others may have got fuller meanwhile.
    free_segments: Vec<u64>,
    next_try: u64,
}

/// It missed something while the pool was open, and works.
pub(super) fn is_out_of_step(device: &&DeviceInfo) -> bool {
    matches!(device.presence, Presence::Absent { .. }) && device.state == DeviceState::Online
}

/// See the module.
pub(crate) struct Resilver {
    pool: Arc<Pool>,
    chunks: Arc<ChunkStore>,
    mover: Arc<Mover>,
    clock: Arc<dyn Clock>,
    events: Arc<EventLog>,
    integrity: Arc<Integrity>,
    names: DeviceNames,
    /// The number of the job that is at it, and for which devices.
    running: Mutex<Option<(u64, Vec<u16>)>, rank::engine::Resilver>,
    /// When devices that missed something may be taken back again, nanoseconds of the clock.
    next_try: Mutex<u64, rank::Leaf>,
    /// The last look ended short of room.
    short: Mutex<Option<Short>, rank::engine::ResilverShort>,
    /// The pause before the next try for room, nanoseconds; 0: the first one.
    pause: Mutex<u64, rank::engine::ResilverPause>,
    /// The job that runs, or the last one, could not give everything its copies.
    is_short: Arc<AtomicBool>,
}

impl Resilver {
    pub(super) fn new(
        floors: &Floors,
        integrity: &Arc<Integrity>,
        events: &Arc<EventLog>,
        names: &DeviceNames,
    ) -> Self {
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            mover: floors.mover.clone(),
            clock: floors.clock.clone(),
            events: events.clone(),
            integrity: integrity.clone(),
            names: names.clone(),
            running: Mutex::default(),
            next_try: Mutex::default(),
            short: Mutex::default(),
            pause: Mutex::default(),
            is_short: Arc::default(),
        }
    }

    /// Begins to bring the devices up to date that the labels call behind; does nothing if there are none, or a job is at it.
    pub(super) fn start(&self) -> Result<(), EngineError> {
        let mut running = self.running.lock();
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
        self.look(&mut running, numbers, &reason)
    }

    /// Begins to look for what lacks copies, and at what these devices have.
    fn look(
        &self,
        running: &mut Option<(u64, Vec<u16>)>,
        devices: Vec<u16>,
        reason: &str,
    ) -> Result<(), EngineError> {
        let (lost, is_short) = (self.integrity.lost().clone(), self.is_short.clone());
        let steps = ResilverJob::new(self.chunks.clone(), lost, devices.clone(), is_short);
        self.is_short.store(false, Ordering::Release);
        let job = self.mover.run(JobKind::Resilver, reason, Box::new(steps))?;
        *running = Some((job, devices));
        *self.short.lock() = None;
        self.events.add("device", &format!("{reason} (job {job})"));
        Ok(())
    }

    /// Takes devices back that missed something of the log while the pool was open and work again: the log begins anew, and
    /// what else they missed is brought to them as to those that were away. Cheap while there are none.
    pub(super) fn take_back_out_of_step(&self) -> Result<(), EngineError> {
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
            let mut next_try = self.next_try.lock();
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
        self.start()
    }

    /// Notes the end of the job on the labels. Cheap while there is none.
    pub(super) fn settle(&self) -> Result<(), EngineError> {
        let job = self.running.lock().as_ref().map(|(job, _)| *job);
        let Some(job) = job else {
            return Ok(());
        };
        let has_ended = |state: &Option<(JobState, String)>| matches!(state, Some((JobState::Done, _)));
        let is_kept = has_ended(&self.mover.state_of(job));
        if is_kept {
            // Without the lock, which `status` takes.
            self.keep_completed()?;
        }
        let mut running = self.running.lock();
        let Some((now, devices)) = &*running else {
            return Ok(());
        };
        let state = self.mover.state_of(job);
        // Another one was begun meanwhile, or this one ended: what it wrote is made durable at the next call.
        if *now != job || is_kept != has_ended(&state) {
            return Ok(());
        }
        let mut has_all = false;
        match state {
            Some((JobState::Done, found)) if self.is_short.load(Ordering::Acquire) => {
                self.note_short_of_room();
                self.events
                    .add("device", &format!("not all is up to date yet: {found}"));
            }
            Some((JobState::Done, found)) => {
                *self.pause.lock() = 0;
                has_all = true;
                if devices.is_empty() {
                    self.events
                        .add("scrub", &format!("no content lacks a copy any more: {found}"));
                }
                for device in devices {
                    self.pool.note_whole(*device)?;
                    let path = self.names.path(*device);
                    self.events
                        .add("device", &format!("'{path}' is up to date: {found}"));
                }
            }
            Some((state, _)) if !state.is_over() => return Ok(()),
            // The labels still say so: the next opening, or a scrub, does it.
            _ => {}
        }
        *running = None;
        drop(running);
        if has_all {
            self.integrity.note_completed();
        }
        Ok(())
    }

    /// What was written anew is durable before a label says that nothing is missing: nobody would look for it after a crash.
    fn keep_completed(&self) -> Result<(), EngineError> {
        Ok(self.chunks.flush(self.chunks.newest())?)
    }

    /// Room ran out before everything had its copies: it is tried again when there is more.
    fn note_short_of_room(&self) {
        let mut pause = self.pause.lock();
        *pause = (*pause * 2).clamp(FIRST_PAUSE_NANOSECONDS, PAUSE_NANOSECONDS_MAX);
        let next_try = self.clock.monotonic_nanoseconds().saturating_add(*pause);
        *self.short.lock() = Some(Short {
            available_bytes: self.chunks.space().available_bytes,
            free_segments: self.free_segments(),
            next_try,
        });
    }

    fn free_segments(&self) -> Vec<u64> {
        let tiers = self.pool.tiers().into_iter();
        tiers.map(|tier| tier.free_segments).collect()
    }

    /// The last scrub before the pool was opened left something short of copies: it is looked for once there is room at all.
    pub(super) fn await_room_for_scrubbed(&self) {
        if self.integrity.was_left_short() {
            let now = self.clock.monotonic_nanoseconds();
            *self.short.lock() = Some(Short {
                available_bytes: 0,
                free_segments: Vec::new(),
                next_try: now.saturating_add(FIRST_PAUSE_NANOSECONDS),
            });
        }
    }

    /// Begins anew where room ran out, once there is more. Cheap while there is nothing of that.
    pub(super) fn start_with_more_room(&self) -> Result<(), EngineError> {
        let now = self.clock.monotonic_nanoseconds();
        {
            let mut guard = self.short.lock();
            let Some(short) = guard.as_mut().filter(|short| short.next_try <= now) else {
                return Ok(());
            };
            short.next_try = now.saturating_add(NEXT_TRY_NANOSECONDS);
            let more = MORE_ROOM_SEGMENTS * u64::from(self.pool.segment_bytes());
            let has_more = self.chunks.space().available_bytes >= short.available_bytes.saturating_add(more);
            let mut tiers = self.free_segments().into_iter().zip(&short.free_segments);
            if !has_more && !tiers.any(|(now, then)| now >= then + MORE_ROOM_SEGMENTS) {
                return Ok(());
            }
        }
        if self.pool.devices().iter().any(|device| is_behind(&device)) {
            return self.start();
        }
        let mut running = self.running.lock();
        match *running {
            // It looks for the same.
            Some(_) => Ok(()),
            None => self.look(
                &mut running,
                Vec::new(),
                "giving content the copies that it lacks",
            ),
        }
    }

    /// A scrub of everything has ended, and did what the job would have done for the devices that were behind when it began;
    /// `found`: but for what had no room.
    pub(crate) fn note_scrubbed(
        &self,
        found: &ScrubStatus,
        behind_before: &[u16],
    ) -> Result<(), EngineError> {
        if self.running.lock().is_some() {
            return Ok(());
        }
        let devices = self.pool.devices();
        let behind: Vec<u16> = devices
            .iter()
            .filter(is_behind)
            .map(|device| device.number)
            .collect();
        // A bad copy may be what one of these missed.
        if found.short > 0 || found.unmended > 0 && !behind.is_empty() {
            self.note_short_of_room();
            return Ok(());
        }
        // Of one that came back while it ran, it may have passed over what that lacks.
        let (whole, later): (Vec<u16>, Vec<u16>) = behind
            .into_iter()
            .partition(|number| behind_before.contains(number));
        if later.is_empty() {
            *self.short.lock() = None;
        }
        if !whole.is_empty() {
            self.keep_completed()?;
        }
        whole
            .into_iter()
            .try_for_each(|number| Ok(self.pool.note_whole(number)?))
    }

    /// The job that brings devices up to date, until what follows from its end is done.
    pub(crate) fn job(&self) -> Option<u64> {
        self.running.lock().as_ref().map(|(job, _)| *job)
    }

    /// What `status` says while devices are behind; empty if none is.
    pub(crate) fn describe_behind(&self) -> String {
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
        let running = self.running.lock().as_ref().map(|(job, _)| *job);
        let going_on = match running.and_then(|job| Some((job, self.mover.state_of(job)?.0))) {
            Some((job, JobState::Paused)) => {
                format!("job {job}, which would bring it up to date, is paused: 'terrace jobs resume {job}'")
            }
            Some((job, state)) if !state.is_over() => {
                format!("job {job} brings it up to date, until then some content has one copy less")
            }
            _ if self.short.lock().is_some() => {
                "some content still has one copy less, since there was no room for \
                 it: add a device or delete something, then it is brought up to date by itself"
                    .into()
            }
            _ => format!("'terrace scrub {}' brings it up to date", self.pool.name()),
        };
        let outdated = self.pool.outdated();
        if let Some(old) = behind.iter().find(|device| outdated.contains(&device.number)) {
            return format!("device {}{more}; {going_on}", describe_outdated(&old.path));
        }
        format!("device '{}'{more} came back or is new; {going_on}", first.path)
    }
}
