//! Moves for a pin that failed: they are tried again, after ever longer pauses, for as long as the pin holds.
//!
//! Invariants: a job that waits to be tried again counts as running, keeps its place, and says why it waits; it is not
//! tried for a pin that is gone or another one by then; that it waits is in RAM alone: after a restart it is tried at once.

use terrace_dataset::Datasets;

use crate::{
    job::{Job, JobKind},
    mover::{BENEATH, Inner, Mover, SECOND, tier_name},
};

/// First pause.
const PAUSE_MIN: u64 = 60 * SECOND;
/// Longest.
const PAUSE_MAX: u64 = 3600 * SECOND;

/// When a job that failed is tried again.
pub(crate) struct Retry {
    pub(crate) at: u64,
    pause: u64,
    /// Why it failed.
    pub(crate) cause: String,
}

impl Retry {
    /// After one more failure.
    pub(crate) fn after(last: Option<&Self>, cause: String, now: u64) -> Self {
        let pause = last.map_or(PAUSE_MIN, |last| (2 * last.pause).min(PAUSE_MAX));
        Self {
            at: now + pause,
            pause,
            cause,
        }
    }

    /// For people.
    pub(crate) fn in_words(&self, now: u64) -> String {
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
    let own = inner.pins.of_body(job.dataset, job.body);
    let pinned = match own {
        Some(own) => own == target,
        None => datasets
            .state_by_number(job.dataset)
            .is_some_and(|state| state.settings().pin.as_deref() == Some(target)),
    };
    job.kind == JobKind::Move && pinned
}

impl Mover {
    /// What waits to be tried again is looked at now: a pin changed.
    pub(crate) fn try_again_now(inner: &mut Inner) {
        let waiting = inner.jobs.values_mut().filter_map(|active| active.retry.as_mut());
        waiting.for_each(|retry| retry.at = 0);
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
            let retry = active.retry.as_ref()?;
            let job = &active.job;
            let of_it = job.dataset == dataset
                && (job.body == body || job.body == 0 || job.body == BENEATH)
                && !job.state.is_over();
            of_it.then(|| format!("{} (job {id})", retry.in_words(now)))
        })
    }
}
