//! Jobs that empty a device, and what jobs know of tiers when the order of tiers changes.
//!
//! Invariants: an evacuation that a restart interrupted waits for whoever opens the pool to give it its steps again;
//! one that is given none ends as cancelled; a job never goes on with the number of a tier that has changed.

use std::sync::atomic::Ordering;

use terrace_store::StoreError;

use super::{
    external_work::StoreSteps,
    job::{JobKind, JobState},
};
use crate::{error::MoverError, mover::Mover, policy::Exchange};

impl Mover {
    /// Empties a device as a job. `steps` is given the bytes that an interrupted job has moved already, if
    /// `interrupted` names one.
    pub fn evacuate(
        &self,
        device: u16,
        reason: &str,
        interrupted: Option<u64>,
        steps: impl FnOnce(u64) -> Box<dyn StoreSteps>,
    ) -> Result<u64, MoverError> {
        let id = self.begin_evacuation(device, reason, interrupted, steps)?;
        self.make_durable()?;
        Ok(id)
    }

    fn begin_evacuation(
        &self,
        device: u16,
        reason: &str,
        interrupted: Option<u64>,
        steps: impl FnOnce(u64) -> Box<dyn StoreSteps>,
    ) -> Result<u64, MoverError> {
        let mut inner = self.inner.lock();
        if let Some(id) = interrupted
            && let Some(active) = inner.jobs.get_mut(&id)
            && active.job.kind == JobKind::Evacuate
            && !active.job.state.is_over()
        {
            active.steps = Some(steps(active.job.done_bytes));
            return Ok(id);
        }
        let mut job = self.new_job(JobKind::Evacuate, reason.to_owned(), 0, 0, 0);
        job.dataset = u32::from(device);
        Ok(self.add(&mut inner, job, Some(steps(0)))?)
    }

    /// The newest job that empties this device, and its state.
    pub fn evacuation_of(&self, device: u16) -> Option<(u64, JobState)> {
        let inner = self.inner.lock();
        let found = inner.jobs.iter().rev().find(|(_, active)| {
            active.job.kind == JobKind::Evacuate && active.job.dataset == u32::from(device)
        });
        found.map(|(id, active)| (*id, active.job.state))
    }

    /// State and reason of a job.
    pub fn state_of(&self, id: u64) -> Option<(JobState, String)> {
        let inner = self.inner.lock();
        let active = inner.jobs.get(&id)?;
        Some((active.job.state, active.job.reason.clone()))
    }

    /// The tiers changed places: `place` says where each is now, or that it is gone. Call it before
    /// [`Self::set_policies`].
    pub fn tiers_changed(&self, place: impl Fn(u8) -> Option<u8>) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        self.tiers_generation.fetch_add(1, Ordering::SeqCst);
        inner.candidates.clear();
        inner.hot_chunks.clear();
        inner.exchange = Exchange::default();
        inner.aging.clear();
        inner.relayouts.clear();
        inner.rates.clear();
        inner.rising_from = 0;
        inner.jobs.values_mut().for_each(|active| active.tiers = 0);
        let mut changed = Vec::new();
        for (id, active) in &mut inner.jobs {
            let job = &mut active.job;
            if job.state.is_over() || !job.kind.migrates() {
                continue;
            }
            match (place(job.source), place(job.target)) {
                (Some(source), Some(target)) if !job.kind.is_round() => {
                    (job.source, job.target) = (source, target);
                }
                _ => {
                    job.end_because("the tiers of the pool changed");
                }
            }
            changed.push((*id, job.clone()));
        }
        changed.iter().try_for_each(|(id, job)| self.persist(*id, job))
    }
}
