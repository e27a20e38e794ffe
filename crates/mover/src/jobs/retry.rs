//! Jobs that failed and are tried again: moves for a pin, after ever longer pauses for as long as the pin holds, also where some
//! of what is pinned could not be read; and what
//! found no room on a tier where dead blocks take some of it, since compaction brings these back.
//!
//! Invariants: a job that waits to be tried again counts as running, keeps its place, and says why it waits; a move for a pin is
//! not tried once that is gone or another one; who waits for room fails after about a minute in which nothing
//! could be moved; that it waits is in RAM alone: after a restart it is tried at once.

use terrace_dataset::Datasets;
use terrace_store::StoreError;

use super::job::{Job, JobKind, JobState};
use crate::{
    error::MoverError,
    mover::{BENEATH, Inner, Mover, SECOND, tier_name},
    tiers::filled_bytes,
};

/// For what a job that failed waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// That it can be done: it moves what is pinned.
    Pin,
    /// That dead blocks on the tier that it moves to are brought back.
    Room,
}

impl Reason {
    fn first_pause(self) -> u64 {
        match self {
            Self::Pin => 60 * SECOND,
            Self::Room => SECOND,
        }
    }

    /// The pause after this one; none: it has failed.
    fn next_pause(self, pause: u64) -> Option<u64> {
        let next = 2 * pause;
        match self {
            Self::Pin => Some(next.min(3600 * SECOND)),
            Self::Room => (next <= 32 * SECOND).then_some(next),
        }
    }
}

/// When a job that failed is tried again.
pub(crate) struct Retry {
    pub(crate) at: u64,
    pub(crate) reason: Reason,
    pause: u64,
    /// Why it failed.
    pub(crate) cause: String,
}

impl Retry {
    /// After one more failure; none if it is not to be tried again.
    pub(crate) fn after(last: Option<&Self>, reason: Reason, cause: String, now: u64) -> Option<Self> {
        let last = last.filter(|last| last.reason == reason);
        let pause = match last {
            Some(last) => reason.next_pause(last.pause)?,
            None => reason.first_pause(),
        };
        Some(Self {
            at: now + pause,
            reason,
            pause,
            cause,
        })
    }

    /// For people.
    pub(crate) fn describe(&self, now: u64) -> String {
        let seconds = self.at.saturating_sub(now).div_ceil(SECOND);
        format!("{}; it is tried again in {seconds} s", self.cause)
    }
}

/// Whether a job moves what is pinned to where it is pinned.
pub(crate) fn is_for_pin(inner: &Inner, datasets: &Datasets, job: &Job) -> bool {
    let target = tier_name(inner, job.target);
    if job.kind == JobKind::Move && job.body == BENEATH {
        let mut directories = inner.pins.directories();
        return directories.any(|((dataset, _), tier)| dataset == job.dataset && tier == target);
    }
    let own = match job.is_directory {
        true => inner.pins.of_object(job.dataset, job.body),
        false => inner.pins.of_body(job.dataset, job.body),
    };
    let pinned = match own {
        Some(own) => own == target,
        None => datasets
            .state_by_number(job.dataset)
            .is_some_and(|state| state.settings().pin.as_deref() == Some(target)),
    };
    job.kind == JobKind::Move && pinned
}

/// A move for a pin of this, to this tier, that has not begun yet.
pub(crate) fn waiting_move(inner: &Inner, dataset: u32, body: u64, target: u8) -> Option<u64> {
    let found = inner.jobs.iter().find(|(_, active)| {
        let job = &active.job;
        let same = (job.dataset, job.body, job.target) == (dataset, body, target);
        let unbegun = job.cursor.is_empty() && job.done_bytes == 0 && active.retry.is_none()
            // What it has looked for already may be something else now.
            && active.subtree.is_none();
        same && unbegun && job.for_pin && job.state == JobState::Running
    });
    found.map(|(id, _)| *id)
}

impl Mover {
    /// Why nothing more goes to a tier that has no room, and what helps.
    pub(crate) fn describe_no_room(&self, inner: &Inner, tier: u8) -> String {
        let name = tier_name(inner, tier);
        let space = self.environment.store.space();
        let devices = space
            .tiers
            .get(usize::from(tier))
            .map(|tier| tier.devices.as_slice());
        let devices = devices.unwrap_or_default();
        let aside = devices.iter().find(|device| device.draining);
        let takes_some = devices
            .iter()
            .any(|device| !device.draining && device.state == "online");
        let bad = devices
            .iter()
            .find(|device| !device.draining && device.state != "online");
        match aside {
            None if !takes_some && bad.is_some() => {
                let (path, state) = bad.map_or(("", ""), |bad| (&bad.path, &bad.state));
                let pool = self.datasets.pool();
                format!(
                    "tier '{name}' takes nothing new, since its device '{path}' is {state}; 'terrace pool replace {pool} {path} NEW', or \
                     add another one with 'terrace pool add {pool} {name}=DEVICE'"
                )
            }
            Some(aside) if !takes_some => format!(
                "tier '{name}' takes nothing new, since its device '{}' was to be emptied; 'terrace evacuate {} {} --undo' puts it \
                 to use again",
                aside.path,
                self.datasets.pool(),
                aside.path
            ),
            _ => format!(
                "tier '{name}' has no room for more; make some there, or add a device to it with 'terrace pool add'"
            ),
        }
    }

