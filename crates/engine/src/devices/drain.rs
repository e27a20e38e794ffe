//! Devices that are being emptied: the intention, the job that does it, and what happens when it ends.
//!
//! Invariants: the intention is a property on the labels (`device.N`), written before the job starts and removed
//! after the job failed or was cancelled or the device is gone, so that a restart at any moment goes on with it; a
//! device with an intention takes nothing new (one that is being shrunk: not at its end); a device is taken out, or its
//! end cut off, only when nothing is on it, or when whoever asked gave up what cannot be read; what still has to move
//! from it has its room set aside elsewhere, so that nobody is promised that meanwhile.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use terrace_chunk::{ChunkStore, EvacuateCursor};
use terrace_device::format_size;
use terrace_mover::{JobState, MoverError, StoreSteps, StoreWork};
use terrace_pool::{DeviceInfo, DeviceState, PoolError, SegmentRange};
use terrace_store::{Reservation, StoreError};

use crate::{
    Engine, EngineError,
    integrity::{DamageWalk, Damaged, Losses, names_in_words},
};

/// Prefix of the labels' properties that say what is wanted of a device.
const PROPERTY_PREFIX: &str = "device.";
/// Records that one step reads when files are named.
const NAMING_RECORDS: usize = 2000;
/// Files that the reason of a job names.
const NAMED_MAX: usize = 5;
/// Segments that what moves fills in part, at most.
const BEGUN_SEGMENTS: u64 = 2;
/// What stands before the size in the word for a device that is being shrunk.
const SHRINK_PREFIX: &str = "shrink:";
/// What stands before the number of the new device in the word for one that is being replaced.
const REPLACE_PREFIX: &str = "replace:";

/// What shall become of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// It is being emptied and stays in the pool.
    Evacuate,
    /// It is being emptied and then taken out.
    Remove,
    /// As `Remove`, since the device of this number takes its place, which leaves again if that is given up.
    Replace(u16),
    /// It was emptied, and nothing new is put on it.
    Empty,
    /// Its end is being emptied and then cut off at this size, bytes.
    Shrink(u64),
    /// What can be moved off it is, then it is taken out with what cannot.
    GiveUp,
}

impl Goal {
    fn word(self) -> String {
        match self {
            Self::Evacuate => "evacuate".into(),
            Self::Remove => "remove".into(),
            Self::Replace(new) => format!("{REPLACE_PREFIX}{new}"),
            Self::Empty => "empty".into(),
            Self::Shrink(size_bytes) => format!("{SHRINK_PREFIX}{size_bytes}"),
            Self::GiveUp => "give-up".into(),
        }
    }

    fn of(word: &str) -> Option<Self> {
        match word {
            "evacuate" => Some(Self::Evacuate),
            "remove" => Some(Self::Remove),
            "empty" => Some(Self::Empty),
            "give-up" => Some(Self::GiveUp),
            _ => match word.strip_prefix(REPLACE_PREFIX) {
                Some(new) => new.parse().ok().map(Self::Replace),
                None => word.strip_prefix(SHRINK_PREFIX)?.parse().ok().map(Self::Shrink),
            },
        }
    }
}

/// Something that is wanted of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) device: u16,
    pub(crate) goal: Goal,
    pub(crate) job: u64,
}

impl Wanted {
    /// The device that takes its place.
    pub(crate) fn replaced_by(&self) -> Option<u16> {
        match self.goal {
            Goal::Replace(new) => Some(new),
            _ => None,
        }
    }
}

/// After how long it is tried again to cut off the end of a device, nanoseconds.
const NEXT_CUT_NANOSECONDS: u64 = 10_000_000_000;

/// The devices that are being emptied, and those that are empty.
#[derive(Default)]
pub(crate) struct Leaving {
    pub(crate) wanted: Mutex<Vec<Wanted>>,
    /// Held by whoever draws the consequences of jobs that ended: who comes second finds them drawn altogether.
    settling: Mutex<()>,
    /// When a device whose end could not be cut off may be tried again, nanoseconds of the clock.
    next_cut: Mutex<u64>,
    /// What is set aside for all of them, bytes.
    room_bytes: Arc<AtomicU64>,
}

/// Room for what still has to move off a device, as far as there was.
struct Room {
    reservation: Reservation,
    all_bytes: Arc<AtomicU64>,
}

impl Room {
    fn new(reservation: Reservation, all_bytes: Arc<AtomicU64>) -> Self {
        all_bytes.fetch_add(reservation.bytes(), Ordering::AcqRel);
        Self {
            reservation,
            all_bytes,
        }
    }

