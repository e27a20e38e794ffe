//! `Sweeper`: freeing in the background what was destroyed in the foreground.
//!
//! Four kinds of work, each in bounded steps, each step one batch that also records how far it came, so that a crash
//! loses nothing but the last step:
//! * a destroyed snapshot: of the versions that died while a holder in `[snapshot, next)` was the newest held, those
//!   born in `(previous, snapshot]` have lost their last holder. The index by holder and birth finds them: the work
//!   is in proportion to what only that snapshot held, plus one seek per holder in the range;
//! * a destroyed dataset: all its records, by range;
//! * freed bodies of deleted and truncated objects (orphan records);
//! * besides, what a volume has in common with a held checkpoint is counted again here (`recount.rs`).
//!
//! Invariants: what a job will free is fixed when the job is made (nothing is added to it later), so steps need no
//! lock but the commit lock, for the counters; doing a step twice frees nothing twice, since the records are gone.

use super::recount::Recounter;
use crate::{
    live::{DatasetState, Environment},
    records::{
        DATASET_TABLES, Job, Old, OrphanCursor, OrphanRecord, RegionRecord, after, damaged, decode_region,
        keys,
    },
    registry::{PoolFacts, Registry},
};
use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use terrace_store::{Batch, StoreError};

/// Whether there is more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Call again.
    More,
    /// Nothing is left.
    Idle,
}

/// See the module.
pub struct Sweeper {
    environment: Arc<Environment>,
    registry: Arc<Registry>,
    facts: Arc<PoolFacts>,
    recounter: Arc<Recounter>,
}

impl Sweeper {
    pub(crate) fn new(
        environment: &Arc<Environment>,
        registry: &Arc<Registry>,
        facts: &Arc<PoolFacts>,
        recounter: &Arc<Recounter>,
    ) -> Self {
        Self {
            environment: environment.clone(),
            registry: registry.clone(),
            facts: facts.clone(),
            recounter: recounter.clone(),
        }
    }

    /// Whether background freeing is left to do.
    pub fn is_pending(&self) -> bool {
        self.registry.any(|node| node.state.has_orphans()) || !self.facts.jobs().is_idle()
    }

    /// Content of destroyed datasets that is not freed yet, bytes, before compression and dedup.
    pub fn pending_bytes(&self) -> u64 {
        self.facts.jobs().bytes()
    }

    /// Does one bounded step of background freeing: looks at no more than about `records` records.
    pub fn step(&self, records: usize) -> Result<Progress, StoreError> {
        let records = records.clamp(1, 10_000);
        let mut cursor = self.facts.jobs().turn();
        if self.sweep_orphans(&mut cursor, records)? {
            return Ok(Progress::More);
        }
        let Some((number, job)) = self.facts.jobs().first() else {
            return Ok(Progress::Idle);
        };
        let left = match &job {
            Job::Dataset { .. } => self.sweep_dataset(number, job, records)?,
            Job::Snapshot { dataset, .. } | Job::Recount { dataset, .. } => match self.existing(*dataset) {
                Some(state) if matches!(job, Job::Recount { .. }) => {
                    self.recounter.step(number, &state, records)?
                }
                Some(state) => self.sweep_snapshot(number, &state, job, records)?,
                // Its records are freed by another job.
                None => self.facts.forget_job(number).map(|()| None)?,
            },
        };
        self.facts.jobs().stepped(number, left);
        Ok(Progress::More)
    }

    /// The state of a dataset that was not destroyed.
    fn existing(&self, dataset: u32) -> Option<Arc<DatasetState>> {
        let node = self.registry.by_number(dataset)?;
        (!node.state.is_gone()).then(|| node.state.clone())
    }

