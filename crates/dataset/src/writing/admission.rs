//! Admission: who wants to change something waits here until there is memory and room for it.
//!
//! Who waits stands above what he waits for: commits, writing ahead, and the pool's reclamation of space. Inside one operation room is
//! waited for with the inode lock held (a write, `fallocate`): that is sound, since commits take no inode lock.
//!
//! Invariant: no gate, state or commit lock is held by who waits here.

use super::write_ahead::WriteAhead;
use crate::{
    commit::CommitQueue,
    live::{DatasetState, DirtyEpoch, MEMORY_FACTOR, METADATA_BYTES},
    posix::FsError,
    quota::{Charge, OfReserve, Terms, blocks_to_bytes_of},
    records::Promised,
    settings::Durability,
};
use std::sync::Arc;
use terrace_cache::Admitted;
use terrace_store::Sequence;
use terrace_sync::{Mutex, rank};

/// Of removals that free what they remove, one in so many bytes of records looks for room.
const LOOK_BYTES: u64 = 64 * METADATA_BYTES;

/// See the module.
pub(crate) struct Admission {
    dataset: Arc<DatasetState>,
    epoch: Arc<DirtyEpoch>,
    commits: Arc<CommitQueue>,
    ahead: Arc<WriteAhead>,
    /// The newest batch when the reserve was found used up, and nothing brought it back.
    reserve_missed: Mutex<Option<Sequence>, rank::dataset::ReserveMissed>,
}

