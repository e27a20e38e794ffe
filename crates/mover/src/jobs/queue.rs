//! What users ask of the mover: the list of jobs, pausing, moving and pinning by hand, running work of the store.

use terrace_dataset::{FileKind, bytes_of_object};
use terrace_device::format_size;
use terrace_store::tier_bit;

use super::{
    external_work::StoreSteps,
    job::{Job, JobInfo, JobKind, JobState},
    retry::Reason,
};
use crate::{
    error::MoverError,
    mover::{Active, BENEATH, Inner, Mover, in_window},
    pins::pins,
    tiers::{TierPolicy, minute_of_day},
};

/// The lowest `rate_limit` of the tiers that a job moves between, as far as these are known.
fn describe_limit(inner: &Inner, id: u64, active: &Active) -> String {
    let mut tiers = active.tiers;
    if active.job.kind.migrates() {
        tiers |= tier_bit(active.job.source) | tier_bit(active.job.target);
    }
    if [inner.candidates.job(), inner.hot_chunks.job()].contains(&Some(id)) {
        tiers |= inner.rising_from;
    }
    let policies = inner.policies.iter().enumerate();
    let limited = policies.filter(|(at, policy)| policy.rate_limit > 0 && tiers & tier_bit(*at as u8) != 0);
    let lowest = limited.min_by_key(|(_, policy)| policy.rate_limit);
    lowest.map_or_else(String::new, |(_, policy)| {
        let (size, name) = (format_size(policy.rate_limit), &policy.name);
        format!("; at most {size} a second by rate_limit of tier '{name}'")
    })
}

/// Of a job that policies began, and that waits until they may go on; which window that is depends on the tiers.
pub(crate) const AWAITS_WINDOW: &str = "waiting for its window";

/// Which window a job waits for, and when that opens; the words as they are if none is closed any more.
fn describe_window(inner: &Inner, job: &Job, minute: u32) -> String {
    let closed = [job.source, job.target]
        .into_iter()
        .find(|tier| !in_window(&inner.policies, *tier, minute));
    let window = closed.and_then(|tier| inner.policies.get(usize::from(tier)));
    window.map_or_else(
        || AWAITS_WINDOW.to_owned(),
        |policy| {
            let opens = policy.window.split('-').next().unwrap_or_default();
            let TierPolicy { name, window, .. } = policy;
            format!("waiting for the window of tier '{name}', {window}, which opens at {opens} local time")
        },
    )
}

impl Mover {
    /// All jobs that run or wait, and the last that ended, oldest first.
    pub fn jobs(&self) -> Vec<JobInfo> {
        let inner = self.inner.lock();
        let off =
            (!self.is_enabled()).then_some("waiting: migration is off ('terrace pool set migration=on')");
        let now = self.environment.clock.monotonic_nanoseconds();
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        let info = inner.jobs.iter().map(|(id, active)| {
            let retry = active.retry.as_ref().map(|retry| retry.describe(now));
            let unsaved = active.unsaved.then_some("its state could not be saved yet");
            let awaits_window = active.waiting == Some(AWAITS_WINDOW);
            let window = awaits_window.then(|| describe_window(&inner, &active.job, minute));
            let goes_on = active.job.kind == JobKind::Relayout && inner.relayouts.is_early();
            let waiting = off
                .filter(|_| active.job.kind.migrates() && !goes_on)
                .or(retry.as_deref())
                .or(window.as_deref())
                .or(active.waiting)
                .or(unsaved);
            let mut shown = JobInfo::of(*id, &active.job, active.rate, waiting);
            shown.fails = active
                .retry
                .as_ref()
                .is_some_and(|retry| retry.reason == Reason::Pin);
            if !active.job.state.is_over() {
                shown.reason.push_str(&describe_limit(&inner, *id, active));
            }
            shown
        });
        info.collect()
    }

    /// Stops a job until it is resumed.
    pub fn pause(&self, id: u64) -> Result<(), MoverError> {
        self.change(id, JobState::Paused)
    }

    /// Lets a paused job go on; one that waits to be tried again is tried now.
    pub fn resume(&self, id: u64) -> Result<(), MoverError> {
        self.change(id, JobState::Running)
    }

    /// Ends a job; what it moved stays where it is.
    pub fn cancel(&self, id: u64) -> Result<(), MoverError> {
        self.change(id, JobState::Cancelled)
    }

    fn change(&self, id: u64, state: JobState) -> Result<(), MoverError> {
        self.change_state(id, state)?;
        Ok(self.make_durable()?)
    }

