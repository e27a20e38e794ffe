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
use std::sync::{
    Arc,
    atomic::{
        AtomicBool,
        Ordering::{Relaxed, SeqCst},
    },
};

use terrace_cache::Service;
use terrace_store::Sequence;
use terrace_sync::{Mutex, Round, Rounds, rank};

/// What is frozen and waits to be committed, and those who wait for it.
pub(crate) struct CommitQueue {
    pub(super) dataset: Arc<DatasetState>,
    pub(super) table: Arc<ObjectTable>,
    pub(super) epoch: Arc<DirtyEpoch>,
    builder: Builder,
    /// What a freeze took and no commit has taken over yet. Used under the commit lock.
    pending: Mutex<Option<Frozen>, rank::dataset::Frozen>,
    /// A commit is being built.
    building: AtomicBool,
    /// Those who wait for a commit together.
    rounds: Rounds<Result<Sequence, FsError>, rank::Leaf>,
    /// A freeze could not take what was dirty, because an earlier one was still to be committed.
    skipped: AtomicBool,
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
            rounds: Rounds::default(),
            skipped: AtomicBool::new(false),
        })
    }

    /// Hands everything done so far to the store; returns the sequence to flush.
    pub(crate) fn commit(&self) -> Result<Sequence, FsError> {
        let clock = &*self.dataset.environment().clock;
        let committed = self.rounds.join(clock, ANSWERS_LOOK, self)?;
        committed.unwrap_or_else(|| Err(FsError::io("the commit was interrupted")))
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
            self.skipped.store(false, SeqCst);
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
            Some(_) => self.skipped.store(true, SeqCst),
        }
    }

    /// Commits what is frozen; an error also if a freeze could not take what was dirty then. The commit lock is held.
    pub(crate) fn commit_frozen(&self) -> Result<Sequence, FsError> {
        let sequence = self.commit_pending()?;
        if self.skipped.swap(false, SeqCst) {
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

impl Round for CommitQueue {
    type Result = Result<Sequence, FsError>;
    type Refusal = FsError;

    fn is_served(&self, is_later: bool) -> bool {
        is_later
    }

    fn may_wait(&self, since: u64, is_late: bool) -> Result<(), FsError> {
        match is_late {
            true => Ok(self.dataset.store().check_answers(since)?),
            false => Ok(()),
        }
    }

    fn may_lead(&self) -> Result<(), FsError> {
        Ok(())
    }

    fn lead(&self) -> Result<Sequence, FsError> {
        self.commit_now()
    }
}