impl Admission {
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        epoch: &Arc<DirtyEpoch>,
        commits: &Arc<CommitQueue>,
        ahead: &Arc<WriteAhead>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            epoch: epoch.clone(),
            commits: commits.clone(),
            ahead: ahead.clone(),
            reserve_missed: Mutex::default(),
        })
    }

    /// Lets changes of metadata in for which room of so many bytes is to be taken: where the next commit would take too much, or
    /// memory is short, after a commit. They count from when they are [counted](DirtyEpoch::count_metadata). No gate, state or commit
    /// lock is held.
    pub(crate) fn admit_metadata(&self, room_bytes: u64) -> Result<Admitted<'_>, FsError> {
        let bytes = room_bytes * MEMORY_FACTOR;
        let most = self.dataset.environment().budget.metadata_most_bytes();
        // What is kept in RAM on purpose is bounded by the dirty share.
        if self.epoch.unfrozen_metadata_bytes() + bytes > most
            && self.dataset.settings().durability != Durability::Ram
        {
            self.commits.commit()?;
        }
        self.admit(bytes)
    }

    /// The same for what must work on a full pool.
    pub(crate) fn admit_metadata_always(&self, room_bytes: u64) -> Result<Admitted<'_>, FsError> {
        match self.admit_metadata(room_bytes) {
            Err(FsError::NoSpace) => {
                let bytes = room_bytes * MEMORY_FACTOR;
                Ok(self.dataset.environment().admit_always(bytes))
            }
            other => other,
        }
    }

    /// Takes room for `operations` changes of metadata; with room gone, commits what is dirty and tries once more.
    /// The room comes back with the next commit.
    pub(crate) fn take_metadata(&self, operations: u64) -> Result<(), FsError> {
        let bytes = operations * METADATA_BYTES;
        let _admitted = self.admit_metadata(bytes)?;
        self.take_room(bytes)?;
        self.epoch.count_metadata(bytes);
        Ok(())
    }

    /// The same for changes that must work on a full pool (they free space, or take none): with room gone they go
    /// into the pool's reserve, as far as `part` of it may be used, and nobody waits until there is room, which is what they are to
    /// bring about.
    ///
    /// # Errors
    /// Of the commit that comes first where much was let go of since the last one. `NoSpace` where that part of the reserve is used,
    /// and nothing can be brought back: below a snapshot nothing gets free, and what was there stays on record.
    pub(crate) fn take_metadata_always(&self, operations: u64, part: OfReserve) -> Result<(), FsError> {
        self.take_metadata_to_remove(operations, part, &|| false)
    }

    /// The same; `is_young`: no past state has what is removed, so that its room is free when that is committed.
    pub(crate) fn take_metadata_to_remove(
        &self,
        operations: u64,
        part: OfReserve,
        is_young: &dyn Fn() -> bool,
    ) -> Result<(), FsError> {
        self.commit_pending_frees()?;
        let bytes = operations * METADATA_BYTES;
        let _admitted = self.admit_metadata_always(bytes)?;
        let (rooms, usage) = (self.epoch.rooms(), self.dataset.usage());
        // To ask for room where there is none would be to wait for it.
        let is_taken = rooms.take_at_hand(bytes)
            || (usage.has_room_at_hand() && rooms.take_on(usage, bytes, Terms::default()).is_ok());
        match is_taken {
            true => self.dataset.environment().room.reserve_is_spared(),
            false => {
                self.spare_reserve(bytes, part, is_young)?;
                rooms.force(bytes);
            }
        }
        self.epoch.pending_frees().add_records(bytes);
        self.epoch.count_metadata(bytes);
        Ok(())
    }

    /// `NoSpace` when changes have used the reserve as far as `part` allows, and nothing brings it back.
    fn spare_reserve(&self, bytes: u64, part: OfReserve, is_young: &dyn Fn() -> bool) -> Result<(), FsError> {
        let store = self.dataset.store();
        let left = part.eighths_left();
        if store.is_reserve_left(left) {
            return Ok(());
        }
        let room = &self.dataset.environment().room;
        let used = room.take_of_reserve(bytes);
        // What nothing older holds is free when it is committed, and the log is asked before that: of many one looks for room, so that
        // there is some for what brings it back.
        let is_held = !self.dataset.held().is_empty();
        let is_freed = part == OfReserve::Removals && (!is_held || is_young());
        if is_freed && used % LOOK_BYTES >= bytes {
            return Ok(());
        }
        // Of many changes one after the other not each looks again through the whole pool.
        if *self.reserve_missed.lock() != Some(store.newest()) {
            // What is dirty may have lost its room with a device: no reason to refuse what gives some back.
            match self.commits.commit() {
                Err(FsError::NoSpace) if part == OfReserve::Removals => {}
                other => drop(other?),
            }
            let mut is_left = Ok(false);
            let mut enough = || {
                is_left = store.restore_reserve(left);
                !matches!(is_left, Ok(false))
            };
            if !enough() {
                room.make_room(&self.dataset, METADATA_BYTES, &mut enough);
            }
            if is_left? {
                room.reserve_is_spared();
                return Ok(());
            }
            *self.reserve_missed.lock() = Some(store.newest());
        }
        // A few work in any case.
        if is_freed || self.dataset.usage().are_few(used) {
            return Ok(());
        }
        room.give_back_of_reserve(bytes);
        Err(FsError::NoSpace)
    }

    /// Takes room for `bytes` of dirty data; with room gone, commits what is dirty (its room was an upper bound), tries once
    /// more, and then waits for what all datasets can give back. No gate, state or commit lock is held.
    pub(crate) fn take_room(&self, bytes: u64) -> Result<(), FsError> {
        self.take_room_over(bytes, &mut || 0, &|| false)
    }

    /// The same for data that takes the place of blocks which are mapped already: `over_bytes` tells how many bytes of them,
    /// once it matters, and `is_preallocated` whether room is set aside for all of it.
    pub(crate) fn take_room_over(
        &self,
        bytes: u64,
        over_bytes: &mut dyn FnMut() -> u64,
        is_preallocated: &dyn Fn() -> bool,
    ) -> Result<(), FsError> {
        let (rooms, usage) = (self.epoch.rooms(), self.dataset.usage());
        if rooms.take_at_hand(bytes) {
            return Ok(());
        }
        self.bring_back_in_time(bytes);
        let mut terms = Terms {
            preallocated: usage.has_preallocated() && is_preallocated(),
            ..Terms::default()
        };
        let mut result = self.ask_before_and_after_commit(&mut || rooms.take_on(usage, bytes, terms))?;
        if result == Err(FsError::QuotaExceeded) {
            terms.over_bytes = over_bytes();
            result = rooms.take_on(usage, bytes, terms);
        }
        result = self.ask_while_reclaiming(bytes, result, &mut || rooms.take_on(usage, bytes, terms));
        let is_promised = terms.preallocated || usage.reservation_bytes() > 0;
        if result == Err(FsError::NoSpace) && is_promised {
            terms.at_last = true;
            result = rooms.take_on(usage, bytes, terms);
        }
        result
    }

    /// Asks for room; where there is none, commits what is dirty, since what that took is an upper bound, and asks once more. The last
    /// answer.
    ///
    /// # Errors
    /// Of the commit.
    fn ask_before_and_after_commit<T>(
        &self,
        ask: &mut dyn FnMut() -> Result<T, FsError>,
    ) -> Result<Result<T, FsError>, FsError> {
        match ask() {
            Err(FsError::NoSpace | FsError::QuotaExceeded) => {
                self.commits.commit()?;
                Ok(ask())
            }
            other => Ok(other),
        }
    }

    /// Where the pool had no room in the end, has what all datasets can give back reclaimed, and asks meanwhile. The last answer.
    fn ask_while_reclaiming(
        &self,
        bytes: u64,
        mut result: Result<(), FsError>,
        ask: &mut dyn FnMut() -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        if result == Err(FsError::NoSpace) {
            let room = &self.dataset.environment().room;
            room.make_room(&self.dataset, bytes, &mut || {
                result = ask();
                result != Err(FsError::NoSpace)
            });
        }
        result
    }

    /// A dataset to which room is promised brings dead blocks back while half of its working room is left: when all is gone there
    /// is none to write anew in.
    fn bring_back_in_time(&self, bytes: u64) {
        let usage = self.dataset.usage();
        if usage.is_short_of_working_room() {
            let environment = self.dataset.environment();
            let now = environment.clock.monotonic_nanoseconds();
            if environment.room.is_time(now, bytes, usage.working_bytes()) {
                // Garbage comes back first: what is written anew makes more of it, and needs room before it gives any.
                let mut enough = || !usage.is_short_of_working_room() || usage.brings_working_room_back();
                if !enough() {
                    environment.room.make_room(&self.dataset, bytes, &mut enough);
                }
            }
        }
    }

    /// Counts `bytes` of content that exists already and is to be mapped once more against the quotas. No gate, state or
    /// commit lock is held.
    pub(crate) fn charge_shared(&self, bytes: u64) -> Result<Charge, FsError> {
        self.ask_before_and_after_commit(&mut || Charge::take(self.dataset.usage(), bytes))?
    }

    /// Slows the writer of `bytes` when much is dirty: it helps to write ahead when much of that waits, and commits
    /// when the budget is used up and nothing can be written ahead; with `durability=ram` when half of it is, as nobody
    /// else may write what is kept there. What is returned is kept until the write is done. No lock is held.
    pub(crate) fn throttle(&self, bytes: u64) -> Result<Admitted<'_>, FsError> {
        let admitted = self.admit(bytes)?;
        let environment = self.dataset.environment();
        environment.budget.throttle(&*environment.clock, bytes);
        Ok(admitted)
    }

    /// The same, and he is not delayed yet.
    pub(crate) fn admit(&self, bytes: u64) -> Result<Admitted<'_>, FsError> {
        let environment = self.dataset.environment();
        let budget = &environment.budget;
        if self.epoch.queue().is_long() {
            self.ahead.help_write_ahead();
        }
        let kept_full = || {
            budget.is_kept_full(self.epoch.dirty_bytes())
                && self.dataset.settings().durability == Durability::Ram
        };
        if kept_full() {
            self.commits.commit()?;
        }
        loop {
            if let Some(admitted) = environment.admit(bytes) {
                return Ok(admitted);
            }
            if !self.ahead.write_ahead_step() {
                self.commits.commit()?;
                return Ok(environment.admit_always(bytes));
            }
        }
    }

    /// Promises room; where there is none, commits what is dirty, and waits for what all datasets can give back.
    pub(super) fn promise(&self, more: Promised) -> Result<(), FsError> {
        let mut promise = || self.dataset.usage().promise(more);
        let result = self.ask_before_and_after_commit(&mut promise)?;
        self.ask_while_reclaiming(blocks_to_bytes_of(more.blocks), result, &mut promise)
    }

    /// Commits what was let go of, if it is so much that a commit might not take more of it. No gate, state or commit lock is held.
    ///
    /// # Errors
    /// Those of the commit: nothing more may be let go of.
    pub(crate) fn commit_pending_frees(&self) -> Result<(), FsError> {
        if self
            .dataset
            .usage()
            .has_log_for_frees(self.epoch.pending_frees().log_bytes())
        {
            return Ok(());
        }
        // What is only in memory takes no room in a log until the pool is closed.
        if self.dataset.settings().durability == Durability::Ram {
            return Ok(());
        }
        self.commits.commit().map(|_| ())
    }
}