    fn change_state(&self, id: u64, state: JobState) -> Result<(), MoverError> {
        let now = self.environment.clock.monotonic_nanoseconds();
        let mut inner = self.inner.lock();
        let active = inner.jobs.get_mut(&id).ok_or(MoverError::NoJob(id))?;
        if active.job.state.is_over() {
            return Err(MoverError::Over {
                id,
                state: active.job.state.name(),
            });
        }
        if active.job.state == JobState::Paused && state == JobState::Running {
            active.goes_on(now);
        }
        active.job.state = state;
        if state.is_over() {
            // With what they hold; those of a step that is under way go with that.
            active.steps = None;
        }
        if let Some(retry) = active.retry.as_mut().filter(|_| state == JobState::Running) {
            retry.at = 0;
        }
        let job = active.job.clone();
        if state.is_over() && inner.candidates.job() == Some(id) {
            inner.candidates.clear();
        }
        if state.is_over() && inner.hot_chunks.job() == Some(id) {
            inner.hot_chunks.cancel(now);
        }
        if state.is_over() && inner.relayouts.job() == Some(id) {
            inner.relayouts.clear();
        }
        self.persist(id, &job)?;
        self.forget_ended(&mut inner)?;
        Ok(())
    }

    /// Runs work of the store as a job, kind `Scrub` or `Compact`.
    pub fn run(&self, kind: JobKind, reason: &str, steps: Box<dyn StoreSteps>) -> Result<u64, MoverError> {
        let job = self.new_job(kind, reason.to_owned(), 0, 0, 0);
        let id = self.add(&mut self.inner.lock(), job, Some(steps))?;
        self.make_durable()?;
        Ok(id)
    }

    /// Moves a dataset (`object` 0) or one object of it to the tier of this name, as a job.
    pub fn move_to(&self, dataset: u32, object: u64, tier: &str) -> Result<u64, MoverError> {
        let target = tier_index(&self.inner.lock(), tier)?;
        self.start_by_hand(dataset, object, target, format!("asked for: to tier '{tier}'"))
    }

    /// Moves an object to the next faster tier than the slowest that it lies on (a dataset, or the files beneath a directory, to
    /// the fastest), as a job.
    pub fn promote(&self, dataset: u32, object: u64) -> Result<u64, MoverError> {
        let target = self.shifted(dataset, object, true)?;
        self.start_by_hand(dataset, object, target, "asked for: promote".into())
    }

    /// Moves an object to the next slower tier than the fastest that it lies on (a dataset, or the files beneath a directory, to
    /// the slowest), as a job.
    pub fn demote(&self, dataset: u32, object: u64) -> Result<u64, MoverError> {
        let target = self.shifted(dataset, object, false)?;
        self.start_by_hand(dataset, object, target, "asked for: demote".into())
    }

    /// Where [`promote`](Self::promote) (`up`) or [`demote`](Self::demote) would move it: the number of the tier.
    pub fn shifted(&self, dataset: u32, object: u64, up: bool) -> Result<u8, MoverError> {
        let tiers = self.environment.store.space().tiers.len();
        let lies_on = match object {
            // A dataset goes all the way: looking where all of it lies would take as long as moving it.
            0 => None,
            _ => {
                let bytes = bytes_of_object(&self.environment.store, dataset, object)?.by_tier;
                match up {
                    true => bytes.iter().rposition(|bytes| *bytes > 0),
                    false => bytes.iter().position(|bytes| *bytes > 0),
                }
            }
        };
        let target = match (up, lies_on) {
            (true, None) => 0,
            (false, None) => tiers.saturating_sub(1),
            (true, Some(tier)) => tier.checked_sub(1).ok_or(MoverError::NoFurther("faster"))?,
            (false, Some(tier)) if tier + 1 < tiers => tier + 1,
            (false, Some(_)) => return Err(MoverError::NoFurther("slower")),
        };
        Ok(target as u8)
    }

    /// What is pinned elsewhere stays there.
    fn start_by_hand(
        &self,
        dataset: u32,
        object: u64,
        target: u8,
        reason: String,
    ) -> Result<u64, MoverError> {
        let id = {
            let mut inner = self.inner.lock();
            inner.shared.look_again();
            self.start_move(&mut inner, dataset, object, target, reason, false)?
        };
        self.make_durable()?;
        Ok(id)
    }

    pub(crate) fn start_move(
        &self,
        inner: &mut Inner,
        dataset: u32,
        object: u64,
        target: u8,
        reason: String,
        for_pin: bool,
    ) -> Result<u64, MoverError> {
        let missing =
            || MoverError::NothingThere(format!("dataset {dataset}, object {object} does not exist"));
        let state = self.datasets.state_by_number(dataset).ok_or_else(missing)?;
        let store = self.environment.store.as_ref();
        let (body, is_directory, total_bytes) = match object {
            0 => (0, false, state.counters().referenced_bytes()),
            _ => {
                let inode = pins::inode_of(store, dataset, object)?.ok_or_else(missing)?;
                match inode.kind == FileKind::Directory {
                    // How much lies beneath is seen on the way.
                    true => (object, true, 0),
                    false => (inode.body, false, inode.blocks.saturating_mul(4096)),
                }
            }
        };
        let mut job = self.new_job(JobKind::Move, reason, total_bytes, target, target);
        (job.dataset, job.body, job.is_directory, job.for_pin) = (dataset, body, is_directory, for_pin);
        inner.by_hand.release(dataset, body);
        Ok(self.add(inner, job, None)?)
    }