    fn sweep_snapshot(
        &self,
        number: u64,
        state: &Arc<DatasetState>,
        job: Job,
        records: usize,
    ) -> Result<Option<Job>, StoreError> {
        let Job::Snapshot {
            dataset,
            previous,
            snapshot,
            next,
            mut cursor,
        } = job
        else {
            return Ok(None);
        };
        let first_birth = previous.map_or(0, |previous| previous.saturating_add(1));
        if cursor.is_empty() {
            cursor = keys::holder_from(dataset, snapshot, first_birth);
        }
        let end = keys::holder_from(dataset, next, 0);
        let mut dying = Vec::new();
        let mut budget = records;
        let mut done = false;
        while budget > 0 && !done {
            let page = state.records().scan(&cursor, &end, budget.min(64))?;
            if page.is_empty() {
                done = true;
            }
            for (key, _) in &page {
                budget -= 1;
                let holding = keys::parse_holder(key).map_err(|cause| damaged("an index key", &cause))?;
                if holding.birth < first_birth {
                    // What the previous snapshot holds too: on to the versions that were born later.
                    cursor = keys::holder_from(dataset, holding.holder, first_birth);
                    break;
                }
                if holding.birth > snapshot {
                    // What later holders hold: on to the next holder.
                    match holding.holder.checked_add(1) {
                        Some(holder) => cursor = keys::holder_from(dataset, holder, first_birth),
                        None => done = true,
                    }
                    break;
                }
                cursor = after(key);
                dying.push(holding);
            }
        }
        let mut freed = Vec::with_capacity(dying.len());
        for holding in dying {
            let region = holding.live.first() == Some(&keys::TABLE_REGION);
            let value = if region {
                state
                    .records()
                    .get(&keys::history(&holding.live, holding.death))?
            } else {
                None
            };
            freed.push((holding, value.as_deref().map(decode_region).transpose()?));
        }
        let _commit = state.commit_lock();
        let mut batch = state.batch(0);
        batch.privileged();
        for (holding, region) in &freed {
            batch.drop_history(holding, region.as_ref().map(|region| &region.record));
        }
        let job = Job::Snapshot {
            dataset,
            previous,
            snapshot,
            next,
            cursor,
        };
        if done {
            batch.delete_plain(keys::sweep(number));
        } else {
            batch.put_plain(keys::sweep(number), job.encode());
        }
        if !state.is_gone() {
            state.commit(batch)?;
        }
        Ok((!done).then_some(job))
    }

    fn sweep_dataset(&self, number: u64, job: Job, records: usize) -> Result<Option<Job>, StoreError> {
        let Job::Dataset {
            dataset,
            mut cursor,
            mut bytes,
        } = job
        else {
            return Ok(None);
        };
        let table = DATASET_TABLES
            .iter()
            .find(|table| cursor.first().is_none_or(|at| *table >= at));
        let mut batch = Batch::new();
        batch.privileged();
        let mut done = false;
        if let Some(table) = table {
            let (start, end) = keys::dataset_range(*table, dataset);
            let from = start.max(cursor);
            let page = self
                .environment
                .records()
                .dataset(dataset)
                .scan(&from, &end, records)?;
            let mut references = BTreeMap::new();
            for (key, value) in &page {
                batch.delete(key.to_vec());
                if let Some(record) = region_of(key, value)? {
                    for run in record.runs() {
                        *references.entry(run.chunk).or_insert(0i64) -= i64::from(run.count);
                    }
                    bytes = bytes.saturating_sub(u64::from(record.mapped_blocks()) * 4096);
                }
            }
            references
                .into_iter()
                .for_each(|(chunk, blocks)| batch.reference(chunk, blocks));
            cursor = match page.last() {
                Some((last, _)) if page.len() == records => after(last),
                _ => vec![table + 1],
            };
        } else {
            done = true;
        }
        let job = Job::Dataset {
            dataset,
            cursor,
            bytes,
        };
        if done {
            batch.delete(keys::sweep(number));
        } else {
            batch.put(keys::sweep(number), job.encode());
        }
        self.environment.store.commit(batch)?;
        Ok((!done).then_some(job))
    }

