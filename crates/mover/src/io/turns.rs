//! Turns: which of the kinds of work the mover does next.
//!
//! Invariants: each kind that has something to do gets its turn after at most one step of each other one, so that none
//! keeps another waiting: a promotion finds something to do as long as users read. Within a kind the oldest job comes first. Only
//! what is cold and sinks for those who write, or for what is hot, comes before: [`SINKING_STEPS`] of it for one of all others.

use terrace_store::StoreError;

use crate::{
    jobs::{JobKind, JobState},
    mover::{Guard, Inner, Mover},
};

/// The kinds of work that take turns.
#[derive(Debug, Clone, Copy)]
enum Turn {
    HotChunks,
    HotRegions,
    Old,
    Fragments,
    ByHand,
    Others,
}

/// Steps of what sinks first between two of other work.
const SINKING_STEPS: u8 = 16;

const TURNS: [Turn; 6] = [
    Turn::HotChunks,
    Turn::HotRegions,
    Turn::Old,
    Turn::Fragments,
    Turn::ByHand,
    Turn::Others,
];

impl Mover {
    /// Does a piece of what comes next; returns 0, or for how long there is nothing to do.
    pub(crate) fn take_turns(&self, inner: &mut Guard<'_>, now: u64) -> Result<u64, StoreError> {
        // Writers wait for it, and with them commits, for which other work may have to wait in turn.
        if inner.sank_first < SINKING_STEPS {
            let first = self.sinking_first(inner);
            if !first.is_empty() && self.work_on_jobs(inner, now, |id, _| first.contains(&id))? == 0 {
                inner.sank_first += 1;
                return Ok(0);
            }
        }
        inner.sank_first = 0;
        let mut wait = u64::MAX;
        for after in 0..TURNS.len() {
            let at = (inner.turn + after) % TURNS.len();
            match self.take_turn(inner, TURNS[at], now)? {
                0 => {
                    inner.turn = at + 1;
                    return Ok(0);
                }
                pause => wait = wait.min(pause),
            }
        }
        Ok(wait)
    }

    /// Does a piece of one kind of work; returns 0, or for how long there is none.
    fn take_turn(&self, inner: &mut Guard<'_>, turn: Turn, now: u64) -> Result<u64, StoreError> {
        match turn {
            Turn::HotChunks if self.is_enabled() => self.hot_chunks_step(inner, now),
            Turn::HotRegions if self.is_enabled() && !inner.candidates.is_empty() => {
                self.promote_step(inner, now)
            }
            Turn::Old if self.is_enabled() && !inner.aging.is_idle() => self.aging_step(inner, now),
            // Dead blocks come back where they are, as by compaction.
            Turn::Fragments
                if !inner.relayouts.is_idle() && (self.is_enabled() || inner.relayouts.is_early()) =>
            {
                self.relayout_step(inner, now)
            }
            Turn::ByHand => self.work_on_jobs(inner, now, |_, kind| kind == JobKind::Move),
            Turn::Others => self.work_on_jobs(inner, now, |_, kind| kind != JobKind::Move),
            Turn::HotChunks | Turn::HotRegions | Turn::Old | Turn::Fragments => Ok(u64::MAX),
        }
    }

    /// Works on the oldest job of these that may; returns 0, or for how long none may.
    fn work_on_jobs(
        &self,
        inner: &mut Guard<'_>,
        now: u64,
        is_meant: impl Fn(u64, JobKind) -> bool,
    ) -> Result<u64, StoreError> {
        let mut wait = u64::MAX;
        let mut ids = Vec::new();
        let jobs = inner.jobs.iter().filter(|(_, active)| self.may_run(active));
        for (id, active) in jobs.filter(|(id, active)| is_meant(**id, active.job.kind)) {
            match active
                .retry
                .as_ref()
                .map_or(0, |retry| retry.at.saturating_sub(now))
            {
                0 => ids.push(*id),
                pause => wait = wait.min(pause),
            }
        }
        for id in ids {
            match self.work(inner, id, now)? {
                0 => return Ok(0),
                pause => wait = wait.min(pause),
            }
        }
        Ok(wait)
    }

    /// Whether somebody moves this body by hand, or has moved it down lately: no policy moves it up meanwhile.
    pub(crate) fn is_moved_by_hand(&self, inner: &Inner, dataset: u32, body: u64) -> bool {
        if inner.by_hand.holds(dataset, body) {
            return true;
        }
        inner.jobs.values().any(|active| {
            let job = &active.job;
            let running = job.kind == JobKind::Move && job.state == JobState::Running;
            let beneath = active
                .subtree
                .as_ref()
                .is_some_and(|all| all.holds(dataset, body));
            running && job.dataset == dataset && (job.body == 0 || job.body == body || beneath)
        })
    }
}
