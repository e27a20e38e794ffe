//! Reclaim: frees the chunks that nothing refers to any more.
//!
//! Each batch that takes references away lists the chunks that may be dead by it; here these are looked at, many at a time and
//! in the order of their keys, so that one walk through the tables serves them all.
//!
//! Invariants: a chunk goes only when it has no references and nobody holds it, and nobody can take hold of it in between;
//! whoever is left for later stays listed. The list is passed from its start to its end, as its keys only grow, and from
//! the start again only while some were left behind: what was passed are deletions that are not merged away yet.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use terrace_meta::{Key, Operation};
use terrace_pool::SegmentId;
use terrace_store::{ChunkId, StoreError};

use super::{release::Reclaimer, turn::Maintenance};
use crate::{
    catalog::{Inherited, Operations, add_live, estimate_of},
    encoding::{
        ChunkRecord, Counters, TABLE_CANDIDATES, TABLE_CHUNKS, candidate_of_key, chunk_key, dedup_key,
    },
    errors::meta_error,
};

/// Candidates looked at in one step.
const CANDIDATES: usize = 1024;
/// Calls that do nothing after the list could not be read.
const UNREADABLE_REST: u32 = 1000;

/// What the look for dead chunks carries on from one step to the next.
#[derive(Default)]
pub(crate) struct Reclaim {
    /// Where it goes on in the list.
    next: Vec<u8>,
    /// Some before that were left for later.
    left_behind: bool,
    /// Up to this sequence there are none: while nothing is committed nobody looks again.
    none_until: Option<u64>,
    /// The list could not be read: so many calls do nothing.
    rest: u32,
    /// What was on the list when the store was opened, as far as nobody knows yet how many bytes that is.
    pub(crate) inherited: Option<Inherited>,
}

/// An entry of the list: its key, the chunk, and the estimate of bytes that it frees.
type Candidate<'a> = (&'a Bytes, ChunkId, i64);

/// What one step frees, in one batch.
#[derive(Default)]
struct Freed {
    operations: Operations,
    change: Counters,
    /// Live bytes that segments lose, negative.
    dead: BTreeMap<SegmentId, i64>,
    /// What the entries of the list said that it would be, bytes.
    estimate: i64,
}

impl Freed {
    /// Strikes an entry of the list.
    fn strike(&mut self, key: &Bytes, estimate: i64) {
        self.operations.push((key.clone().into(), Operation::Delete));
        self.estimate += estimate;
    }

    /// A chunk goes, with the hint that leads to it.
    fn add(&mut self, id: ChunkId, record: &ChunkRecord, hint: Option<Key>) {
        self.operations
            .push((chunk_key(TABLE_CHUNKS, id).into(), Operation::Delete));
        self.operations.extend(hint.map(|hint| (hint, Operation::Delete)));
        let stored = i64::from(record.stored());
        for location in &record.locations {
            *self.dead.entry(location.segment).or_default() -= stored;
        }
        self.change.chunks -= 1;
        self.change.unique -= i64::from(record.length);
        self.change.unique_blocks -= record.blocks();
        self.change.stored -= stored;
    }
}

