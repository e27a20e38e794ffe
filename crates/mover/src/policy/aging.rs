//! Aging: what was not used for as long as `demote_after` of its tier says moves down, although there is room.
//!
//! Invariants: a round looks at each region record of the pool once, in bounded steps, and rounds are so far apart that
//! looking costs little beside the time that is waited for; a round shows as a job only when it found something; whoever
//! changes the time of a tier waits for no round that goes by the old one.

use std::collections::HashMap;

use terrace_store::{CHUNK_BYTES_MAX, StoreError, tier_bit};
use terrace_sync::MutexGuard;

use crate::{
    extent::{Chosen, reader},
    jobs::{JobKind, JobState},
    mover::{Guard, Inner, Mover, SECOND, STEP_BYTES, STEP_RECORDS, in_windows},
    tiers::{minute_of_day, room_below},
};

/// Shortest and longest time between two rounds over a tier.
const ROUND_INTERVAL: (u64, u64) = (60 * SECOND, 6 * 3600 * SECOND);

/// The round that runs, and when each tier has its next.
#[derive(Default)]
pub(crate) struct Aging {
    round: Option<Round>,
    next: HashMap<u8, u64>,
}

#[derive(Clone)]
struct Round {
    source: u8,
    target: u8,
    after_seconds: u64,
    cursor: Vec<u8>,
    /// The job that shows the work of this round, once there is some.
    job: Option<u64>,
}

impl Aging {
    pub(crate) fn is_idle(&self) -> bool {
        self.round.is_none()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The time of a tier is another one from now on: its next round is due, and one that runs by the old one ends. Returns
    /// the job that showed that.
    pub(crate) fn time_changed(&mut self, tier: u8) -> Option<u64> {
        self.next.remove(&tier);
        let round = self.round.take_if(|round| round.source == tier)?;
        round.job
    }
}

impl Mover {
    /// Begins a round where it is time, unless one runs.
    pub(crate) fn find_old(&self, inner: &mut Inner, now: u64) {
        if !inner.aging.is_idle() {
            return;
        }
        let tiers = self.environment.store.space().tiers;
        let resting = self.resting_from(inner);
        for (at, tier) in tiers.iter().enumerate() {
            let source = at as u8;
            let after_seconds = inner
                .policies
                .get(at)
                .map_or(0, |policy| policy.demote_after_seconds);
            let due = inner.aging.next.get(&source).is_none_or(|next| now >= *next);
            if after_seconds == 0 || tier.live_bytes == 0 || !due {
                continue;
            }
            let Some(target) = room_below(&tiers, &inner.policies, source).filter(|target| *target < resting)
            else {
                continue;
            };
            let interval = (after_seconds / 4).saturating_mul(SECOND);
            let interval = interval.clamp(ROUND_INTERVAL.0, ROUND_INTERVAL.1);
            inner.aging.next.insert(source, now + interval);
            inner.aging.round = Some(Round {
                source,
                target,
                after_seconds,
                cursor: Vec::new(),
                job: None,
            });
            return;
        }
    }

