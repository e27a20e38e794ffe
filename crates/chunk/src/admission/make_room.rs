//! Room for those who write: brought back for them when there is none, before they are told that the pool is full.
//!
//! Invariants: nobody is refused but after a look that follows a whole turn of background work which brought nothing back, also by
//! packing closer (`packing.rs`), and began after they asked; how long somebody else works here is no reason. Who waits may hold reservations, claims of no
//! content and whatever locks of floors above, none of which the background asks for.

use std::sync::Arc;

use terrace_log::Log;
use terrace_meta::Tree;
use terrace_pool::Pool;
use terrace_store::StoreError;
use terrace_sync::{MutexGuard, rank};

use super::demotion_wait::Sinking;
use crate::{
    Handles, Options, Step,
    append::SegmentWriter,
    catalog::Catalog,
    durability::Journal,
    gc::{Collector, Compactor, Maintenance, Merger, TURN_WAIT},
    space::SpaceView,
    stop::Stop,
};

/// Rounds in a row that bring nothing back until that is believed. What a checkpoint lets go of may go with the next one only.
const ROUNDS_IN_VAIN: u32 = 2;
/// Steps of a round at most: users who go on writing leave always something to do.
const ROUND_STEPS: usize = 16_384;

/// Where a write waits until there is room for it.
pub(crate) struct Admission {
    pub(super) pool: Arc<Pool>,
    pub(super) options: Options,
    pub(super) tree: Arc<Tree>,
    pub(super) log: Arc<Log>,
    pub(super) stop: Arc<Stop>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) writer: Arc<SegmentWriter>,
    pub(super) journal: Arc<Journal>,
    pub(super) merger: Arc<Merger>,
    pub(super) compactor: Arc<Compactor>,
    pub(super) collector: Arc<Collector>,
    pub(super) sinking: Sinking,
}

impl Admission {
    /// Of these parts.
    #[expect(clippy::too_many_arguments, reason = "it is put together once")]
    pub(crate) fn new(
        handles: &Handles,
        stop: &Arc<Stop>,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
        writer: &Arc<SegmentWriter>,
        journal: &Arc<Journal>,
        merger: &Arc<Merger>,
        compactor: &Arc<Compactor>,
        collector: &Arc<Collector>,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            options: handles.options.clone(),
            tree: handles.tree.clone(),
            log: handles.log.clone(),
            stop: stop.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            writer: writer.clone(),
            journal: journal.clone(),
            merger: merger.clone(),
            compactor: compactor.clone(),
            collector: collector.clone(),
            sinking: Sinking::default(),
        }
    }

    /// Works until there is `enough` room, or nothing more can be had; whether there is enough.
    ///
    /// # Errors
    /// Of the devices. `NoSpace` is none: that what brings room back finds none for itself is an answer.
    pub(crate) fn make_room(&self, mut enough: impl FnMut() -> bool) -> Result<bool, StoreError> {
        let asked_at = self.space.need().turns();
        let _waiting = self.space.need().wait();
        let mut state = loop {
            let turn = match self.collector.try_turn() {
                // Who works here makes records, and has no time for them.
                None if self.merger.merge_step() => None,
                None => self.collector.try_turn_for(TURN_WAIT),
                state => state,
            };
            match turn {
                Some(state) => break state,
                None if enough() => return Ok(true),
                None => {}
            }
        };
        if enough() {
            return Ok(true);
        }
        // Of many who wait on a full pool one finds that out for all.
        let newest = self.catalog.newest();
        if state.was_in_vain(asked_at, newest) {
            return Ok(false);
        }
        let turn = self.space.need().begin_turn();
        state.begin_turn();
        match self.rounds(&mut state, &mut enough) {
            Ok(false) => state.note_in_vain(turn, self.catalog.newest()),
            Err(StoreError::NoSpace) => {}
            ended => return ended,
        }
        Ok(enough())
    }

    /// Rounds until there is enough room, or they bring nothing back any more; whether there is enough.
    fn rounds(
        &self,
        state: &mut MutexGuard<'_, Maintenance, rank::chunk::Turn>,
        enough: &mut impl FnMut() -> bool,
    ) -> Result<bool, StoreError> {
        let mut most = 0;
        let mut in_vain = 0;
        while !self.round(state, enough)? {
            let now = self.space.brought_back();
            in_vain = if now > most { 0 } else { in_vain + 1 };
            most = most.max(now);
            if in_vain == ROUNDS_IN_VAIN && self.compactor.pack(state)? {
                in_vain = 0;
            }
            if in_vain == ROUNDS_IN_VAIN {
                return Ok(false);
            }
            // What it gives back: the log, and the tables that merges replaced.
            self.journal.start_checkpoint(&mut state.checkpoint);
        }
        Ok(true)
    }

    /// Steps until there is enough room, or nothing is left to do; whether there is enough.
    fn round(
        &self,
        state: &mut MutexGuard<'_, Maintenance, rank::chunk::Turn>,
        enough: &mut impl FnMut() -> bool,
    ) -> Result<bool, StoreError> {
        for _ in 0..ROUND_STEPS {
            if enough() {
                return Ok(true);
            }
            // Another one may be merging: what that gives back is known when nothing is left to merge.
            if self.collector.step_locked(state)? == Step::Idle && !self.merger.write_tables() {
                break;
            }
        }
        Ok(enough())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use terrace_meta::ExtentStorage;
    use terrace_pool::{Request, SegmentKind, TierChoice};
    use terrace_store::{Batch, Store, StoreError};

    use crate::{Options, durability::SLICE_BYTES, store_in_memory::store_in_memory};

    #[test]
    fn where_tables_find_no_room_there_is_none_to_be_had() {
        let store = store_in_memory(64 << 20, Options::default());
        let mut batch = Batch::new();
        batch.put(vec![0x30], vec![7; 100]);
        store.commit(batch).unwrap();
        let request = Request {
            choice: TierChoice::Fastest,
            kind: SegmentKind::Metadata,
            avoid: &[],
            garbage: &[],
            leave_free: 0,
        };
        while store.pool().allocate(&request).is_ok() {}
        while store.handles().meta.write(&[7; 4096]).is_ok() {}
        let refused = store.checkpoint().unwrap_err();
        assert!(matches!(refused, StoreError::NoSpace), "{refused}");
        assert!(!store.restore_reserve(1).unwrap());
        let refused = store.reserve(1 << 20).unwrap_err();
        assert!(matches!(refused, StoreError::NoSpace), "{refused}");
        assert!(store.stopped().is_none());
    }

    #[test]
    fn who_is_refused_has_waited_for_what_is_being_merged() {
        let store = store_in_memory(64 << 20, Options::default());
        for number in 0..8u8 {
            let mut batch = Batch::new();
            batch.put(vec![0x30, number], vec![number; 100]);
            store.commit(batch).unwrap();
            store.handles().tree.seal();
            store.handles().tree.step(SLICE_BYTES).unwrap();
        }
        assert_eq!(store.handles().tree.usage().runs, 8, "to be merged");
        // Or it would wait for the tables to look for those without a second copy.
        store.collector().try_turn().unwrap().mirror_rest = u32::MAX;
        std::thread::scope(|scope| {
            // As whoever is in the middle of a slice.
            let tables = store.merger().hold_tables();
            let asks = scope.spawn(|| store.admission().make_room(|| false));
            // Time enough for one who does not wait.
            for _ in 0..20_000 {
                assert!(!asks.is_finished());
                std::thread::yield_now();
            }
            drop(tables);
            assert!(!asks.join().unwrap().unwrap());
        });
        assert!(!store.merger().write_tables(), "nothing is left to merge");
    }
}