    fn shrink_to(&mut self, bytes: u64) {
        let given_back = self.reservation.bytes().saturating_sub(bytes);
        self.reservation.shrink_to(bytes);
        self.all_bytes.fetch_sub(given_back, Ordering::AcqRel);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// The steps of the job.
struct Emptying {
    chunks: Arc<ChunkStore>,
    range: SegmentRange,
    cursor: EvacuateCursor,
    done_bytes: u64,
    remaining_bytes: u64,
    /// What cannot be read is given up.
    gives_up: bool,
    pool: String,
    path: String,
    /// What it is called in a command.
    name: String,
    losses: Arc<Losses>,
    /// What has no readable copy is known; its files are being named.
    naming: Option<(DamageWalk, u64)>,
    room: Room,
}

impl Emptying {
    /// Everything else has left.
    fn only_unreadable_left(&mut self, walk: &DamageWalk, chunks: u64) -> Result<StoreWork, StoreError> {
        let (files, whole) = walk.files(&*self.chunks);
        let count = files.len() as u64;
        let names: Vec<String> = files
            .iter()
            .take(NAMED_MAX)
            .map(|file| file.path.clone())
            .collect();
        let held = files.iter().filter(|file| !file.snapshots.is_empty()).count();
        let bytes = format_size(self.remaining_bytes);
        let mut text = format!(
            "{bytes} of '{}' ({chunks} chunks) cannot be read and have no other copy; they belong to {}",
            self.path,
            names_in_words(&names, NAMED_MAX, count)
        );
        if held > 0 {
            text.push_str(&format!(" (snapshots hold them of {held} of these)"));
        }
        if !whole {
            text.push_str(", and not all could be named");
        }
        self.losses.told(files, whole, self.remaining_bytes);
        if !self.gives_up {
            let pool = &self.pool;
            text.push_str(&format!(
                "; everything else was moved; 'terrace status {pool} --lost' lists all files; delete or restore them and \
                 try again, or take the device out without them by 'terrace pool remove {pool} {} --lost'",
                self.name
            ));
            return Err(StoreError::Device(text.into()));
        }
        Ok(StoreWork {
            bytes: 0,
            tiers: 0,
            total_bytes: self.done_bytes,
            finished: true,
            waits: false,
            note: Some(format!("given up: {text}")),
        })
    }
}

impl StoreSteps for Emptying {
    fn step(&mut self, budget_bytes: u64) -> Result<StoreWork, StoreError> {
        if let Some((mut walk, chunks)) = self.naming.take() {
            if walk.step(&*self.chunks, NAMING_RECORDS) {
                self.naming = Some((walk, chunks));
                return Ok(StoreWork {
                    bytes: 0,
                    tiers: 0,
                    total_bytes: self.done_bytes + self.remaining_bytes,
                    finished: false,
                    waits: false,
                    note: None,
                });
            }
            return self.only_unreadable_left(&walk, chunks);
        }
        let progress = self
            .chunks
            .evacuate_step(self.range, &mut self.cursor, budget_bytes)?;
        let bytes = self.remaining_bytes.saturating_sub(progress.remaining_bytes);
        self.done_bytes += bytes;
        self.remaining_bytes = progress.remaining_bytes;
        self.room.shrink_to(room_to_move(&self.chunks, self.range));
        if progress.unreadable_count > 0 {
            let damaged = match self.chunks.pool().has_device(self.range.device) {
                true => Damaged::Chunks(progress.unreadable),
                false => Damaged::Gone(self.chunks.clone()),
            };
            let walk = DamageWalk::new(&self.pool, damaged);
            self.naming = Some((walk, progress.unreadable_count));
        }
        Ok(StoreWork {
            bytes,
            tiers: progress.tiers,
            total_bytes: self.done_bytes + progress.remaining_bytes,
            finished: progress.finished,
            waits: progress.waits,
            note: None,
        })
    }
}

/// What content, log and metadata in this range take elsewhere, bytes of content: an eighth for what it takes more is part of the
/// room for that.
pub(crate) fn room_to_move(chunks: &ChunkStore, range: SegmentRange) -> u64 {
    let load = chunks.load_of(range);
    let live = load.live_bytes;
    let ends = chunks.unused_ends(live).saturating_sub(live / 8);
    live + load.metadata_bytes + ends + BEGUN_SEGMENTS * u64::from(chunks.pool().segment_bytes())
}

fn property(device: u16) -> String {
    format!("{PROPERTY_PREFIX}{device}")
}

impl Engine {
    /// Goes on with what was wanted of devices when the pool was closed or crashed.
    pub(crate) fn resume_leaving(&self) {
        let mut given_up = Vec::new();
        for (name, value) in self.pool.properties() {
            let Some(device) = name
                .strip_prefix(PROPERTY_PREFIX)
                .and_then(|number| number.parse::<u16>().ok())
            else {
                continue;
            };
            let listed = self.pool.devices().iter().any(|info| info.number == device);
            let goal = Goal::of(&value).filter(|_| listed);
            let outcome = match (goal, self.mover.evacuation_of(device)) {
                (None, _) => self.forget_goal(device),
                (Some(Goal::Empty), _) => self.drain(device, true).map(|()| {
                    self.leaving.wanted.lock().push(Wanted {
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
                (Some(_), Some((_, JobState::Cancelled | JobState::Failed))) => self.forget_goal(device),
                (Some(goal), Some((job, state))) if !state.is_over() => {
                    self.start_emptying(device, goal, Some(job)).map(drop)
                }
                (Some(goal), _) => self.start_emptying(device, goal, None).map(drop),
            };
            if let Err(error) = outcome {
                self.complain("devices", &error);
            }
        }
        for (old, new) in given_up {
            if let Err(error) = self.undo_replacement(old, new) {
                self.complain("devices", &error);
            }
        }
    }

    /// Whether nothing empties a device yet, so that it could be told to leave.
    ///
    /// # Errors
    /// `Busy` with the job that does.
    pub fn check_stays(&self, device: u16) -> Result<(), EngineError> {
        check_not_leaving(&self.leaving.wanted.lock(), device)
    }

    /// Begins to empty a device, or goes on with the job that an earlier process left.
    pub(crate) fn start_emptying(
        &self,
        device: u16,
        goal: Goal,
        interrupted: Option<u64>,
    ) -> Result<u64, EngineError> {
        let mut wanted = self.leaving.wanted.lock();
        check_not_leaving(&wanted, device)?;
        let begun = self.begin_emptying(device, goal, interrupted);
        let (job, reason) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                // Without a job nothing would ever end this: the device is used as before, and whoever asked is told.
                let undone = match interrupted {
                    None if wanted.iter().all(|other| other.device != device) => self.forget_goal(device),
                    _ => Ok(()),
                };
                if let Err(also) = undone {
                    self.complain("devices", &also);
                }
                let path = self.device_path(device);
                self.event("device", &format!("emptying '{path}' could not begin: {error}"));
                return Err(error);
            }
        };
        wanted.retain(|other| other.device != device);
        wanted.push(Wanted { device, goal, job });
        drop(wanted);
        self.event("device", &format!("{reason} (job {job})"));
        Ok(job)
    }

    /// Writes the intention down and makes the job.
    fn begin_emptying(
        &self,
        device: u16,
        goal: Goal,
        interrupted: Option<u64>,
    ) -> Result<(u64, String), EngineError> {
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
            _ => self.drain(device, true)?,
        }
        self.want(device, goal)?;
        let (path, name) = (self.device_path(device), self.device_name(device));
        let reason = match goal {
            Goal::Remove | Goal::GiveUp => format!("emptying '{path}' to take it out of the pool"),
            Goal::Replace(new) => {
                format!(
                    "emptying '{path}' so that '{}' takes its place",
                    self.device_path(new)
                )
            }
            Goal::Shrink(size_bytes) => format!(
                "emptying the end of '{path}' to shrink it to {}",
                format_size(size_bytes)
            ),
            _ => format!("emptying '{path}'"),
        };
        let load = self.chunks.load_of(range);
        let (chunks, losses) = (self.chunks.clone(), self.losses.clone());
        let pool = self.pool.name();
        let room_bytes = room_to_move(&self.chunks, range).min(self.store.available_bytes());
        let room = Room::new(
            self.store.reserve_always(room_bytes),
            self.leaving.room_bytes.clone(),
        );
        let job = self
            .mover
            .evacuate(device, &reason, interrupted, move |done_bytes| {
                Box::new(Emptying {
                    chunks,
                    range,
                    cursor: EvacuateCursor::default(),
                    done_bytes,
                    remaining_bytes: load.live_bytes,
                    gives_up: goal == Goal::GiveUp,
                    pool,
                    path,
                    name,
                    losses,
                    naming: None,
                    room,
                })
            })?;
        Ok((job, reason))
    }

    /// What is set aside for content that still has to move off devices that are being emptied, bytes.
    pub fn leaving_room_bytes(&self) -> u64 {
        self.leaving.room_bytes.load(Ordering::Acquire)
    }

    /// Draws the consequences of jobs that ended: takes devices out that are empty, lets those be used again whose
    /// job was given up. Cheap when nothing is being emptied.
    ///
    /// # Errors
    /// If the labels cannot be written; what is left is done by the next call.
    pub fn settle_leaving(&self) -> Result<(), EngineError> {
        let _settling = self.leaving.settling.lock();
        let (mut given_up, mut failed) = (Vec::new(), Vec::new());
        let settled = self.settle_ended(&mut given_up, &mut failed);
        for (text, old, new) in failed {
            let text = format!("{text}; {}", self.after_replacing(old, new));
            self.event("device", &text);
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
        let mut wanted = self.leaving.wanted.lock();
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
                    self.want(entry.device, Goal::Empty)?;
                    wanted[at].goal = Goal::Empty;
                    let path = self.device_path(entry.device);
                    self.event("device", &format!("'{path}' is empty; nothing new is put on it"));
                }
                Some((JobState::Done, _)) => {
                    match entry.goal {
                        Goal::Shrink(_)
                            if self.clock.monotonic_nanoseconds() < *self.leaving.next_cut.lock() =>
                        {
                            at += 1;
                            continue;
                        }
                        Goal::Shrink(size_bytes) => {
                            if let Err(error) = self.cut_off(entry.device, size_bytes) {
                                // One that began to fail meanwhile takes no label: it stays as large as that says.
                                let devices = self.pool.devices();
                                let mut well =
                                    devices.iter().filter(|info| info.state == DeviceState::Online);
                                if well.any(|info| info.number == entry.device) {
                                    // Others do not wait for it: what it needs may be that one of them leaves.
                                    let now = self.clock.monotonic_nanoseconds();
                                    *self.leaving.next_cut.lock() = now + NEXT_CUT_NANOSECONDS;
                                    failure = Some(error);
                                    at += 1;
                                    continue;
                                }
                                self.forget_goal(entry.device)?;
                                let path = self.device_path(entry.device);
                                self.event("device", &format!("'{path}' was not shrunk: {error}"));
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
                    self.forget_goal(entry.device)?;
                    wanted.remove(at);
                    let path = self.device_path(entry.device);
                    let text = format!("'{path}' is used again; the job ended: {reason}");
                    match entry.replaced_by() {
                        Some(new) => failed.push((text, entry.device, new)),
                        None => self.event("device", &text),
                    }
                    continue;
                }
                // The job is gone without having told how it ended.
                None if entry.goal != Goal::Empty => {
                    self.forget_goal(entry.device)?;
                    wanted.remove(at);
                    let path = self.device_path(entry.device);
                    self.event(
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
    pub fn is_leaving(&self, job: u64) -> bool {
        let wanted = self.leaving.wanted.lock();
        wanted
            .iter()
            .any(|entry| entry.job == job && entry.goal != Goal::Empty)
    }

    /// The job that empties a device.
    pub(crate) fn emptying_job(&self, device: u16) -> Option<u64> {
        let wanted = self.leaving.wanted.lock();
        let mut running = wanted.iter().filter(|entry| entry.goal != Goal::Empty);
        running
            .find(|entry| entry.device == device)
            .map(|entry| entry.job)
    }

    /// Lets an emptied device be used again, or one that is being emptied and was to stay in the pool. Changes nothing if
    /// `dry_run`.
    pub(crate) fn use_again(&self, device: u16, dry_run: bool) -> Result<(), EngineError> {
        let mut wanted = self.leaving.wanted.lock();
        match wanted.iter().position(|entry| entry.device == device) {
            Some(at) if dry_run && matches!(wanted[at].goal, Goal::Empty | Goal::Evacuate) => Ok(()),
            Some(at) if wanted[at].goal == Goal::Empty => {
                self.forget_goal(device)?;
                wanted.remove(at);
                Ok(())
            }
            Some(at) if wanted[at].goal == Goal::Evacuate => {
                let job = wanted[at].job;
                drop(wanted);
                match self.mover.cancel(job) {
                    Ok(()) => self.settle_leaving(),
                    // It has just become empty.
                    Err(MoverError::Over { .. }) => {
                        self.settle_leaving()?;
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

    /// Devices that are empty on purpose, or are on the way to that, and stay in the pool: their paths.
    fn set_aside(&self) -> Vec<DeviceInfo> {
        let wanted = self.leaving.wanted.lock().clone();
        let mut devices = self.pool.devices();
        devices.retain(|info| {
            let mut of_it = wanted.iter().filter(|entry| entry.device == info.number);
            of_it.any(|entry| matches!(entry.goal, Goal::Empty | Goal::Evacuate))
        });
        devices
    }

    /// What `status`, and whoever finds no room, is told of devices that take nothing new although they are there; empty if
    /// there are none.
    pub fn set_aside_in_words(&self) -> String {
        let devices = self.set_aside();
        let Some(first) = devices.first() else {
            return String::new();
        };
        let pool = self.pool.name();
        let tiers = self.pool.tiers();
        let tier = tiers.get(usize::from(first.tier));
        let only = tier.is_some_and(|tier| tier.devices.len() == 1);
        let of_tier = match tier.filter(|_| only) {
            Some(tier) => format!(", the only device of tier '{}',", tier.settings.name),
            None => String::new(),
        };
        let more = match devices.len() {
            1 => String::new(),
            count => format!(" (so do {} more)", count - 1),
        };
        format!(
            "device '{}'{of_tier} takes nothing new, since it was to be emptied{more}: 'terrace evacuate {pool} {} --undo' puts \
             it to use again",
            first.path,
            self.device_name(first.number)
        )
    }

    /// What `status` says of a device that takes nothing new.
    pub(crate) fn leaving_in_words(&self, device: u16) -> String {
        let goal = self.pool.property(&property(device));
        match goal.as_deref().and_then(Goal::of) {
            Some(Goal::Evacuate) => "evacuating",
            Some(Goal::Remove | Goal::Replace(_) | Goal::GiveUp) => "removing",
            Some(Goal::Empty) => "empty",
            Some(Goal::Shrink(_)) => "shrinking",
            None => "",
        }
        .into()
    }

    /// Takes an empty device out of the pool, and its tier if that was the last one of it; one that is given up with what
    /// is on it.
    pub(crate) fn take_out(&self, device: u16, given_up: bool) -> Result<(), EngineError> {
        let info = self.pool.devices().into_iter().find(|info| info.number == device);
        let Some(info) = info else {
            return self.forget_goal(device);
        };
        match given_up {
            true => self.pool.abandon_device(device)?,
            false => self.pool.remove_device(device)?,
        }
        self.losses.look_again();
        self.forget_goal(device)?;
        self.event("device", &format!("'{}' was taken out of the pool", info.path));
        let empty = self
            .pool
            .tiers()
            .into_iter()
            .find(|tier| tier.devices.is_empty())
            .map(|tier| tier.settings.name);
        if let Some(name) = empty {
            let removed = self.pool.remove_tier(&name)?;
            self.forget_hold(&name)?;
            self.tiers_moved(|tier| match tier.cmp(&removed) {
                std::cmp::Ordering::Less => Some(tier),
                std::cmp::Ordering::Equal => None,
                std::cmp::Ordering::Greater => Some(tier - 1),
            })?;
            self.event(
                "device",
                &format!("tier '{name}' had no other device and is gone"),
            );
        }
        Ok(())
    }

    /// Whether something is wanted of a device.
    pub(crate) fn has_goal(&self, device: u16) -> bool {
        self.pool.property(&property(device)).is_some()
    }

    /// Cuts off the end of a device, which is empty.
    fn cut_off(&self, device: u16, size_bytes: u64) -> Result<(), EngineError> {
        self.pool.shrink_device(device, size_bytes)?;
        self.forget_goal(device)?;
        let path = self.device_path(device);
        let text = format!("'{path}' was shrunk to {}", format_size(size_bytes));
        self.event("device", &text);
        Ok(())
    }

    /// Writes down what is wanted of a device.
    pub(crate) fn want(&self, device: u16, goal: Goal) -> Result<(), EngineError> {
        if self.pool.property(&property(device)) != Some(goal.word()) {
            self.pool.set_property(&property(device), Some(&goal.word()))?;
        }
        Ok(())
    }

    pub(crate) fn forget_goal(&self, device: u16) -> Result<(), EngineError> {
        if self.pool.property(&property(device)).is_some() {
            self.pool.set_property(&property(device), None)?;
        }
        self.pool.limit_device(device, None);
        self.drain(device, false)
    }

    /// Nothing new on this device, or new content again. A missing one takes nothing anyway.
    pub(crate) fn drain(&self, device: u16, draining: bool) -> Result<(), EngineError> {
        match self.pool.set_draining(device, draining) {
            Err(PoolError::NoDevice { .. }) => Ok(()),
            other => Ok(other?),
        }
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
