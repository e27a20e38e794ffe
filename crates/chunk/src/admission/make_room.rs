//! Room for those who write: brought back for them when there is none, before they are told that the pool is full.
//!
//! Invariants: nobody is refused but after a look that follows a whole turn of background work which brought nothing back, also by
//! packing closer (`packing.rs`), and began after they asked; how long somebody else works here is no reason. Who waits may hold reservations, claims of no
//! content and whatever locks of floors above, none of which the background asks for.

use crate::{gc::InVain, space::Waiting};
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use terrace_store::StoreError;

use crate::{
    Step,
    gc::{Maintenance, TURN_WAIT},
    store::ChunkStore,
};

/// Rounds in a row that bring nothing back until that is believed. What a checkpoint lets go of may go with the next one only.
const ROUNDS_IN_VAIN: u32 = 2;
/// Steps of a round at most: users who go on writing leave always something to do.
const ROUND_STEPS: usize = 16_384;

impl ChunkStore {
    /// How many wait until room was made, or there is none to be had.
    pub fn waiting_for_room(&self) -> usize {
        self.need.waiting.load(Ordering::Acquire)
    }

    /// Works until there is `enough` room, or nothing more can be had; whether there is enough.
    pub(crate) fn make_room(&self, mut enough: impl FnMut() -> bool) -> Result<bool, StoreError> {
        let asked_at = self.need.turns.load(Ordering::Acquire);
        let _waiting = Waiting::of(&self.need.waiting);
        let mut state = loop {
            let turn = match self.maintenance.try_lock() {
                // Who works here makes records, and has no time for them.
                None if self.merge_step() => None,
                None => self.maintenance.try_lock_for(TURN_WAIT),
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
        let newest = self.commit.lock().sequence;
        if state.in_vain.turn > asked_at && state.in_vain.newest == newest {
            return Ok(false);
        }
        let turn = self.need.turns.fetch_add(1, Ordering::AcqRel) + 1;
        state.begin_turn();
        let mut most = 0;
        let mut in_vain = 0;
        while !self.round(&mut state, &mut enough)? {
            let now = self.pool.free_for_content() + self.need.taken.load(Ordering::Acquire);
            in_vain = if now > most { 0 } else { in_vain + 1 };
            most = most.max(now);
            if in_vain == ROUNDS_IN_VAIN && self.pack(&mut state)? {
                in_vain = 0;
            }
            if in_vain == ROUNDS_IN_VAIN {
                state.in_vain = InVain {
                    turn,
                    newest: self.commit.lock().sequence,
                };
                return Ok(enough());
            }
            // What it gives back: the log, and the tables that merges replaced.
            self.start_checkpoint(&mut state);
        }
        Ok(true)
    }

    /// Steps until there is enough room, or nothing is left to do; whether there is enough.
    fn round(
        &self,
        state: &mut MutexGuard<'_, Maintenance>,
        enough: &mut impl FnMut() -> bool,
    ) -> Result<bool, StoreError> {
        for _ in 0..ROUND_STEPS {
            if enough() {
                return Ok(true);
            }
            // Another one may be merging: what that gives back is known when nothing is left to merge.
            if self.step_locked(state)? == Step::Idle && !self.write_tables() {
                break;
            }
        }
        Ok(enough())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use terrace_store::{Batch, Store};

    use crate::{Options, gc::SLICE_BYTES, store_in_memory::store_in_memory};

    #[test]
    fn who_is_refused_has_waited_for_what_is_being_merged() {
        let store = store_in_memory(64 << 20, Options::default());
        for number in 0..8u8 {
            let mut batch = Batch::new();
            batch.put(vec![0x30, number], vec![number; 100]);
            store.commit(batch).unwrap();
            store.tree.seal();
            store.tree.step(SLICE_BYTES).unwrap();
        }
        assert_eq!(store.tree.usage().runs, 8, "to be merged");
        // Or it would wait for the tables to look for those without a second copy.
        store.maintenance.lock().mirror_rest = u32::MAX;
        std::thread::scope(|scope| {
            // As whoever is in the middle of a slice.
            let tables = store.tables.lock();
            let asks = scope.spawn(|| store.make_room(|| false));
            // Time enough for one who does not wait.
            for _ in 0..20_000 {
                assert!(!asks.is_finished());
                std::thread::yield_now();
            }
            drop(tables);
            assert!(!asks.join().unwrap().unwrap());
        });
        assert!(!store.write_tables(), "nothing is left to merge");
    }
}
