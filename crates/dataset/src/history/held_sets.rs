//! `HeldSets`: changes which checkpoints of datasets are held, in the store and in RAM.
//!
//! Invariants: taking a checkpoint is one record per dataset; letting go of one is two records (the held record goes, a sweep job
//! comes), whatever it holds; a checkpoint leaves the held set under the commit lock of its dataset, so that no batch keeps
//! anything for it afterwards.

use std::sync::Arc;

use terrace_store::Batch;

use super::recount::Recounter;
use crate::{
    live::Environment,
    records::{HeldRecord, Job, Recount, keys},
    registry::{Node, PoolFacts},
    settings::DatasetError,
};

/// See the module.
pub(crate) struct HeldSets {
    environment: Arc<Environment>,
    facts: Arc<PoolFacts>,
    recounter: Arc<Recounter>,
}

impl HeldSets {
    pub(crate) fn new(
        environment: &Arc<Environment>,
        facts: &Arc<PoolFacts>,
        recounter: &Arc<Recounter>,
    ) -> Self {
        Self {
            environment: environment.clone(),
            facts: facts.clone(),
            recounter: recounter.clone(),
        }
    }

    /// Puts `checkpoint` into the held sets of datasets whose commit locks are held and that are committed to it.
    pub(super) fn hold(
        &self,
        checkpoint: u64,
        mut records: Vec<(&Arc<Node>, HeldRecord)>,
    ) -> Result<(), DatasetError> {
        let mut batch = Batch::new();
        for (node, record) in &mut records {
            let counters = node.state.counters();
            record.referenced_bytes = counters.referenced_bytes();
            record.objects = counters.objects;
            batch.put(keys::held(node.number(), checkpoint), record.encode());
            if let Some(counters) = self.recounter.all_shared(node) {
                batch.put(keys::counters(node.number()), counters.encode());
            }
        }
        self.facts.commit(batch)?;
        for (node, record) in records {
            node.state.held_mut().insert(checkpoint, record);
            if let Some(counters) = self.recounter.all_shared(node) {
                node.state.set_recount(None);
                node.state.set_counters(counters);
            }
        }
        Ok(())
    }

    /// Takes checkpoints that still pass `check` out of a dataset's held set and gives what only they held to the
    /// sweep.
    pub(super) fn drop_checkpoints(
        &self,
        node: &Arc<Node>,
        checkpoints: &[u64],
        check: impl Fn(&HeldRecord) -> bool,
    ) -> Result<(), DatasetError> {
        let _commit = node.state.commit_lock();
        if node.state.is_gone() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.privileged();
        let mut jobs = Vec::new();
        let mut removed = Vec::new();
        // No version dies for a holder at or above this before the checkpoint is out of the set.
        let current = self.facts.checkpoints().current();
        {
            let mut held = node.state.held_mut();
            for &checkpoint in checkpoints {
                if !held.get(checkpoint).is_some_and(&check) {
                    continue;
                }
                let Some(record) = held.remove(checkpoint) else {
                    continue;
                };
                removed.push((checkpoint, record));
                let job = Job::Snapshot {
                    dataset: node.number(),
                    previous: held.newest_before(checkpoint),
                    snapshot: checkpoint,
                    next: held.oldest_after(checkpoint).unwrap_or(current).min(current),
                    cursor: Vec::new(),
                };
                batch.delete(keys::held(node.number(), checkpoint));
                jobs.push(self.facts.number_job(&mut batch, job));
            }
        }
        let newest_gone = removed.iter().map(|(checkpoint, _)| *checkpoint).max();
        let recounted = newest_gone.and_then(|gone| self.recounter.shared_without(node, gone, &mut batch));
        if let Err(error) = self.facts.commit(batch) {
            let mut held = node.state.held_mut();
            removed
                .into_iter()
                .for_each(|(checkpoint, record)| held.insert(checkpoint, record));
            return Err(error.into());
        }
        if let Some((counters, job)) = recounted {
            let recount = job.as_ref().and_then(|(number, job)| Recount::of(*number, job));
            node.state.set_recount(recount);
            node.state.set_counters(counters);
            node.state.usage().give_back();
            jobs.extend(job);
        }
        node.end_views(removed.iter().map(|(checkpoint, _)| *checkpoint));
        self.facts.jobs().add(jobs);
        Ok(())
    }

    /// What is recorded of a held checkpoint is this from now on. Durable when it returns.
    pub(super) fn replace_held(
        &self,
        node: &Node,
        checkpoint: u64,
        record: HeldRecord,
    ) -> Result<(), DatasetError> {
        let mut batch = Batch::new();
        batch.privileged();
        batch.put(keys::held(node.number(), checkpoint), record.encode());
        let sequence = self.environment.store.commit(batch)?;
        node.state.held_mut().insert(checkpoint, record);
        self.environment.store.flush(sequence)?;
        Ok(())
    }
}
