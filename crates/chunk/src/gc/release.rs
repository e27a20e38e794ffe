//! Release: segments that nothing lives in any more go back to the pool, and their devices are told.
//!
//! Invariants: a segment goes back only when the batch that gave it up is durable in every copy of the log; a device is only ever
//! told to forget a segment that nobody can write to meanwhile. Both hold up whoever reads there, a discard of a segment for ten times as long
//! as a read takes: beside readers the flush that segments wait for comes with somebody else's or once in a while, and what is
//! discarded are single segments that are still free then.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use terrace_meta::{Operation, Tree};
use terrace_pool::{Pool, SegmentId};
use terrace_store::StoreError;
use terrace_sync::Clock;

use super::turn::Maintenance;
use crate::{
    Handles, Options,
    catalog::{Catalog, Operations},
    durability::Journal,
    encoding::{TABLE_SEGMENTS, segment_key},
    ledger::Ledger,
    space::SpaceView,
};

/// Beside readers, the time between two flushes for the sake of release, and between two discards.
const BESIDE_READERS: Duration = Duration::from_secs(2);
/// The same of flushes where a tier will soon need the room.
const BESIDE_READERS_SHORT: Duration = Duration::from_millis(500);

/// What a step carries on from the one before.
#[derive(Default)]
pub(crate) struct Released {
    /// Went back without a word to their device.
    not_discarded: BTreeSet<SegmentId>,
    flushed: Option<u64>,
    discarded: Option<u64>,
}

/// Whether it is that long ago; then it is now.
fn is_due(clock: &dyn Clock, last: &mut Option<u64>, after: Duration) -> bool {
    let due = last.is_none_or(|last| clock.since(last) >= after);
    if due {
        *last = Some(clock.monotonic_nanoseconds());
    }
    due
}

/// Finds chunks that nobody refers to, and gives segments back that nothing lives in.
pub(crate) struct Reclaimer {
    pub(super) pool: Arc<Pool>,
    pub(super) options: Options,
    pub(super) tree: Arc<Tree>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) journal: Arc<Journal>,
}

impl Reclaimer {
    /// Of these parts.
    pub(crate) fn new(
        handles: &Handles,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
        journal: &Arc<Journal>,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            options: handles.options.clone(),
            tree: handles.tree.clone(),
            ledger: handles.ledger.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            journal: journal.clone(),
        }
    }

    /// Commits that empty segments are given up.
    pub(super) fn give_up_empty(&self) -> Result<bool, StoreError> {
        self.catalog.commit_built(|sequence| {
            let mut operations: Operations = Vec::new();
            let mut ledger = self.ledger.lock();
            let empty = std::mem::take(&mut ledger.empty);
            for segment in empty {
                if let Some(state) = ledger.segments.get_mut(&segment) {
                    state.freeing = true;
                }
                operations.push((segment_key(TABLE_SEGMENTS, segment).into(), Operation::Delete));
                ledger.freeing.push((sequence, segment));
            }
            operations
        })
    }

    /// Gives segments back whose giving up is durable.
    pub(super) fn release_durable(&self, state: &mut Maintenance) {
        // Without the device that has the newest of the log an opening goes on from an older state, which needs them.
        let durable = self.journal.durable_everywhere();
        let mut released = Vec::new();
        {
            let mut ledger = self.ledger.lock();
            let (now, later) = std::mem::take(&mut ledger.freeing)
                .into_iter()
                .partition(|(at, _)| *at <= durable);
            ledger.freeing = later;
            let now: Vec<(u64, SegmentId)> = now;
            for (_, segment) in now {
                ledger.forget_segment(segment);
                released.push(segment);
            }
        }
        if released.is_empty() {
            return;
        }
        state.without_room.clear();
        let later = self.space.is_beside_readers();
        for segment in released {
            match later {
                true => _ = state.released.not_discarded.insert(segment),
                // Before the segment is free: whoever it is handed to next writes at once, and a discard that comes after would
                // take that away.
                false => self.discard(segment),
            }
            self.space.release_segment(segment);
        }
    }

    /// Only a hint to the device; whether it takes it does not matter.
    fn discard(&self, segment: SegmentId) {
        if let Err(error) = self.pool.discard(segment) {
            tracing::debug!(%segment, %error, "discard");
        }
    }

    /// Discards one of the segments that went back without that and are free now; `false` if there is none, or readers come first.
    pub(super) fn discard_released(&self, state: &mut Maintenance) -> bool {
        let waiting = &mut state.released;
        if waiting.not_discarded.is_empty()
            || self.space.is_beside_readers()
                && !is_due(&*self.options.clock, &mut waiting.discarded, BESIDE_READERS)
        {
            return false;
        }
        while let Some(segment) = waiting.not_discarded.pop_first() {
            // Whoever has taken it meanwhile writes it anew, and gives it back again.
            if self.pool.claim(segment).is_ok() {
                self.discard(segment);
                if let Err(error) = self.pool.release(segment) {
                    tracing::error!(%segment, %error, "a segment could not be released");
                }
                return true;
            }
        }
        false
    }

    /// Flushes so that given-up segments can be released.
    pub(super) fn wait_for_release(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        let any = self.journal.flush_given_up()?;
        if any {
            self.release_durable(state);
        }
        Ok(any)
    }

    /// The same where nobody waits for the room.
    pub(super) fn release_throttled(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        let any = !self.ledger.lock().freeing.is_empty();
        let after = match self.space.has_room_to_wait() {
            true => BESIDE_READERS,
            false => BESIDE_READERS_SHORT,
        };
        if !any
            || self.space.is_beside_readers()
                && !is_due(&*self.options.clock, &mut state.released.flushed, after)
        {
            return Ok(false);
        }
        self.wait_for_release(state)
    }
}
