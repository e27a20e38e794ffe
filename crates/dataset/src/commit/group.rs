//! Commits: freeze, build, commit, flush; one for all callers that wait at the same time.
//!
//! Invariants: a caller returns only after a freeze that began after its call was committed; an error of that commit
//! reaches every caller that waited for it; what failed stays frozen and is tried first by the next commit, so that
//! a later success never leaves it out; no caller waits for ever on a thread that a silent device blocks (0094).

use crate::{
    live::{ANSWERS_LOOK, LiveDataset},
    posix::FsError,
    settings::Durability,
};
use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Instant,
};

use parking_lot::{Condvar, Mutex};
use terrace_cache::Service;
use terrace_store::Sequence;

#[derive(Default)]
struct Rounds {
    started: u64,
    finished: u64,
    /// Since when one is under way.
    running: Option<Instant>,
    last: Option<Result<Sequence, FsError>>,
}

/// Those who wait for a commit together.
#[derive(Default)]
pub(crate) struct Group {
    rounds: Mutex<Rounds>,
    finished: Condvar,
    skipped: AtomicBool,
}

impl Group {
    /// A freeze could not take what is dirty because an earlier one was still to be committed.
    pub(crate) fn skipped(&self) {
        self.skipped.store(true, SeqCst);
    }

    pub(crate) fn take_skipped(&self) -> bool {
        self.skipped.swap(false, SeqCst)
    }
}

/// Ends a round even if its work panics, so that nobody waits forever.
struct Round<'a> {
    group: &'a Group,
    number: u64,
    result: Result<Sequence, FsError>,
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut rounds = self.group.rounds.lock();
        rounds.finished = self.number;
        rounds.running = None;
        rounds.last = Some(self.result.clone());
        self.group.finished.notify_all();
    }
}

impl LiveDataset {
    /// Hands everything done so far to the store; returns the sequence to flush.
    pub(crate) fn commit(&self) -> Result<Sequence, FsError> {
        let mut rounds = self.group.rounds.lock();
        let mine = rounds.started + 1;
        while let Some(since) = rounds.running {
            let waited = self.group.finished.wait_for(&mut rounds, ANSWERS_LOOK);
            if rounds.finished >= mine {
                break;
            }
            if waited.timed_out() && rounds.running == Some(since) {
                self.dataset.store().check_answers(since)?;
            }
        }
        if rounds.finished >= mine {
            return rounds
                .last
                .clone()
                .unwrap_or_else(|| Ok(self.dataset.store().newest()));
        }
        rounds.running = Some(Instant::now());
        rounds.started += 1;
        let number = rounds.started;
        drop(rounds);
        let failed = Err(FsError::io("the commit was interrupted"));
        let mut round = Round {
            group: &self.group,
            number,
            result: failed,
        };
        round.result = self.commit_now();
        round.result.clone()
    }

    fn commit_now(&self) -> Result<Sequence, FsError> {
        self.dataset
            .environment()
            .room
            .clear_landing(self.uncommitted_bytes());
        let _lock = self.dataset.commit_lock_while_answered()?;
        if self.dataset.is_gone() {
            return Err(FsError::Stale);
        }
        self.commit_pending()?;
        {
            let _still = self.stand_still()?;
            let _gate = self.gate.write();
            // What an earlier freeze had to leave out is in this one.
            self.group.take_skipped();
            let frozen = self.freeze(self.dataset.current_checkpoint());
            *self.pending.lock() = Some(frozen);
        }
        self.commit_pending()
    }

    /// Makes everything done so far durable.
    pub(crate) fn flush(&self) -> Result<(), FsError> {
        let sequence = self.commit()?;
        let environment = self.dataset.environment();
        let waiting = environment
            .foreground
            .begin(environment.clock.monotonic_nanoseconds());
        let flushed = self.dataset.store().flush(sequence);
        let now = environment.clock.monotonic_nanoseconds();
        environment.foreground.end(waiting, Service::Flush, now);
        Ok(flushed?)
    }

    /// fsync, as far as `durability` wants it.
    pub(crate) fn sync(&self) -> Result<(), FsError> {
        match self.settings().durability {
            Durability::Ram | Durability::Timed => Ok(()),
            Durability::Barrier | Durability::Sync => self.flush(),
        }
    }
}
