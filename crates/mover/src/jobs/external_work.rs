//! `StoreSteps`: work of the store that runs as a job, in steps: a scrub, a compaction, the emptying of a device.
//!
//! Invariants: a step is bounded by what it is told; the store says what there is to do and what was done, the job only
//! shows it.

use terrace_store::StoreError;

use super::job::{Job, JobState};
use crate::{mover::SECOND, pins::Subtree};

/// Work of the store that runs as a job, in steps: a scrub, a compaction.
pub trait StoreSteps: Send {
    /// Does a bounded piece, of about `budget_bytes`.
    fn step(&mut self, budget_bytes: u64) -> Result<StoreWork, StoreError>;
}

/// What a step of the store did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreWork {
    /// Bytes looked at or moved by this step.
    pub bytes: u64,
    /// All that there is to do, as far as is known now.
    pub total_bytes: u64,
    /// The tiers that this step moved something from or to, as bits; it was counted at their rates.
    pub tiers: u64,
    /// Whether that was the last step.
    pub finished: bool,
    /// There is nothing to do for a while, but it is not at its end.
    pub waits: bool,
    /// Something to show (what was found), instead of the reason.
    pub note: Option<String>,
}

/// What a step works on: a copy of the job, since the lock is released meanwhile.
pub(crate) struct Work {
    pub(crate) job: Job,
    pub(crate) moved: u64,
    pub(crate) waiting: Option<&'static str>,
    /// Why all that could be done of it is not all that was to be done: it is to be tried again from its start.
    pub(crate) unread: Option<String>,
    /// The tiers that the last step that moved something moved from or to, as bits.
    pub(crate) tiers: u64,
    pub(crate) subtree: Option<Subtree>,
}

/// Does a step of work of the store; returns 0, or for how long to wait.
pub(crate) fn store_step(
    work: &mut Work,
    steps: &mut Option<Box<dyn StoreSteps>>,
    step_bytes: u64,
) -> Result<u64, StoreError> {
    let job = &mut work.job;
    let Some(running) = steps else {
        job.state = JobState::Cancelled;
        return Ok(0);
    };
    let done = running.step(step_bytes)?;
    job.done_bytes = job.done_bytes.saturating_add(done.bytes);
    job.total_bytes = done.total_bytes.max(job.done_bytes);
    work.moved = done.bytes;
    if done.tiers != 0 {
        work.tiers = done.tiers;
    }
    if let Some(note) = done.note {
        job.reason = note;
    }
    if done.finished {
        job.finish();
        *steps = None;
    }
    if done.waits {
        work.waiting = Some("waiting for what is being written there");
        return Ok(SECOND);
    }
    Ok(0)
}
