//! Devices that are being emptied: the intention, the job that does it, and what happens when it ends.
//!
//! Invariants: the intention is on the labels ([`Goals`]), written before the job starts and removed after the job failed or was
//! cancelled or the device is gone, so that a restart at any moment goes on with it; a device is taken out, or its end cut off, only
//! when nothing is on it, or when whoever asked gave up what cannot be read. Locks, in order: settling, wanted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use terrace_chunk::{ChunkStore, EvacuateCursor};
use terrace_device::{Clock, format_size};
use terrace_mover::{JobState, Mover, MoverError};
use terrace_pool::{DeviceState, Pool, SegmentRange};
use terrace_store::Store;
use terrace_sync::{Mutex, rank};

use super::{
    emptying::{Emptying, Room},
    goals::{Goal, Goals},
    names::DeviceNames,
    plan::Planner,
    tiers::Tiers,
};
use crate::{
    EngineError,
    floors::Floors,
    integrity::{Integrity, LostFiles},
    reporting::{Complaints, EventLog},
};

/// Something that is wanted of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) device: u16,
    pub(super) goal: Goal,
    pub(super) job: u64,
}

impl Wanted {
    /// The device that takes its place.
    pub(super) fn replaced_by(&self) -> Option<u16> {
        match self.goal {
            Goal::Replace(new) => Some(new),
            _ => None,
        }
    }
}

/// After how long it is tried again to cut off the end of a device, nanoseconds.
const NEXT_CUT_NANOSECONDS: u64 = 10_000_000_000;

/// See the module.
pub(crate) struct Drains {
    pub(super) pool: Arc<Pool>,
    chunks: Arc<ChunkStore>,
    mover: Arc<Mover>,
    clock: Arc<dyn Clock>,
    pub(super) events: Arc<EventLog>,
    complaints: Arc<Complaints>,
    lost: Arc<LostFiles>,
    pub(super) names: DeviceNames,
    pub(super) goals: Goals,
    tiers: Arc<Tiers>,
    pub(super) plans: Arc<Planner>,
    /// The devices that are being emptied, and those that are empty.
    pub(super) wanted: Mutex<Vec<Wanted>, rank::engine::Drains>,
    /// Held by whoever draws the consequences of jobs that ended: who comes second finds them drawn altogether.
    settling: Mutex<(), rank::engine::Settling>,
    /// When a device whose end could not be cut off may be tried again, nanoseconds of the clock.
    next_cut: Mutex<u64, rank::engine::NextCut>,
    /// What is set aside for all of them, bytes.
    room_bytes: Arc<AtomicU64>,
}

