//! Tables: records get out of memory into them, they are merged, and moved where they lie badly.
//!
//! Whoever waits for room, or for memory that records take, writes and merges tables beside whoever makes the room: compaction and
//! reclaiming make records without end, and what one processor does of both is not enough.
//!
//! Invariants: one thread at a time writes tables here, under a lock of its own, which is taken behind that of maintenance or without
//! it; nobody copies the segments that tables lie in meanwhile. A root names what the manifest in it does, however far the
//! tables have come since.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use terrace_meta::{Progress, Tree};
use terrace_store::StoreError;
use terrace_sync::{Clock, Mutex, rank};

use super::turn::{Maintenance, TURN_WAIT};
use crate::{
    Handles,
    durability::{Journal, SLICE_BYTES},
    metadata::MetaStorage,
    space::{SpaceView, Waiting},
};

/// Steps for which compaction of metadata rests when it can do nothing, and the search for metadata without a second copy.
const METADATA_REST: u32 = 1000;

/// Brings records into tables, and merges these.
pub(crate) struct Merger {
    pub(super) tree: Arc<Tree>,
    pub(super) meta: Arc<MetaStorage>,
    pub(super) space: Arc<SpaceView>,
    pub(super) journal: Arc<Journal>,
    /// Held by whoever writes tables, and by whoever copies the segments that they lie in.
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tables: Mutex<(), rank::chunk::Tables>,
    pub(super) waiting_for_tables: AtomicUsize,
}

impl Merger {
    /// Of these parts.
    pub(crate) fn new(handles: &Handles, space: &Arc<SpaceView>, journal: &Arc<Journal>) -> Self {
        Self {
            tree: handles.tree.clone(),
            meta: handles.meta.clone(),
            space: space.clone(),
            journal: journal.clone(),
            clock: handles.options.clock.clone(),
            tables: Mutex::new(()),
            waiting_for_tables: AtomicUsize::new(0),
        }
    }

    /// Writes some records into tables, or merges a slice; `false` if there is nothing to do, or somebody else is at it. An error
    /// leaves the tree as it was and is tried again later.
    pub(crate) fn merge_step(&self) -> bool {
        let Some(_tables) = self.tables.try_lock() else {
            return false;
        };
        self.merge_locked()
    }

    /// As [`merge_step`](Self::merge_step), after whoever is at it.
    pub(crate) fn write_tables(&self) -> bool {
        let _tables = self.tables.lock();
        self.merge_locked()
    }

