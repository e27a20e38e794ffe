//! Background work, in bounded steps: release (`release.rs`), checkpoint, reclaim, repair, compaction (`compaction.rs`), merge.
//!
//! Invariants: one thread at a time works here; what a checkpoint frees goes back only when the root that does without it is durable,
//! and no root is written before every copy of the log has what it holds.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use terrace_log::Log;
use terrace_meta::{ExtentError, Tree};
use terrace_pool::{Pool, SegmentRange};
use terrace_store::{ChunkId, StoreError};
use terrace_sync::{Clock, Mutex, MutexGuard, rank};

use super::{
    compaction::Compactor,
    merges::Merger,
    release::Reclaimer,
    relocation::Relocator,
    turn::{Maintenance, TURN_WAIT, Turn},
};
use crate::{
    Handles, Step,
    catalog::{Catalog, Inherited, PAGES_AT_OPENING},
    durability::{Journal, LOG_LEAVES_MAX},
    encoding::{Counters, FORMAT_NEWEST},
    errors::{log_error, pool_error},
    metadata::MetaStorage,
    space::SpaceView,
    stop::Stop,
};

/// What a step came to that did or did not do something, beside what it had to leave.
fn done(worked: bool, refused: Option<StoreError>) -> Result<Step, StoreError> {
    match (worked, refused) {
        (true, _) => Ok(Step::More),
        (false, None) => Ok(Step::Idle),
        (false, Some(error)) => Err(error),
    }
}

/// Background work, one step at a time: whoever has the turn does what is most needed.
pub(crate) struct Collector {
    pub(super) pool: Arc<Pool>,
    pub(super) tree: Arc<Tree>,
    pub(super) log: Arc<Log>,
    pub(super) meta: Arc<MetaStorage>,
    pub(super) stop: Arc<Stop>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) journal: Arc<Journal>,
    pub(super) relocator: Arc<Relocator>,
    pub(super) reclaimer: Arc<Reclaimer>,
    pub(super) merger: Arc<Merger>,
    pub(super) compactor: Arc<Compactor>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) maintenance: Mutex<Maintenance, rank::chunk::Turn>,
}