    /// A pin has changed, or is gone: the moves that it had begun end.
    pub(crate) fn end_moves_of_pins(&self, inner: &mut Inner) -> Result<(), StoreError> {
        inner.exchange.seek_again();
        if !self.knows_tiers(inner) {
            // Each job sees it when its turn comes.
            return Ok(());
        }
        let begun = inner
            .jobs
            .iter()
            .filter(|(_, active)| active.job.for_pin && !active.job.state.is_over())
            .filter(|(_, active)| !is_for_pin(inner, &self.datasets, &active.job));
        let begun: Vec<u64> = begun.map(|(id, _)| *id).collect();
        for id in begun {
            if let Some(active) = inner.jobs.get_mut(&id) {
                active.job.end_because("the pin changed");
                active.retry = None;
                active.subtree = None;
            }
            self.keep(inner, id)?;
        }
        self.forget_ended(inner)
    }

    /// The pin of a dataset was set, changed or taken away: what an earlier one began ends, and what lies elsewhere moves to
    /// the tier of the new one. Returns the job, if there is one.
    pub fn dataset_pin_changed(&self, dataset: u32) -> Result<Option<u64>, MoverError> {
        let begun = {
            let mut inner = self.inner.lock();
            self.end_moves_of_pins(&mut inner)?;
            Self::try_again_now(&mut inner);
            inner.shared.forget();
            self.start_move_of_dataset(&mut inner, dataset)?
        };
        self.make_durable()?;
        Ok(begun)
    }

    /// Moves a dataset to the tier that it is pinned to, if it is and the pool has that.
    pub(crate) fn start_move_of_dataset(
        &self,
        inner: &mut Inner,
        dataset: u32,
    ) -> Result<Option<u64>, MoverError> {
        let state = self.datasets.state_by_number(dataset);
        let pin = state.and_then(|state| state.settings().pin.clone());
        let at = inner
            .policies
            .iter()
            .position(|policy| Some(&policy.name) == pin.as_ref());
        let (Some(pin), Some(target)) = (pin, at) else {
            return Ok(None);
        };
        // One that may be on its way has perhaps passed what is meant.
        if !inner.stepping
            && let Some(id) = waiting_move(inner, dataset, 0, target as u8)
        {
            return Ok(Some(id));
        }
        let reason = format!("pinned to tier '{pin}'");
        self.start_move(inner, dataset, 0, target as u8, reason, true)
            .map(Some)
    }

    /// A pin changed: what waits to be tried again for one is looked at now. Who waits for room has only so many tries.
    pub(crate) fn try_again_now(inner: &mut Inner) {
        let waiting = inner.jobs.values_mut().filter_map(|active| active.retry.as_mut());
        let for_pins = waiting.filter(|retry| retry.reason == Reason::Pin);
        for_pins.for_each(|retry| retry.at = 0);
        inner.ways_for_pins.clear();
    }

    /// Whether compaction, or reclaiming what was deleted, may make room on a tier.
    pub(crate) fn may_win_room(&self, tier: u8) -> bool {
        let space = self.environment.store.space();
        let tier = space.tiers.get(usize::from(tier));
        tier.is_some_and(|tier| tier.used_bytes > filled_bytes(tier).saturating_sub(space.pending_free_bytes))
    }

    /// Why content of this object (0: of the dataset) that is pinned has not been moved, if that failed.
    pub fn move_failed(&self, dataset: u32, object: u64) -> Option<String> {
        let inner = self.inner.lock();
        let now = self.environment.clock.monotonic_nanoseconds();
        let store = self.environment.store.as_ref();
        let body = match object {
            0 => 0,
            object => crate::pins::body_of(store, dataset, object).ok().flatten()?,
        };
        inner.jobs.iter().find_map(|(id, active)| {
            let retry = active
                .retry
                .as_ref()
                .filter(|retry| retry.reason == Reason::Pin)?;
            let job = &active.job;
            let of_it = job.dataset == dataset
                && (job.body == body || job.body == 0 || job.is_of_directories())
                && !job.state.is_over();
            of_it.then(|| format!("{} (job {id})", retry.describe(now)))
        })
    }
}