    /// One step on the orphans of some dataset; `false` if there are none.
    fn sweep_orphans(&self, cursor: &mut Option<OrphanCursor>, records: usize) -> Result<bool, StoreError> {
        if cursor.is_none() {
            *cursor = self.next_orphan()?;
        }
        let Some(at) = cursor else { return Ok(false) };
        let Some(state) = self.existing(at.dataset) else {
            *cursor = None;
            return Ok(true);
        };
        let value = state.records().get(&keys::orphan(at.dataset, at.number, true))?;
        let record = value.map(|value| OrphanRecord::decode(&value)).transpose();
        let record = record.map_err(|cause| damaged("an orphan record", &cause))?;
        match record {
            Some(OrphanRecord::Freed { object, death, .. }) => {
                if self.free_orphan(&state, at, object, death, records)? {
                    *cursor = None;
                }
            }
            _ => *cursor = None,
        }
        Ok(true)
    }

    /// The first orphan to free of any dataset that said it has one.
    fn next_orphan(&self) -> Result<Option<OrphanCursor>, StoreError> {
        for (_, node) in self.registry.all() {
            let state = node.state.clone();
            // Lowered before looking, so that what is freed meanwhile raises it again.
            if !state.take_orphans() {
                continue;
            }
            let found = self.find_freed(&state);
            if !matches!(found, Ok(None)) {
                state.orphans_freed();
            }
            if let Some(number) = found? {
                return Ok(Some(OrphanCursor {
                    dataset: state.number(),
                    number,
                    next: Vec::new(),
                }));
            }
        }
        Ok(None)
    }

    fn find_freed(&self, state: &DatasetState) -> Result<Option<u64>, StoreError> {
        let (from, to) = keys::dataset_range(keys::TABLE_ORPHAN, state.number());
        for found in state.records().each(from, to, 64) {
            let (key, value) = found?;
            let record = OrphanRecord::decode(&value).map_err(|cause| damaged("an orphan record", &cause))?;
            if matches!(record, OrphanRecord::Freed { .. }) {
                let place = keys::parse_orphan(&key).map_err(|cause| damaged("an orphan key", &cause))?;
                return Ok(Some(place.1));
            }
        }
        Ok(None)
    }

    /// Frees some of a body (and attributes); `true` when all is freed.
    fn free_orphan(
        &self,
        state: &Arc<DatasetState>,
        at: &mut OrphanCursor,
        object: u64,
        death: u64,
        records: usize,
    ) -> Result<bool, StoreError> {
        let dataset = at.dataset;
        let from = keys::region(dataset, at.number, 0).max(at.next.clone());
        let page = state
            .records()
            .scan(&from, &keys::region_end(dataset, at.number), records)?;
        let regions_done = page.len() < records;
        let mut attributes = Vec::new();
        let mut done = regions_done;
        if regions_done && object != 0 {
            let (from, to) = keys::xattr_range(dataset, object);
            attributes = state.records().scan(&from, &to, records)?;
            done = attributes.len() < records;
        }
        let _commit = state.commit_lock();
        if state.is_gone() {
            return Ok(true);
        }
        let mut batch = state.batch(death);
        batch.privileged();
        for (key, value) in &page {
            let (_, body, region) =
                keys::parse_region(key).map_err(|cause| damaged("a region key", &cause))?;
            let old = decode_region(value)?;
            batch.put_region(body, region, Some((old.birth, &old.record)), None);
        }
        for (key, _) in &attributes {
            batch.delete(key.to_vec(), Old::Unknown)?;
        }
        if done {
            batch.delete_freed(at.number);
            batch.delete_plain(keys::heat(dataset, at.number));
            if object != 0 {
                batch.delete_plain(keys::pin(dataset, object));
            }
            self.environment.heat.forget(dataset, at.number);
        }
        state.commit(batch)?;
        if let Some((last, _)) = page.last() {
            at.next = after(last);
        }
        Ok(done)
    }
}

/// The content of a live or history record if it is a region record.
fn region_of(key: &Bytes, value: &Bytes) -> Result<Option<RegionRecord>, StoreError> {
    let region = match key.first() {
        Some(&keys::TABLE_REGION) => true,
        Some(&keys::TABLE_HISTORY) => key.get(5) == Some(&keys::TABLE_REGION),
        _ => false,
    };
    if region {
        Ok(Some(decode_region(value)?.record))
    } else {
        Ok(None)
    }
}