impl Collector {
    /// Of these parts.
    #[expect(clippy::too_many_arguments, reason = "it is put together once")]
    pub(crate) fn new(
        handles: &Handles,
        stop: &Arc<Stop>,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
        journal: &Arc<Journal>,
        relocator: &Arc<Relocator>,
        reclaimer: &Arc<Reclaimer>,
        merger: &Arc<Merger>,
        compactor: &Arc<Compactor>,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            tree: handles.tree.clone(),
            log: handles.log.clone(),
            meta: handles.meta.clone(),
            stop: stop.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            journal: journal.clone(),
            relocator: relocator.clone(),
            reclaimer: reclaimer.clone(),
            merger: merger.clone(),
            compactor: compactor.clone(),
            clock: handles.options.clock.clone(),
            maintenance: Mutex::new(Maintenance::default()),
        }
    }

    /// To be called by whoever opened the store, before the first step and the first commit.
    pub(crate) fn inherit_candidates(&self) {
        let newest = self.catalog.newest();
        let mut inherited = Some(Inherited::until(newest));
        for _ in 0..PAGES_AT_OPENING {
            match self.catalog.count_inherited(&mut inherited) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "what is to be freed could not be counted yet");
                    break;
                }
            }
        }
        self.maintenance.lock().reclaim.inherited = inherited;
    }

    /// Stores chunks of which a copy is lacking anew, as far as there is room, before anything counts on their being as many.
    pub(crate) fn complete_chunks(&self, lacking: BTreeSet<ChunkId>) -> Result<(), StoreError> {
        tracing::info!(
            chunks = lacking.len(),
            "a copy of them is not there: they are stored anew"
        );
        self.relocator.repair_all(lacking)?;
        let newest = self.catalog.newest();
        self.journal.flush_until(newest)?;
        self.log.fence(newest).map_err(log_error)
    }

    /// Notes devices on the labels of the others that fail, or lack what others have, and gets the log off those that fail before.
    /// Cheap while there are none.
    ///
    /// # Errors
    /// If no other device takes the label, or the log cannot be written.
    pub(crate) fn note_failing(&self) -> Result<(), StoreError> {
        let left = match self.journal.leave_failing()? {
            // What came before in the log has no other copy than one beside it.
            true => self.checkpoint(),
            false => Ok(()),
        };
        self.pool.note_failing().map_err(pool_error).and(left)
    }

    /// Gives the pool the newest format version: durable when it returns, and older programs refuse the pool from then on. After an
    /// error it may have it or not, and the next checkpoint gives it.
    ///
    /// # Errors
    /// What the checkpoint says that this takes.
    pub(crate) fn upgrade_format(&self) -> Result<(), StoreError> {
        if self.journal.format().durable() >= FORMAT_NEWEST {
            return Ok(());
        }
        self.stop.check_running()?;
        self.journal.format().want(FORMAT_NEWEST);
        self.checkpoint()
    }

    #[cfg(test)]
    pub(crate) fn compactor(&self) -> &Compactor {
        &self.compactor
    }

    /// The turn, if nobody has it.
    pub(crate) fn try_turn(&self) -> Option<Turn<'_>> {
        self.maintenance.try_lock()
    }

    /// The same, after so long at most.
    pub(crate) fn try_turn_for(&self, patience: Duration) -> Option<Turn<'_>> {
        self.maintenance.lock_within(&*self.clock, patience)
    }

    /// Whether all that is to be freed has been counted since the opening.
    pub(crate) fn has_counted_all(&self) -> bool {
        self.maintenance.lock().reclaim.inherited.is_none()
    }

    /// One bounded step of background work: checkpoint, merge, reclaim, release, compaction, whatever is most
    /// needed. Any number of threads may call it; one does the work, the others wait a little for their turn, or get `Idle`.
    pub(crate) fn step(&self) -> Result<Step, StoreError> {
        self.stop.check_running()?;
        // Whoever makes room for what they write lets go after each piece: the two take turns, or they would do all of it alone.
        let Some(mut state) = self.maintenance.lock_within(&*self.clock, TURN_WAIT) else {
            return Ok(Step::Idle);
        };
        self.step_locked(&mut state)
    }

    pub(crate) fn step_locked(
        &self,
        state: &mut MutexGuard<'_, Maintenance, rank::chunk::Turn>,
    ) -> Result<Step, StoreError> {
        // Whatever else there is to do makes more of them.
        if self.space.is_full_of_records() && self.merger.write_tables() {
            return Ok(Step::More);
        }
        // Only a shorter log has room for what everything else makes. Where there is none for the tables that this takes, segments that
        // are empty come back first, and as long as the margin lasts what makes others empty goes on.
        let mut checkpoint = None;
        if self.journal.is_log_short() {
            if !state.checkpoint.is_under_way() && self.log.bytes() > 0 {
                self.journal.start_checkpoint(&mut state.checkpoint);
            }
            let (checkpointed, refused) = self.checkpoint_or_other(state, true)?;
            if checkpointed || self.merger.write_tables() {
                return Ok(Step::More);
            }
            if self.journal.is_log_at_its_end() {
                let worked = self.reclaimer.give_up_empty()? || self.reclaimer.wait_for_release(state)?;
                return done(worked, refused);
            }
            checkpoint = Some((checkpointed, refused));
        }
        // Reclaiming makes records itself: it waits for the merges that users would have to wait for, unless room is
        // short.
        let merges_first = self.space.is_loaded() && !self.space.is_low();
        // Garbage that lies where users write is brought back before anything that can wait longer.
        let pressed_free = self.space.free_where_pressed();
        if pressed_free.is_some() {
            // By turns: users who write without end leave no end of checkpoints and merges either.
            state.room_next = !state.room_next;
            if !state.room_next && self.compactor.bring_back(state, pressed_free)? {
                return Ok(Step::More);
            }
        }
        let (checkpointed, refused) = match checkpoint {
            Some(checkpoint) => checkpoint,
            None => self.checkpoint_or_other(state, false)?,
        };
        let worked = checkpointed
            || (merges_first && self.merger.merge_step())
            || self.reclaimer.reclaim_step(state)?
            || self.relocator.repair_step()?
            || self.reclaimer.give_up_empty()?
            || self.compactor.compact_pressed(state, pressed_free)?
            || self.reclaimer.release_throttled(state)?
            || self.merger.merge_step()
            || self.compactor.compact_throttled(state)?
            || self.merger.compact_metadata(state)?
            || self.merger.mirror_metadata(state)
            || self.reclaimer.discard_released(state);
        done(worked, refused)
    }

    /// Goes on with a checkpoint if one is being made or due; whether one is. Or why it is refused, where other work leads out of that:
    /// beyond what a root can list merging and freeing do, and where a log that is `short` finds no room for tables freeing does.
    fn checkpoint_or_other(
        &self,
        state: &mut Maintenance,
        short: bool,
    ) -> Result<(bool, Option<StoreError>), StoreError> {
        let made = self.checkpoint_if_due(state);
        let is_unlistable = made.is_err() && !self.space.is_listable();
        self.tree.merge_closely(is_unlistable);
        match made {
            Err(error) if is_unlistable || short && matches!(error, StoreError::NoSpace) => {
                Ok((false, Some(error)))
            }
            made => Ok((made?, None)),
        }
    }

    /// Releases what may be, and goes on with a checkpoint if one is being made or due; whether one is.
    pub(crate) fn checkpoint_if_due(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        self.reclaimer.release_durable(state);
        if !state.checkpoint.is_under_way() && self.space.is_checkpoint_due() {
            self.journal.start_checkpoint(&mut state.checkpoint);
        }
        self.journal.checkpoint_step(&mut state.checkpoint)
    }

    /// Writes a checkpoint now: everything committed before the call is in the root afterwards and the log before
    /// it is given back.
    pub(crate) fn checkpoint(&self) -> Result<(), StoreError> {
        self.stop.check_running()?;
        let mut state = self.maintenance.lock();
        self.journal.checkpoint_step_until_done(&mut state.checkpoint)?;
        self.journal.start_checkpoint(&mut state.checkpoint);
        self.journal.checkpoint_step_until_done(&mut state.checkpoint)?;
        self.reclaimer.release_durable(&mut state);
        Ok(())
    }

    /// Gets log, metadata and empty segments off segments that are not handed out any more.
    pub(crate) fn evacuate_metadata(&self, range: SegmentRange) -> Result<(), StoreError> {
        // What it has left there already goes with the checkpoint; leaving anew would take new segments each time. Near the end of
        // its segment it goes on in the next ones first, which may lie there too, once they are named.
        for _ in 0..LOG_LEAVES_MAX {
            if !self.log.goes_to(range) {
                break;
            }
            self.log
                .leave_segments()
                .map_err(|error| StoreError::Device(error.to_string().into()))?;
            // One entry names the new segments, the next one is the first in them.
            for _ in 0..2 {
                let sequence = self.catalog.commit_internal(Vec::new(), Counters::default())?;
                self.journal.flush_until(sequence)?;
            }
        }
        {
            let _maintenance = self.maintenance.lock();
            self.meta.forget_root_copy(range);
        }
        while self.copy_metadata(|meta| meta.move_off(range))? {}
        self.checkpoint()?;
        for _ in 0..64 {
            if self.step()? == Step::Idle {
                break;
            }
        }
        Ok(())
    }

    /// Copies one segment of metadata, if there is one to be copied. Who waits for room or memory has his turn behind each: all of
    /// them may take minutes.
    fn copy_metadata(
        &self,
        copy: impl FnOnce(&MetaStorage) -> Result<bool, ExtentError>,
    ) -> Result<bool, StoreError> {
        let _maintenance = self.maintenance.lock();
        let _tables = self.merger.tables.lock();
        copy(&self.meta).map_err(|error| StoreError::Device(error.to_string().into()))
    }

    /// Makes a new beginning for the log where a copy of it lacks entries: in new segments, with a root that starts there.
    pub(crate) fn begin_log_anew(&self) -> Result<(), StoreError> {
        self.journal.renew_log()?;
        self.checkpoint()
    }

    /// Gives log and metadata their second copy at once, as far as there is room; whether they have it, also for the next opening.
    pub(crate) fn mirror_now(&self) -> Result<bool, StoreError> {
        if self.journal.is_mirrored() && !self.meta.has_unlisted() {
            return Ok(true);
        }
        if !self.log.is_mirrored() {
            self.journal.renew_log()?;
        }
        {
            let _maintenance = self.maintenance.lock();
            self.merger.part_doubled();
        }
        while self.copy_metadata(|meta| meta.mirror_one(self.space.watermarks().reserve()))? {}
        self.checkpoint()?;
        Ok(self.journal.is_mirrored())
    }

    /// A last checkpoint, before the pool is exported or the process ends. Later commits fail with `Stopped`; after an error they
    /// do not, and it can be closed again once the cause is gone.
    pub(crate) fn close(&self) -> Result<(), StoreError> {
        let result = self.checkpoint();
        if result.is_ok() {
            if let Err(error) = self.pool.repeat_last_root() {
                tracing::warn!(%error, "the last root is in one slot only: copies of devices that were made before look like these");
            }
            self.stop.close();
        }
        self.log.catch_up();
        result
    }
}
