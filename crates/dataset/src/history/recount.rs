//! How much a volume has in common with its newest held checkpoint, when checkpoints come and go, and what a snapshot of a volume
//! with a reservation has to set aside for that.
//!
//! A snapshot has all blocks in common with the volume: whatever is written over from then on takes room beside it. So the
//! reservation no longer counts any of them, and as much as it counted before must be set aside, or the snapshot is refused
//! (as ZFS does with `refreservation`). When a snapshot goes and none is left, nothing is in common; when an older one is left,
//! the regions are counted again in the background, and until that is over the reservation counts only what is certain.
//!
//! Invariants: the record of the counters goes into the same batch as what changes the held set; a recount and its progress are one
//! batch each, made under the commit lock.

use std::{cell::Cell, sync::Arc};

use terrace_store::{Batch, Reservation, StoreError};

use crate::{
    admin::{Borrowed, Datasets, Node},
    live::{DatasetState, Shared},
    records::{Counters, Job, Records, Recount, decode_region, keys},
    settings::DatasetError,
};

/// Regions that one step counts, at most: writers of the volume wait for it.
const REGIONS: usize = 128;

impl Datasets {
    /// The counters of a dataset of which a checkpoint is held now, if it has promises to keep.
    pub(crate) fn all_shared(&self, node: &Node) -> Option<Counters> {
        let mut counters = node.state.counters();
        let has_preallocated = counters.preallocated.blocks > 0;
        if has_preallocated {
            // Nothing that was written until now stands for what files have preallocated.
            counters.preallocated.own_blocks = 0;
            counters.preallocated.since = self.environment.store.next_chunk().0;
        }
        if node.state.kind().is_volume() {
            counters.shared_blocks = Some(counters.live_blocks);
        }
        (has_preallocated || node.state.kind().is_volume()).then_some(counters)
    }

    /// The counters of a volume whose held checkpoint `gone` has left the set, if that was the newest, and the job that counts
    /// them, if there is something to be counted; both are put into `batch`.
    #[allow(clippy::type_complexity)]
    pub(crate) fn shared_without(
        &self,
        node: &Node,
        gone: u64,
        batch: &mut Batch,
    ) -> Option<(Counters, Option<(u64, Job)>)> {
        let newest = node.state.held().read().newest_before(u64::MAX);
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
            self.new_sweep(batch, job)
        });
        Some((counters, job))
    }

    /// Goes on with a recount that was under way when the pool was closed, or begins the first one of a volume that was
    /// rebuilt.
    pub(crate) fn resume_recount(&self, state: &DatasetState) {
        if !state.kind().is_volume() {
            return state.count_own();
        }
        let counters = state.counters();
        let newest = state.held().read().newest_before(u64::MAX);
        let Some(held) = newest else {
            return state.set_counters(Counters {
                shared_blocks: Some(0),
                ..counters
            });
        };
        let recount = self.sweeper.recount_of(state.number(), held).or_else(|| {
            counters.shared_blocks.is_none().then(|| {
                let job = Job::Recount {
                    dataset: state.number(),
                    held,
                    cursor: Vec::new(),
                };
                // Its record comes with the first step.
                let (number, job) = self.new_sweep(&mut Batch::new(), job);
                self.sweeper.add([(number, job)]);
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
    pub(crate) fn recount_step(
        &self,
        number: u64,
        state: &Arc<DatasetState>,
        records: usize,
    ) -> Result<Option<Job>, StoreError> {
        let _store = &self.environment.store;
        let _commit = state.commit_lock();
        let newest = state.held().read().newest_before(u64::MAX);
        let recount = state
            .recount()
            .filter(|recount| recount.job == number && newest == Some(recount.held));
        let Some(recount) = recount.filter(|_| !state.is_gone()) else {
            return self.forget(number);
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
            cursor: last.iter().copied().chain([0]).collect(),
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

    /// What a snapshot of these datasets has to set aside, by the first of them for which it has to.
    fn snapshot_needs(&self, nodes: &[Arc<Node>], with_dirty: bool) -> (u64, Option<Arc<Node>>) {
        let (mut bytes, mut first) = (0u64, None);
        for node in nodes.iter().filter(|node| node.has_promise()) {
            let dirty = || {
                let borrowed = Borrowed::of(node);
                let live = borrowed.as_ref().and_then(Borrowed::live);
                live.map_or(0, |live| live.dirty_bytes())
            };
            let more = if with_dirty { dirty() } else { 0 };
            let needs = node.state.usage().snapshot_bytes(more);
            if needs > 0 {
                bytes = bytes.saturating_add(needs);
                first.get_or_insert_with(|| node.clone());
            }
        }
        (bytes, first)
    }

    fn no_room_for(&self, node: &Node, snapshot: &str, wanted_bytes: u64) -> DatasetError {
        let volume = node.state.name();
        if !node.state.kind().is_volume() {
            return DatasetError::NoRoomForPreallocated {
                snapshot: format!("{volume}@{snapshot}"),
                dataset: volume.to_string(),
                wanted_bytes,
                available_bytes: self.environment.store.available_bytes(),
            };
        }
        DatasetError::NoRoomForSnapshot {
            snapshot: format!("{volume}@{snapshot}"),
            volume: volume.to_string(),
            reserved_bytes: node.state.usage().reservation_bytes(),
            wanted_bytes,
            available_bytes: self.environment.store.available_bytes(),
        }
    }

    /// Room for a snapshot of these datasets: as much as what they have dirty may make of it.
    pub(crate) fn room_for_snapshot(
        &self,
        nodes: &[Arc<Node>],
        snapshot: &str,
    ) -> Result<Reservation, DatasetError> {
        let (bytes, first) = self.snapshot_needs(nodes, true);
        self.set_aside(bytes).map_err(|error| match (error, first) {
            (DatasetError::NoRoom { .. }, Some(node)) => self.no_room_for(&node, snapshot, bytes),
            (other, _) => other,
        })
    }

    /// The same once everything is committed and nothing can change: what came in between is taken as well. The commit locks
    /// of the datasets are held.
    pub(crate) fn complete_room(
        &self,
        room: &mut Reservation,
        nodes: &[Arc<Node>],
        snapshot: &str,
    ) -> Result<(), DatasetError> {
        let (bytes, first) = self.snapshot_needs(nodes, false);
        let lacking = bytes.saturating_sub(room.bytes());
        let Some(node) = first.filter(|_| lacking > 0) else {
            return Ok(());
        };
        let store = &self.environment.store;
        if store.available_bytes() < lacking {
            return Err(self.no_room_for(&node, snapshot, bytes));
        }
        room.join(store.reserve_always(lacking));
        Ok(())
    }

    /// Whether retention may hold a checkpoint: of a dataset with promises only if there is room to write over what it holds, beside
    /// the `taken` bytes that others need for theirs at the same moment.
    pub(crate) fn may_retain(&self, node: &Node, taken: &Cell<u64>) -> bool {
        if !node.has_promise() {
            return true;
        }
        let needs = node.state.usage().snapshot_bytes(0);
        let all = taken.get().saturating_add(needs);
        let may = needs == 0 || self.environment.store.available_bytes() >= all;
        if may {
            taken.set(all);
            self.unretained.note(node.state.number(), None);
        } else {
            self.unretained.note(node.state.number(), Some(needs));
        }
        may
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
