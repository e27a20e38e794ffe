//! Commits: freeze, build, commit, flush; one for all callers that wait at the same time.
//!
//! Invariants: a caller returns only after a freeze that began after its call was committed; an error of that commit
//! reaches every caller that waited for it; what failed stays frozen and is tried first by the next commit, so that
//! a later success never leaves it out; no caller waits for ever on a thread that a silent device blocks (0094).

use super::{build::Builder, chunk_writer::ChunkWriter, freeze::Frozen};
use crate::{
    live::{ANSWERS_LOOK, DatasetState, DirtyEpoch, ObjectTable, Stopped},
    posix::FsError,
    settings::Durability,
};
use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
        },
    },
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
struct Group {
    rounds: Mutex<Rounds>,
    finished: Condvar,
    skipped: AtomicBool,
}

impl Group {
    /// A freeze could not take what is dirty because an earlier one was still to be committed.
    fn skipped(&self) {
        self.skipped.store(true, SeqCst);
    }

    fn take_skipped(&self) -> bool {
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

/// What is frozen and waits to be committed, and those who wait for it.
pub(crate) struct CommitQueue {
    pub(super) dataset: Arc<DatasetState>,
    pub(super) table: Arc<ObjectTable>,
    pub(super) epoch: Arc<DirtyEpoch>,
    builder: Builder,
    /// What a freeze took and no commit has taken over yet. Used under the commit lock.
    pending: Mutex<Option<Frozen>>,
    /// A commit is being built.
    building: AtomicBool,
    group: Group,
}

impl CommitQueue {
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        table: &Arc<ObjectTable>,
        epoch: &Arc<DirtyEpoch>,
        chunks: &Arc<ChunkWriter>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
            epoch: epoch.clone(),
            builder: Builder {
                dataset: dataset.clone(),
                table: table.clone(),
                chunks: chunks.clone(),
            },
            pending: Mutex::default(),
            building: AtomicBool::new(false),
            group: Group::default(),
        })
    }

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
            .clear_landing(self.epoch.uncommitted_bytes());
        let _lock = self.dataset.commit_lock_while_answered()?;
        if self.dataset.is_gone() {
            return Err(FsError::Stale);
        }
        self.commit_pending()?;
        {
            let _still = self.epoch.stand_still()?;
            let stopped = self.epoch.stop();
            // What an earlier freeze had to leave out is in this one.
            self.group.take_skipped();
            let frozen = Frozen::freeze(&stopped, self.dataset.current_checkpoint());
            *self.pending.lock() = Some(frozen);
        }
        self.commit_pending()
    }

    /// Sets everything dirty aside as the state of `checkpoint`, unless what an earlier commit could not write comes first; what is
    /// dirty now then waits for the next one. The commit lock is held.
    pub(crate) fn freeze(&self, stopped: &Stopped<'_>, checkpoint: u64) {
        let mut pending = self.pending.lock();
        match *pending {
            None => *pending = Some(Frozen::freeze(stopped, checkpoint)),
            Some(_) => self.group.skipped(),
        }
    }

    /// Commits what is frozen; an error also if a freeze could not take what was dirty then. The commit lock is held.
    pub(crate) fn commit_frozen(&self) -> Result<Sequence, FsError> {
        let sequence = self.commit_pending()?;
        if self.group.take_skipped() {
            return Err(FsError::io(
                "an earlier commit had failed and was made up for only now; try again",
            ));
        }
        Ok(sequence)
    }

    /// Whether something frozen waits to be committed. The commit lock is held.
    pub(crate) fn is_waiting(&self) -> bool {
        self.pending.lock().is_some()
    }

    /// Builds and commits what is frozen. The commit lock is held.
    fn commit_pending(&self) -> Result<Sequence, FsError> {
        let Some(frozen) = self.pending.lock().take() else {
            return Ok(self.dataset.store().newest());
        };
        if self.dataset.is_gone() {
            // Its records are being deleted: what is dirty goes with them.
            return Ok(self.dataset.store().newest());
        }
        if self.building.swap(true, Relaxed) {
            // A panic took what was frozen with it: nothing may be reported as safe any more.
            return Err(FsError::io(
                "an earlier commit was interrupted by a fault; stop and start the pool",
            ));
        }
        let environment = self.dataset.environment();
        let (began, dirty_bytes) = (environment.clock.monotonic_nanoseconds(), frozen.dirty_bytes);
        let result = self.builder.build_and_commit(&frozen);
        self.building.store(false, Relaxed);
        match result {
            Ok((sequence, outcome)) => {
                self.committed(frozen, outcome);
                let took = environment.clock.monotonic_nanoseconds() - began;
                environment.budget.committed(dirty_bytes, took);
                Ok(sequence)
            }
            Err(error) => {
                *self.pending.lock() = Some(frozen);
                Err(error)
            }
        }
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
        match self.dataset.settings().durability {
            Durability::Ram | Durability::Timed => Ok(()),
            Durability::Barrier | Durability::Sync => self.flush(),
        }
    }

    /// With `durability=sync`, makes the operation that just ended durable. No lock is held.
    pub(crate) fn settle(&self) -> Result<(), FsError> {
        if self.dataset.settings().durability == Durability::Sync {
            self.flush()
        } else {
            Ok(())
        }
    }
}
