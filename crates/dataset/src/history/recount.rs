//! `Recounter`: how much a volume has in common with its newest held checkpoint, when checkpoints come and go.
//!
//! A new one has all blocks in common with it. When a snapshot goes and none is left, nothing is in common; when an older one is left,
//! the regions are counted again in the background, and until that is over the reservation counts only what is certain.
//!
//! Invariants: the record of the counters goes into the same batch as what changes the held set; a recount and its progress are one
//! batch each, made under the commit lock.

use std::sync::Arc;

use terrace_store::{Batch, StoreError};

use crate::{
    live::{DatasetState, Shared},
    records::{Counters, Job, Records, Recount, after, decode_region, keys},
    registry::{Node, PoolFacts},
};

/// Regions that one step counts, at most: writers of the volume wait for it.
const REGIONS: usize = 128;

/// See the module.
pub(crate) struct Recounter {
    facts: Arc<PoolFacts>,
}

impl Recounter {
    pub(crate) fn new(facts: &Arc<PoolFacts>) -> Self {
        Self { facts: facts.clone() }
    }

    /// The counters of a dataset of which a checkpoint is held now, if it has promises to keep.
    pub(super) fn all_shared(&self, node: &Node) -> Option<Counters> {
        let mut counters = node.state.counters();
        let has_preallocated = counters.preallocated.blocks > 0;
        if has_preallocated {
            // Nothing that was written until now stands for what files have preallocated.
            counters.preallocated.own_blocks = 0;
            counters.preallocated.since = node.state.store().next_chunk().0;
        }
        if node.state.kind().is_volume() {
            counters.shared_blocks = Some(counters.live_blocks);
        }
        (has_preallocated || node.state.kind().is_volume()).then_some(counters)
    }

    /// The counters of a volume whose held checkpoint `gone` has left the set, if that was the newest, and the job that counts
    /// them, if there is something to be counted; both are put into `batch`.
    #[allow(clippy::type_complexity)]
    pub(super) fn shared_without(
        &self,
        node: &Node,
        gone: u64,
        batch: &mut Batch,
    ) -> Option<(Counters, Option<(u64, Job)>)> {
        let newest = node.state.held().newest_before(u64::MAX);
        if !node.state.kind().is_volume() || newest.is_some_and(|newest| newest > gone) {
            return None;
        }
        let counters = Counters {
            shared_blocks: Some(0),
            ..node.state.counters()
        };
        batch.put(keys::counters(node.number()), counters.encode());
        let job = newest.map(|held| {
            let job = Job::Recount {
                dataset: node.number(),
                held,
                cursor: Vec::new(),
            };
            self.facts.number_job(batch, job)
        });
        Some((counters, job))
    }

    /// Goes on with a recount that was under way when the pool was closed, or begins the first one of a volume that was
    /// rebuilt.
    pub(crate) fn resume(&self, state: &DatasetState) {
        if !state.kind().is_volume() {
            return state.count_own();
        }
        let counters = state.counters();
        let newest = state.held().newest_before(u64::MAX);
        let Some(held) = newest else {
            return state.set_counters(Counters {
                shared_blocks: Some(0),
                ..counters
            });
        };
        let recount = self.facts.jobs().recount_of(state.number(), held).or_else(|| {
            counters.shared_blocks.is_none().then(|| {
                let job = Job::Recount {
                    dataset: state.number(),
                    held,
                    cursor: Vec::new(),
                };
                // Its record comes with the first step.
                let (number, job) = self.facts.number_job(&mut Batch::new(), job);
                self.facts.jobs().add([(number, job)]);
                Recount {
                    job: number,
                    held,
                    cursor: Vec::new(),
                }
            })
        });
        state.set_counters(Counters {
            shared_blocks: counters.shared_blocks.or(Some(0)),
            ..counters
        });
        state.set_recount(recount);
    }

    /// Counts the next few regions; what is left of the job.
    pub(super) fn step(
        &self,
        number: u64,
        state: &Arc<DatasetState>,
        records: usize,
    ) -> Result<Option<Job>, StoreError> {
        let _commit = state.commit_lock();
        let newest = state.held().newest_before(u64::MAX);
        let recount = state
            .recount()
            .filter(|recount| recount.job == number && newest == Some(recount.held));
        let Some(recount) = recount.filter(|_| !state.is_gone()) else {
            return self.facts.forget_job(number).map(|()| None);
        };
        let (first, end) = keys::dataset_range(keys::TABLE_REGION, state.number());
        let from = first.max(recount.cursor);
        let limit = records.clamp(1, REGIONS);
        let page = state.records().scan(&from, &end, limit)?;
        let mut shared = 0;
        for (key, value) in &page {
            shared += shared_blocks_of(state.records(), key, value, recount.held)?;
        }
        let last = page.last().filter(|_| page.len() == limit);
        let next = last.map(|(last, _)| Job::Recount {
            dataset: state.number(),
            held: recount.held,
            cursor: after(last),
        });
        let mut batch = state.batch(0);
        batch.privileged();
        batch.count_shared(i64::try_from(shared).unwrap_or(i64::MAX));
        match &next {
            Some(job) => batch.put_plain(keys::sweep(number), job.encode()),
            None => batch.delete_plain(keys::sweep(number)),
        }
        state.commit(batch)?;
        state.set_recount(next.as_ref().and_then(|job| Recount::of(number, job)));
        if next.is_none() {
            state.usage().give_back();
        }
        Ok(next)
    }
}

/// Blocks of the live region with this key and value that a held checkpoint sees as well.
pub(crate) fn shared_blocks_of(
    records: Records<'_>,
    key: &[u8],
    value: &[u8],
    held: u64,
) -> Result<u64, StoreError> {
    let live = decode_region(value)?;
    if live.birth <= held {
        return Ok(u64::from(live.record.mapped_blocks()));
    }
    let seen = records.past_region(key, held)?;
    Ok(u64::from(
        Shared::between(held, seen.as_ref(), Some(&live.record)).count(),
    ))
}