    /// Keeps others from the tables: as whoever is in the middle of a slice.
    #[cfg(test)]
    pub(crate) fn hold_tables(&self) -> impl Sized + '_ {
        self.tables.lock()
    }

    fn merge_locked(&self) -> bool {
        match self.tree.step(SLICE_BYTES) {
            Ok(progress) => progress == Progress::More,
            Err(error) => {
                tracing::warn!(%error, "a merge of metadata failed");
                false
            }
        }
    }

    /// Writes the tables of the emptiest metadata segment anew, when much of the metadata segments is unused: tables
    /// that live long would else hold on to segments whose other tables are gone.
    pub(super) fn compact_metadata(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        if state.metadata_rest > 0 {
            state.metadata_rest -= 1;
            return Ok(false);
        }
        // Tables that were replaced go with the next root; where none can be written, they are no reason to leave the others there.
        let dropped = match self.space.is_listable() {
            true => Vec::new(),
            false => self.tree.replaced(),
        };
        let Some(number) = self.meta.emptiest(&dropped) else {
            return Ok(false);
        };
        let written = self.rewrite_segments(|segment| segment == number);
        if written == 0 {
            // What is there is no table (a manifest, mostly): it goes with the next checkpoint by itself.
            state.metadata_rest = METADATA_REST;
            return Ok(false);
        }
        self.journal.start_checkpoint(&mut state.checkpoint);
        Ok(true)
    }

    /// Writes the tables of these metadata segments anew; how many bytes that took.
    fn rewrite_segments(&self, is_one: impl Fn(u32) -> bool) -> u64 {
        let extents = self.tree.extents().into_iter();
        let extents: Vec<_> = extents
            .filter(|extent| is_one(MetaStorage::segment_of(*extent)))
            .collect();
        match self.tree.rewrite(&extents) {
            Ok(written) => written,
            Err(error) => {
                tracing::warn!(%error, "tables could not be moved");
                0
            }
        }
    }

    /// Writes anew what has both its copies on one device; whether there was any such.
    pub(super) fn part_doubled(&self) -> bool {
        let doubled = self.meta.doubled();
        !doubled.is_empty() && self.rewrite_segments(|segment| doubled.contains(&segment)) > 0
    }

    /// Gives metadata that lies on one device only, since no other had room, its second copy where there is room by now.
    pub(super) fn mirror_metadata(&self, state: &mut Maintenance) -> bool {
        if state.mirror_rest > 0 {
            state.mirror_rest -= 1;
            return false;
        }
        if self.part_doubled() {
            self.journal.start_checkpoint(&mut state.checkpoint);
            return true;
        }
        let _tables = self.tables.lock();
        let mirrored = self.meta.mirror_one(self.space.watermarks().low());
        match mirrored {
            Ok(true) => {
                self.journal.start_checkpoint(&mut state.checkpoint);
                return true;
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "metadata could not be copied to a second device"),
        }
        state.mirror_rest = METADATA_REST;
        false
    }

    /// Returns when records take less than their share of memory: beyond it goes at most what is committed then. Who does not
    /// find anybody else at it writes them into tables.
    pub(crate) fn wait_for_tables(&self) {
        let mut waiting = None;
        while self.space.is_full_of_records() {
            waiting.get_or_insert_with(|| Waiting::of(&self.waiting_for_tables));
            let Some(_tables) = self.tables.lock_within(&*self.clock, TURN_WAIT) else {
                continue;
            };
            // Without room for tables they stay where they are.
            if !self.merge_locked() {
                return;
            }
        }
    }

    /// How many wait with a commit until records are in tables.
    pub(crate) fn waiting_for_tables(&self) -> usize {
        self.waiting_for_tables.load(Ordering::Acquire)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use terrace_pool::{Request, SegmentKind, TierChoice};
    use terrace_store::{Batch, Store, StoreError};

    use super::*;
    use crate::{Options, Step, store_in_memory::store_in_memory};

    #[test]
    fn tables_that_merges_replaced_are_room_where_there_is_no_other() {
        let options = Options {
            memtable_bytes: 256 << 10,
            block_cache_bytes: 1 << 20,
            ..Options::default()
        };
        let store = store_in_memory(64 << 20, options);
        let mut number = 0u64;
        let mut commit = || {
            let mut batch = Batch::new();
            for _ in 0..40 {
                number += 1;
                let hash = blake3::hash(&(number % 20_000).to_le_bytes());
                let key = [&[0x30][..], &hash.as_bytes()[..16]].concat();
                let value = blake3::hash(&number.to_le_bytes()).as_bytes().repeat(8);
                batch.put(key, value);
            }
            let sequence = store.commit(batch)?;
            store.flush(sequence)
        };
        for _ in 0..500 {
            commit().unwrap();
        }
        store.checkpoint().unwrap();
        let takes = || {
            let request = Request {
                choice: TierChoice::Fastest,
                kind: SegmentKind::Data,
                avoid: &[],
                garbage: &[],
                leave_free: 0,
            };
            store.pool().allocate(&request).is_ok()
        };
        // Whoever makes room is busy, those who commit merge beside it, and something takes what they leave.
        let busy = store.collector().maintenance.lock();
        while store.handles().tree.usage().bytes_replaced < 4 << 20 {
            commit().unwrap();
        }
        while takes() {}
        let mut failed = 0;
        while failed < 8 {
            failed = store.handles().tree.step(SLICE_BYTES).map_or(failed + 1, |_| 0);
            commit().unwrap();
        }
        drop(busy);
        store.checkpoint().unwrap();
        assert!(store.pool().free_segments() > 0 && store.handles().tree.memory_share() < 1.0);
        for _ in 0..300 {
            while matches!(store.step(), Ok(Step::More)) {}
            commit().unwrap();
        }
    }

    #[test]
    fn deleting_helps_where_metadata_is_more_than_a_root_can_list() {
        let options = Options {
            memtable_bytes: 512 << 10,
            block_cache_bytes: 1 << 20,
            checkpoint_log_bytes: 1 << 20,
            ..Options::default()
        };
        let store = store_in_memory(64 << 20, options);
        store.handles().meta.list_at_most(6);
        let key = |number: u64| [&[0x30][..], &number.to_be_bytes()].concat();
        let value = |number: u64| blake3::hash(&number.to_le_bytes()).as_bytes().repeat(4);
        let written = 80_000;
        for first in (0..written).step_by(500) {
            let mut batch = Batch::new();
            (first..first + 500).for_each(|number| batch.put(key(number), value(number)));
            store.commit(batch).unwrap();
            let _ = store.step();
        }
        let refused = loop {
            match store.step() {
                Ok(Step::More) => {}
                Ok(Step::Idle) => panic!("as if nothing were wrong"),
                Err(error) => break error,
            }
        };
        assert!(refused.to_string().contains("a root can list 6"), "{refused}");
        assert!(
            matches!(store.reserve(1 << 20), Err(StoreError::NoSpace)),
            "no more content"
        );
        assert!(store.checkpoint().is_err() && store.stopped().is_none());
        for first in (0..written).step_by(500) {
            let mut batch = Batch::new();
            let gone = (first..first + 500).filter(|number| number % 8 > 0);
            gone.for_each(|number| batch.delete(key(number)));
            store.commit(batch).unwrap();
            let _ = store.step();
        }
        while store.step().unwrap() == Step::More {}
        store.checkpoint().unwrap();
        assert!(store.metadata_segments().0 <= 6 && store.handles().log.bytes() == 0);
        drop(store.reserve(1 << 20).unwrap());
        assert_eq!(store.scan(&key(0), &key(written), 80_000).unwrap().len(), 10_000);
    }
}