    /// Moves what lies beneath the directories of a dataset that are pinned to this tier; how much that is the look finds.
    pub(crate) fn start_move_beneath(
        &self,
        inner: &mut Inner,
        dataset: u32,
        target: u8,
        reason: String,
    ) -> Result<u64, MoverError> {
        let mut job = self.new_job(JobKind::Move, reason, 0, target, target);
        (job.dataset, job.body, job.for_pin) = (dataset, BENEATH, true);
        Ok(self.add(inner, job, None)?)
    }

    /// The tier of the pin that an object or directory has of its own.
    pub fn own_pin(&self, dataset: u32, object: u64) -> Option<String> {
        let inner = self.inner.lock();
        inner.pins.of_object(dataset, object).map(str::to_owned)
    }

    /// Pins an object to a tier, and moves it there as a job; a directory with everything beneath, now and later.
    pub fn pin(&self, dataset: u32, object: u64, tier: &str) -> Result<u64, MoverError> {
        let id = self.pin_and_move(dataset, object, tier)?;
        self.make_durable()?;
        Ok(id)
    }

    fn pin_and_move(&self, dataset: u32, object: u64, tier: &str) -> Result<u64, MoverError> {
        let mut inner = self.inner.lock();
        let target = tier_index(&inner, tier)?;
        let store = self.environment.store.as_ref();
        let Some(inode) = pins::inode_of(store, dataset, object)? else {
            return Err(MoverError::NothingThere(format!(
                "object {object} does not exist"
            )));
        };
        let directory = inode.kind == FileKind::Directory;
        inner.pins.set(store, dataset, object, Some(tier))?;
        self.end_moves_of_pins(&mut inner)?;
        Self::try_again_now(&mut inner);
        self.tell_pins(&inner);
        inner.shared.forget();
        let mut reason = format!("pinned to tier '{tier}'");
        if directory {
            inner.beneath.look_again();
            reason.push_str(": a directory and what lies beneath");
        }
        self.start_move(&mut inner, dataset, object, target, reason, true)
    }

    /// Removes the pin of an object, and ends the move that it had begun. Where a pinned directory or dataset is above, it goes
    /// where that says; else it stays where it is until a policy moves it. Returns the job, if its dataset is pinned.
    pub fn unpin(&self, dataset: u32, object: u64) -> Result<Option<u64>, MoverError> {
        let begun = {
            let mut inner = self.inner.lock();
            let store = self.environment.store.as_ref();
            inner.pins.set(store, dataset, object, None)?;
            self.tell_pins(&inner);
            self.end_moves_of_pins(&mut inner)?;
            Self::try_again_now(&mut inner);
            inner.beneath.look_again();
            inner.shared.forget();
            match self.environment.pins.has_directories(dataset) {
                // Where it belongs now is for that look to say, and it moves all that lies elsewhere.
                true => {
                    self.environment.pins.note_moved(dataset);
                    None
                }
                false => self.start_move_of_dataset(&mut inner, dataset)?,
            }
        };
        self.make_durable()?;
        Ok(begun)
    }

    /// The tier of the nearest pinned directory that any name of this lies beneath, as far as is known, and that directory.
    pub fn pin_of_directory(&self, dataset: u32, object: u64) -> Option<(String, u64)> {
        let store = self.environment.store.as_ref();
        let body = pins::body_of(store, dataset, object).ok().flatten()?;
        let pin = self.environment.pins.pin_beneath(dataset, body)?;
        let inner = self.inner.lock();
        if inner.beneath.is_looking() || self.environment.pins.has_moved() {
            return None;
        }
        let policy = inner.policies.get(usize::from(pin.tier))?;
        Some((policy.name.clone(), pin.directory))
    }

    /// Whether it is being found out, or soon will be, what lies beneath pinned directories now.
    pub fn is_looking_beneath(&self) -> bool {
        self.inner.lock().beneath.is_looking() || self.environment.pins.has_moved()
    }

    /// New writes of pinned objects go to their tiers from now on.
    pub(crate) fn tell_pins(&self, inner: &Inner) {
        let names: Vec<_> = inner.policies.iter().map(|policy| policy.name.as_str()).collect();
        let with_directories = inner.pins.directories().map(|((dataset, _), _)| dataset);
        let with_directories = with_directories.collect();
        self.environment
            .pins
            .replace(inner.pins.by_number(&names), with_directories);
    }

    /// The tier that an object is pinned to, by its own pin or its dataset's property.
    pub fn pin_of_object(&self, dataset: u32, object: u64) -> Option<String> {
        let own = self
            .inner
            .lock()
            .pins
            .of_object(dataset, object)
            .map(str::to_owned);
        own.or_else(|| {
            self.datasets
                .state_by_number(dataset)
                .and_then(|state| state.settings().pin.clone())
        })
    }
}

fn tier_index(inner: &Inner, name: &str) -> Result<u8, MoverError> {
    let found = inner.policies.iter().position(|policy| policy.name == name);
    found.map(|at| at as u8).ok_or_else(|| {
        let tiers: Vec<_> = inner.policies.iter().map(|policy| policy.name.as_str()).collect();
        MoverError::NoTier {
            name: name.to_owned(),
            tiers: tiers.join(", "),
        }
    })
}
