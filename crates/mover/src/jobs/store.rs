//! The records of jobs: making, keeping and dropping them.
//!
//! Invariants: a job is listed only when its record was written once; a record that cannot be written anew is written as
//! soon as that succeeds, and the job goes on meanwhile; the newest number stays listed, so that none is used twice.

use terrace_store::{Batch, StoreError};

use super::{
    external_work::StoreSteps,
    job::{Job, JobKind, JobState},
    leftovers::Left,
};
use crate::mover::{Active, Inner, Mover};

/// Ended jobs that are still listed.
const ENDED_KEPT: usize = 20;

impl Mover {
    pub(crate) fn new_job(
        &self,
        kind: JobKind,
        reason: String,
        total_bytes: u64,
        source: u8,
        target: u8,
    ) -> Job {
        Job {
            kind,
            state: JobState::Running,
            reason,
            started: self.environment.now(),
            done_bytes: 0,
            total_bytes,
            source,
            target,
            dataset: 0,
            body: 0,
            pass: 0,
            cursor: Vec::new(),
            is_directory: false,
            room: None,
            for_pin: false,
            left: Left::default(),
        }
    }

    /// Numbers a job and keeps it.
    pub(crate) fn add(
        &self,
        inner: &mut Inner,
        job: Job,
        steps: Option<Box<dyn StoreSteps>>,
    ) -> Result<u64, StoreError> {
        let id = inner.next_job;
        self.persist(id, &job)?;
        inner.next_job += 1;
        let mut active = Active::new(job, self.environment.clock.monotonic_nanoseconds());
        active.steps = steps;
        inner.jobs.insert(id, active);
        Ok(id)
    }

    pub(crate) fn persist(&self, id: u64, job: &Job) -> Result<(), StoreError> {
        let mut batch = Batch::new();
        batch.privileged();
        batch.put(Job::key(id), job.encode());
        self.environment.store.commit(batch)?;
        Ok(())
    }

    /// What was asked for by hand outlasts a crash from the moment it is answered. To be called without the lock: it waits
    /// for devices.
    pub(crate) fn make_durable(&self) -> Result<(), StoreError> {
        let store = &self.environment.store;
        store.flush(store.newest())
    }

    /// The state of a job, ended or not, outlasts a crash from here on: to be called before others draw consequences from its end.
    ///
    /// # Errors
    /// If its record cannot be written or flushed; then nothing is certain, and this is to be asked for again.
    pub fn keep_end(&self, id: u64) -> Result<(), StoreError> {
        {
            let mut inner = self.inner.lock();
            if let Some(active) = inner.jobs.get_mut(&id).filter(|active| active.unsaved) {
                self.persist(id, &active.job)?;
                active.unsaved = false;
            }
        }
        self.make_durable()
    }

    /// Keeps a job that is in the list. When its record cannot be written (a device fails, the pool is full beyond its
    /// reserve) the job goes on and says so, and the record is written as soon as that succeeds: a restart before would
    /// do some of it again, which is harmless.
    pub(crate) fn keep(&self, inner: &mut Inner, id: u64) -> Result<(), StoreError> {
        let Some(active) = inner.jobs.get_mut(&id) else {
            return Ok(());
        };
        match self.persist(id, &active.job) {
            Err(error @ StoreError::Stopped(_)) => Err(error),
            Err(error) => {
                if !active.unsaved {
                    tracing::warn!(job = id, %error, "the state of a job could not be saved; it is tried again");
                }
                active.unsaved = true;
                Ok(())
            }
            Ok(()) => {
                active.unsaved = false;
                Ok(())
            }
        }
    }

    pub(crate) fn keep_unsaved(&self, inner: &mut Inner) -> Result<(), StoreError> {
        let unsaved = inner.jobs.iter().filter(|(_, active)| active.unsaved);
        let unsaved: Vec<u64> = unsaved.map(|(id, _)| *id).collect();
        unsaved.into_iter().try_for_each(|id| self.keep(inner, id))
    }

    /// Drops all but the newest ended jobs. The newest number stays listed, so that numbers are not used twice.
    pub(crate) fn forget_ended(&self, inner: &mut Inner) -> Result<(), StoreError> {
        let ended: Vec<u64> = inner
            .jobs
            .iter()
            .filter(|(_, active)| active.job.state.is_over())
            .map(|(id, _)| *id)
            .collect();
        if ended.len() <= ENDED_KEPT {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.privileged();
        let dropped = &ended[..ended.len() - ENDED_KEPT];
        dropped.iter().for_each(|id| batch.delete(Job::key(*id)));
        // If they cannot be dropped now, the next job that ends tries again.
        match self.environment.store.commit(batch) {
            Err(error @ StoreError::Stopped(_)) => return Err(error),
            Err(error) => tracing::warn!(%error, "ended jobs could not be dropped from the list"),
            Ok(_) => dropped.iter().for_each(|id| drop(inner.jobs.remove(id))),
        }
        Ok(())
    }
}