    /// Looks at the next few records; returns 0, or for how long to wait.
    pub(crate) fn aging_step(&self, inner: &mut Guard<'_>, now: u64) -> Result<u64, StoreError> {
        let Some(round) = inner.aging.round.clone() else {
            return Ok(u64::MAX);
        };
        let shown = round.job.and_then(|id| inner.jobs.get(&id));
        match shown.map(|active| active.job.state) {
            Some(JobState::Paused) => return Ok(u64::MAX),
            Some(state) if state.is_over() => {
                inner.aging.round = None;
                return Ok(u64::MAX);
            }
            _ => {}
        }
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        if !in_windows(&inner.policies, round.source, round.target, minute)
            || round.target >= self.resting_from(inner)
        {
            return Ok(60 * SECOND);
        }
        let pause = self.pause_for(inner, tier_bit(round.source) | tier_bit(round.target), now);
        if pause > 0 {
            return Ok(pause);
        }
        let store = self.environment.store.as_ref();
        let page = MutexGuard::unlocked(inner, || reader::next_of_pool(store, &round.cursor, STEP_RECORDS))?;
        let minutes = self.minutes();
        let mut chunks = Chosen::default();
        for found in &page.found {
            let region = u32::try_from(found.region).unwrap_or(u32::MAX);
            let heat = self
                .environment
                .heat
                .of(found.dataset, found.body, region, minutes);
            let unused_seconds = u64::from(minutes.saturating_sub(heat.touched_minutes)) * 60;
            if unused_seconds < round.after_seconds || self.is_pinned_to(inner, round.source, found) {
                continue;
            }
            self.note_moving(found, now);
            MutexGuard::unlocked(inner, || {
                chunks.add(store, &found.record, |tier| tier == round.source)
            })?;
        }
        chunks.retain(|moving| !inner.grace.is_hotter(moving.id(), minutes, 0.0));
        if !chunks.chunks().is_empty() && round.job.is_none() {
            self.show_aging(inner, &round)?;
        }
        let job = inner.aging.round.as_ref().and_then(|round| round.job);
        // In pieces: a page of old records may name far more than a step should move.
        let (mut moved, mut failed, mut whole) = (0, None, true);
        for piece in chunks
            .chunks()
            .chunks((STEP_BYTES / CHUNK_BYTES_MAX as u64) as usize)
        {
            let gentle = inner
                .courtesy
                .is_watched(self.environment.clock.monotonic_nanoseconds());
            match self.rewrite(inner, round.target, piece, gentle) {
                Ok(done) => (moved, whole) = (moved + done.bytes, done.whole),
                Err(error) => failed = Some(error),
            }
            let users_first = inner
                .courtesy
                .wait(self.environment.clock.monotonic_nanoseconds())
                > 0;
            if failed.is_some() || !whole || users_first && moved > 0 {
                // What was moved is not moved twice.
                whole = false;
                break;
            }
        }
        // The same page again, unless all of it was tried.
        let next = match whole {
            true => page.next,
            false => Some(round.cursor),
        };
        if let Some(error @ StoreError::Stopped(_)) = failed {
            return Err(error);
        }
        let failed = failed.map(|error| match error {
            StoreError::NoSpace => self.describe_no_room(inner, round.target),
            error => error.to_string(),
        });
        // Meanwhile it may have been ended, and another one begun.
        if inner
            .aging
            .round
            .as_ref()
            .is_some_and(|now| now.job == job && now.source == round.source)
        {
            self.count_aging(inner, moved, now, next, failed)?;
        }
        Ok(0)
    }

    fn show_aging(&self, inner: &mut Inner, round: &Round) -> Result<(), StoreError> {
        let name = |tier: u8| {
            inner
                .policies
                .get(usize::from(tier))
                .map_or("", |policy| policy.name.as_str())
        };
        let reason = format!(
            "moving what was not used for {} s from tier '{}' down to '{}'",
            round.after_seconds,
            name(round.source),
            name(round.target)
        );
        let job = self.new_job(JobKind::Age, reason, 0, round.source, round.target);
        let id = self.add(inner, job, None)?;
        if let Some(round) = &mut inner.aging.round {
            round.job = Some(id);
        }
        Ok(())
    }

    fn count_aging(
        &self,
        inner: &mut Inner,
        moved: u64,
        now: u64,
        next: Option<Vec<u8>>,
        failed: Option<String>,
    ) -> Result<(), StoreError> {
        let Some(round) = &mut inner.aging.round else {
            return Ok(());
        };
        let over = next.is_none() || failed.is_some();
        let id = round.job;
        round.cursor = next.unwrap_or_default();
        if over {
            inner.aging.round = None;
        }
        let Some(active) = id.and_then(|id| inner.jobs.get_mut(&id)) else {
            return Ok(());
        };
        active.job.done_bytes += moved;
        active.job.total_bytes = active.job.done_bytes;
        active.count(moved, now);
        if !over || active.job.state.is_over() {
            return Ok(());
        }
        match failed {
            Some(cause) => active.job.fail(cause),
            None => active.job.finish(),
        }
        self.keep(inner, id.unwrap_or(0))?;
        self.forget_ended(inner)
    }
}