impl Drains {
    pub(super) fn new(
        floors: &Floors,
        integrity: &Integrity,
        events: &Arc<EventLog>,
        complaints: &Arc<Complaints>,
        parts: (&DeviceNames, &Goals, &Arc<Tiers>, &Arc<Planner>),
    ) -> Self {
        let (names, goals, tiers, plans) = parts;
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            mover: floors.mover.clone(),
            clock: floors.clock.clone(),
            events: events.clone(),
            complaints: complaints.clone(),
            lost: integrity.lost().clone(),
            names: names.clone(),
            goals: goals.clone(),
            tiers: tiers.clone(),
            plans: plans.clone(),
            wanted: Mutex::default(),
            settling: Mutex::default(),
            next_cut: Mutex::default(),
            room_bytes: Arc::default(),
        }
    }

    /// Goes on with what was wanted of devices when the pool was closed or crashed.
    pub(super) fn resume(&self) {
        let mut given_up = Vec::new();
        for (device, goal) in self.goals.all() {
            let goal = goal.filter(|_| self.names.get(device).is_some());
            let outcome = match (goal, self.mover.evacuation_of(device)) {
                (None, _) => self.goals.forget(device),
                (Some(Goal::Empty), _) => self.goals.drain(device, true).map(|()| {
                    self.wanted.lock().push(Wanted {
                        device,
                        goal: Goal::Empty,
                        job: 0,
                    });
                }),
                (Some(Goal::Replace(new)), Some((_, JobState::Cancelled))) => {
                    given_up.push((device, new));
                    Ok(())
                }
                // The command to give it up was kept, the end of its effects was not.
                (Some(_), Some((_, JobState::Cancelled | JobState::Failed))) => self.goals.forget(device),
                (Some(goal), Some((job, state))) if !state.is_over() => {
                    self.start(device, goal, Some(job)).map(drop)
                }
                (Some(goal), _) => self.start(device, goal, None).map(drop),
            };
            if let Err(error) = outcome {
                self.complaints.add("devices", &error);
            }
        }
        for (old, new) in given_up {
            if let Err(error) = self.undo_replacement(old, new) {
                self.complaints.add("devices", &error);
            }
        }
    }

    /// Whether nothing empties a device yet, so that it could be told to leave.
    pub(crate) fn check_stays(&self, device: u16) -> Result<(), EngineError> {
        check_not_leaving(&self.wanted.lock(), device)
    }

    /// Begins to empty a device, or goes on with the job that an earlier process left.
    pub(super) fn start(
        &self,
        device: u16,
        goal: Goal,
        interrupted: Option<u64>,
    ) -> Result<u64, EngineError> {
        let mut wanted = self.wanted.lock();
        check_not_leaving(&wanted, device)?;
        let begun = self.begin(device, goal, interrupted);
        let (job, reason) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                // Without a job nothing would ever end this: the device is used as before, and whoever asked is told.
                let undone = match interrupted {
                    None if wanted.iter().all(|other| other.device != device) => self.goals.forget(device),
                    _ => Ok(()),
                };
                if let Err(also) = undone {
                    self.complaints.add("devices", &also);
                }
                let path = self.names.path(device);
                self.events
                    .add("device", &format!("emptying '{path}' could not begin: {error}"));
                return Err(error);
            }
        };
        wanted.retain(|other| other.device != device);
        wanted.push(Wanted { device, goal, job });
        drop(wanted);
        self.events.add("device", &format!("{reason} (job {job})"));
        Ok(job)
    }

    /// Writes the intention down and makes the job.
    fn begin(&self, device: u16, goal: Goal, interrupted: Option<u64>) -> Result<(u64, String), EngineError> {
        let range = match goal {
            Goal::Shrink(size_bytes) => SegmentRange {
                device,
                from: self.pool.segments_in(size_bytes),
            },
            _ => SegmentRange::whole(device),
        };
        match goal {
            Goal::Shrink(_) => {
                self.pool.limit_device(device, Some(range.from));
                // Somebody may have been promised this room since the figures were looked at.
                let (room_bytes, _) = self.chunks.available_without(range);
                if interrupted.is_none() && room_bytes < self.chunks.load_of(range).live_bytes {
                    return Err(EngineError::Invalid(
                        "what lies at its end has no room elsewhere any more, since much is being written; try again \
                         later, or shrink it by less"
                            .into(),
                    ));
                }
            }
            _ => self.goals.drain(device, true)?,
        }
        self.goals.want(device, goal)?;
        let (path, name) = (self.names.path(device), self.names.name(device));
        let reason = match goal {
            Goal::Remove | Goal::GiveUp => format!("emptying '{path}' to take it out of the pool"),
            Goal::Replace(new) => {
                format!(
                    "emptying '{path}' so that '{}' takes its place",
                    self.names.path(new)
                )
            }
            Goal::Shrink(size_bytes) => format!(
                "emptying the end of '{path}' to shrink it to {}",
                format_size(size_bytes)
            ),
            _ => format!("emptying '{path}'"),
        };
        let load = self.chunks.load_of(range);
        let (chunks, plans, lost) = (self.chunks.clone(), self.plans.clone(), self.lost.clone());
        let pool = self.pool.name();
        let room_bytes = self.plans.bytes_to_move(range).min(self.chunks.available_bytes());
        let room = Room::new(self.chunks.reserve_always(room_bytes), self.room_bytes.clone());
        let job = self
            .mover
            .evacuate(device, &reason, interrupted, move |done_bytes| {
                Box::new(Emptying {
                    chunks,
                    plans,
                    range,
                    cursor: EvacuateCursor::default(),
                    done_bytes,
                    remaining_bytes: load.live_bytes,
                    gives_up: goal == Goal::GiveUp,
                    pool,
                    path,
                    name,
                    lost,
                    naming: None,
                    room,
                })
            })?;
        Ok((job, reason))
    }

    /// What is set aside for content that still has to move off devices that are being emptied, bytes.
    pub(crate) fn set_aside_bytes(&self) -> u64 {
        self.room_bytes.load(Ordering::Acquire)
    }

    /// Draws the consequences of jobs that ended: takes devices out that are empty, lets those be used again whose
    /// job was given up. Cheap when nothing is being emptied.
    pub(crate) fn settle(&self) -> Result<(), EngineError> {
        let _settling = self.settling.lock();
        let (mut given_up, mut failed) = (Vec::new(), Vec::new());
        let settled = self.settle_ended(&mut given_up, &mut failed);
        for (text, old, new) in failed {
            let text = format!("{text}; {}", self.after_replacing(old, new));
            self.events.add("device", &text);
        }
        for (old, new) in given_up {
            self.undo_replacement(old, new)?;
        }
        settled
    }

    /// All of that but for what looks at what is wanted itself, for which it adds to the lists: replacements that were given up
    /// (old and new device), and those that failed, of which the words begin so.
    fn settle_ended(
        &self,
        given_up: &mut Vec<(u16, u16)>,
        failed: &mut Vec<(String, u16, u16)>,
    ) -> Result<(), EngineError> {
        let mut wanted = self.wanted.lock();
        let (mut at, mut failure) = (0, None);
        while let Some(entry) = wanted.get(at).copied() {
            let state = match entry.goal {
                Goal::Empty => None,
                _ => self.mover.state_of(entry.job),
            };
            if state.as_ref().is_some_and(|(state, _)| state.is_over()) {
                // Before anything follows from its end: a job that a restart finds unfinished, with nothing to do any more, is
                // taken for given up.
                self.mover.keep_end(entry.job)?;
            }
            match state {
                Some((JobState::Done, _)) if entry.goal == Goal::Evacuate => {
                    self.goals.want(entry.device, Goal::Empty)?;
                    wanted[at].goal = Goal::Empty;
                    let path = self.names.path(entry.device);
                    self.events
                        .add("device", &format!("'{path}' is empty; nothing new is put on it"));
                }
                Some((JobState::Done, _)) => {
                    match entry.goal {
                        Goal::Shrink(_) if self.clock.monotonic_nanoseconds() < *self.next_cut.lock() => {
                            at += 1;
                            continue;
                        }
                        Goal::Shrink(size_bytes) => {
                            if let Err(error) = self.cut_off(entry.device, size_bytes) {
                                // One that began to fail meanwhile takes no label: it stays as large as that says.
                                if self.is_well(entry.device) {
                                    // Others do not wait for it: what it needs may be that one of them leaves.
                                    let now = self.clock.monotonic_nanoseconds();
                                    *self.next_cut.lock() = now + NEXT_CUT_NANOSECONDS;
                                    failure = Some(error);
                                    at += 1;
                                    continue;
                                }
                                self.goals.forget(entry.device)?;
                                let path = self.names.path(entry.device);
                                self.events
                                    .add("device", &format!("'{path}' was not shrunk: {error}"));
                            }
                        }
                        Goal::GiveUp => self.take_out(entry.device, true)?,
                        _ => self.take_out(entry.device, false)?,
                    }
                    wanted.remove(at);
                    continue;
                }
                Some((JobState::Cancelled, _)) if entry.replaced_by().is_some() => {
                    given_up.extend(entry.replaced_by().map(|new| (entry.device, new)));
                }
                Some((JobState::Failed | JobState::Cancelled, reason)) => {
                    self.goals.forget(entry.device)?;
                    wanted.remove(at);
                    let path = self.names.path(entry.device);
                    let text = format!("'{path}' is used again; the job ended: {reason}");
                    match entry.replaced_by() {
                        Some(new) => failed.push((text, entry.device, new)),
                        None => self.events.add("device", &text),
                    }
                    continue;
                }
                // The job is gone without having told how it ended.
                None if entry.goal != Goal::Empty => {
                    self.goals.forget(entry.device)?;
                    wanted.remove(at);
                    let path = self.names.path(entry.device);
                    self.events.add(
                        "device",
                        &format!("'{path}' is used again; the job that emptied it is gone"),
                    );
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        failure.map_or(Ok(()), Err)
    }

    /// Whether a job still has something to do with a device, although its own steps may be over.
    pub(crate) fn is_leaving(&self, job: u64) -> bool {
        let wanted = self.wanted.lock();
        wanted
            .iter()
            .any(|entry| entry.job == job && entry.goal != Goal::Empty)
    }

    /// The job that empties a device.
    pub(super) fn job_of(&self, device: u16) -> Option<u64> {
        let wanted = self.wanted.lock();
        let mut running = wanted.iter().filter(|entry| entry.goal != Goal::Empty);
        running
            .find(|entry| entry.device == device)
            .map(|entry| entry.job)
    }

    /// Lets an emptied device be used again, or one that is being emptied and was to stay in the pool. Changes nothing if
    /// `dry_run`.
    pub(super) fn use_again(&self, device: u16, dry_run: bool) -> Result<(), EngineError> {
        let mut wanted = self.wanted.lock();
        match wanted.iter().position(|entry| entry.device == device) {
            Some(at) if dry_run && matches!(wanted[at].goal, Goal::Empty | Goal::Evacuate) => Ok(()),
            Some(at) if wanted[at].goal == Goal::Empty => {
                self.goals.forget(device)?;
                wanted.remove(at);
                Ok(())
            }
            Some(at) if wanted[at].goal == Goal::Evacuate => {
                let job = wanted[at].job;
                drop(wanted);
                match self.mover.cancel(job) {
                    Ok(()) => self.settle(),
                    // It has just become empty.
                    Err(MoverError::Over { .. }) => {
                        self.settle()?;
                        self.use_again(device, dry_run)
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Some(at) => Err(EngineError::Busy(format!(
                "it is being emptied; 'terrace jobs cancel {}' ends that and lets it be used again",
                wanted[at].job
            ))),
            None => Err(EngineError::Invalid(
                "it is in use as usual; there is nothing to take back".into(),
            )),
        }
    }

    pub(super) fn is_well(&self, device: u16) -> bool {
        let info = self.names.get(device);
        info.is_some_and(|info| info.state == DeviceState::Online)
    }

    /// Takes an empty device out of the pool, and its tier if that was the last one of it; one that is given up with what
    /// is on it.
    pub(super) fn take_out(&self, device: u16, given_up: bool) -> Result<(), EngineError> {
        let Some(info) = self.names.get(device) else {
            return self.goals.forget(device);
        };
        match given_up {
            true => self.pool.abandon_device(device)?,
            false => self.pool.remove_device(device)?,
        }
        self.lost.look_again();
        self.goals.forget(device)?;
        self.events
            .add("device", &format!("'{}' was taken out of the pool", info.path));
        let empty = self
            .pool
            .tiers()
            .into_iter()
            .find(|tier| tier.devices.is_empty())
            .map(|tier| tier.settings.name);
        if let Some(name) = empty {
            let removed = self.pool.remove_tier(&name)?;
            self.tiers.forget_hold(&name)?;
            self.tiers.moved(|tier| match tier.cmp(&removed) {
                std::cmp::Ordering::Less => Some(tier),
                std::cmp::Ordering::Equal => None,
                std::cmp::Ordering::Greater => Some(tier - 1),
            })?;
            self.events.add(
                "device",
                &format!("tier '{name}' had no other device and is gone"),
            );
        }
        Ok(())
    }

    /// Cuts off the end of a device, which is empty.
    fn cut_off(&self, device: u16, size_bytes: u64) -> Result<(), EngineError> {
        self.pool.shrink_device(device, size_bytes)?;
        self.goals.forget(device)?;
        let path = self.names.path(device);
        let text = format!("'{path}' was shrunk to {}", format_size(size_bytes));
        self.events.add("device", &text);
        Ok(())
    }
}

fn check_not_leaving(wanted: &[Wanted], device: u16) -> Result<(), EngineError> {
    let leaves = |other: &&Wanted| other.device == device && other.goal != Goal::Empty;
    match wanted.iter().find(leaves) {
        Some(running) => Err(EngineError::Busy(format!(
            "it is being emptied already, by job {0}; 'terrace jobs' shows how far it is, 'terrace jobs cancel {0}' \
             ends it",
            running.job
        ))),
        None => Ok(()),
    }
}