impl Reclaimer {
    /// Frees chunks that nothing refers to; `false` when there was nothing to do, or the list of them cannot be read: that is tried
    /// again later, and keeps nobody from other work.
    pub(super) fn reclaim_step(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        let state = &mut state.reclaim;
        if state.rest > 0 {
            state.rest -= 1;
            return Ok(false);
        }
        let newest = self.catalog.newest();
        if state.none_until == Some(newest) {
            return Ok(false);
        }
        let listed = match self.catalog.count_inherited(&mut state.inherited) {
            Ok(true) => return Ok(true),
            Ok(false) => self.next_candidates(state),
            Err(error) => Err(error),
        };
        let records = match listed {
            Ok(records) => records,
            Err(error) => {
                tracing::error!(%error, "the list of what is to be freed cannot be read");
                state.rest = UNREADABLE_REST;
                return Ok(false);
            }
        };
        let Some((last, _)) = records.last() else {
            state.none_until = Some(newest);
            return Ok(false);
        };
        state.next = last.to_vec();
        state.next.push(0);
        let mut freed = Freed::default();
        let candidates: Vec<Candidate<'_>> = records.iter().filter_map(candidate).collect();
        // A chunk that lives is never marked: batches that change its references go on beside this. (One that takes
        // the last away makes it a candidate again.)
        let mut unreferred = Vec::with_capacity(candidates.len());
        let references = self
            .catalog
            .references_of(candidates.iter().map(|(_, id, _)| *id));
        for (candidate, references) in candidates.into_iter().zip(references) {
            let (key, id, bytes) = candidate;
            match references {
                Some(0) => unreferred.push(candidate),
                Some(count) => {
                    if count < 0 {
                        tracing::error!(chunk = %id, count, "a chunk has fewer than no references");
                    }
                    freed.strike(key, bytes);
                }
                // Left for later: its metadata cannot be read now.
                None => state.left_behind = true,
            }
        }
        let mut dying = HashSet::with_capacity(unreferred.len());
        {
            let mut ledger = self.ledger.lock();
            let ids = unreferred.iter().map(|(_, id, _)| *id);
            dying.extend(ids.filter(|id| ledger.mark_dying(*id)));
        }
        let (gone, unknown) = self.gone_for_good(&dying, newest);
        for (id, record) in &gone {
            let hint = dedup_key(&record.hash, self.options.hint_bytes);
            let is_own = !self.was_superseded(&hint, *id);
            freed.add(*id, record, is_own.then_some(hint));
        }
        for (segment, bytes) in &freed.dead {
            add_live(&mut freed.operations, *segment, *bytes);
        }
        for (key, id, bytes) in unreferred {
            if !dying.contains(&id) || unknown.contains(&id) {
                state.left_behind = true;
                continue;
            }
            freed.strike(key, bytes);
        }
        let worked = !freed.operations.is_empty();
        let result = match worked {
            true => self
                .catalog
                .commit_internal(freed.operations, freed.change)
                .map(drop),
            false => Ok(()),
        };
        let mut ledger = self.ledger.lock();
        if result.is_ok() {
            for (segment, bytes) in freed.dead {
                ledger.add_live(segment, bytes);
            }
            self.space.add_pending_free(-freed.estimate);
        } else {
            state.left_behind = true;
        }
        for id in dying {
            ledger.unmark_dying(id);
        }
        drop(ledger);
        result.map(|()| worked)
    }

    /// Of chunks that are marked, the records of those that nothing refers to now; and those of which that cannot be told.
    fn gone_for_good(
        &self,
        dying: &HashSet<ChunkId>,
        newest: u64,
    ) -> (Vec<(ChunkId, ChunkRecord)>, HashSet<ChunkId>) {
        // A batch that came between the two looks may have brought one back to life; a later one cannot.
        let unchanged = self.catalog.newest() == newest;
        let mut ids: Vec<ChunkId> = dying.iter().copied().collect();
        ids.sort_unstable();
        let references = match unchanged {
            true => vec![Some(0); ids.len()],
            false => self.catalog.references_of(ids.iter().copied()),
        };
        let mut unknown = HashSet::new();
        let mut gone: Vec<(ChunkId, ChunkRecord)> = Vec::with_capacity(ids.len());
        for ((id, record), references) in ids.iter().zip(self.catalog.records_of(&ids)).zip(references) {
            match (references, record) {
                (Some(0), Ok(Some(record))) => gone.push((*id, record)),
                (Some(_), Ok(_)) => {}
                (_, record) => {
                    if let Err(error) = record {
                        tracing::error!(chunk = %id, %error, "a chunk could not be looked at for reclaiming");
                    }
                    unknown.insert(*id);
                }
            }
        }
        (gone, unknown)
    }

    /// The next entries of the list; from its start again if some were left behind. None: nothing is left.
    fn next_candidates(&self, state: &mut Reclaim) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let end = [TABLE_CANDIDATES + 1];
        if !state.next.is_empty() {
            let records = self
                .tree
                .scan(&state.next, &end, CANDIDATES)
                .map_err(meta_error)?;
            if !records.is_empty() || !state.left_behind {
                return Ok(records);
            }
        }
        state.left_behind = false;
        self.tree
            .scan(&[TABLE_CANDIDATES], &end, CANDIDATES)
            .map_err(meta_error)
    }

    /// Whether a hint leads to another chunk than `id` since lately: one that was written while this one could not be used.
    /// Only memory is asked. A look into the tables would cost more than all else that frees a chunk; and a hint that goes
    /// with another chunk than its own costs room at most, as one that was never written.
    fn was_superseded(&self, hint: &Key, id: ChunkId) -> bool {
        let recent = self.tree.recent(hint);
        recent.is_some_and(|recent| recent.is_some_and(|to| to[..] != id.0.to_le_bytes()))
    }
}

fn candidate<'a>((key, value): &'a (Bytes, Bytes)) -> Option<Candidate<'a>> {
    let id = candidate_of_key(key)?;
    Some((key, id, estimate_of(value)))
}
