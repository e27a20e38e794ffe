//! Background work, in bounded steps: release (`release.rs`), checkpoint, reclaim, repair, compaction (`compaction.rs`), merge.
//!
//! Invariants: one thread at a time works here; what a checkpoint frees goes back only when the root that does without it is durable,
//! and no root is written before every copy of the log has what it holds.

use super::turn::{Maintenance, SLICE_BYTES, TURN_WAIT};
use crate::durability::LOG_LEAVES_MAX;
use std::{collections::BTreeSet, sync::atomic::Ordering};

use parking_lot::MutexGuard;
use terrace_meta::{Extent, ExtentError, MetaError, Progress};
use terrace_pool::SegmentRange;
use terrace_store::StoreError;

use crate::{
    Step,
    encoding::{Counters, encode_root, encode_root_copy},
    errors::{meta_error, pool_error},
    metadata::MetaStorage,
    space::TierRoom,
    store::ChunkStore,
};

/// How often a step of a checkpoint may fail in a row.
const CHECKPOINT_ATTEMPTS: u32 = 8;

/// What a step came to that did or did not do something, beside what it had to leave.
fn done(worked: bool, refused: Option<StoreError>) -> Result<Step, StoreError> {
    match (worked, refused) {
        (true, _) => Ok(Step::More),
        (false, None) => Ok(Step::Idle),
        (false, Some(error)) => Err(error),
    }
}

impl ChunkStore {
    /// One bounded step of background work: checkpoint, merge, reclaim, release, compaction, whatever is most
    /// needed. Any number of threads may call it; one does the work, the others wait a little for their turn, or get `Idle`.
    pub fn step(&self) -> Result<Step, StoreError> {
        self.check_running()?;
        // Whoever makes room for what they write lets go after each piece: the two take turns, or they would do all of it alone.
        let Some(mut state) = self.maintenance.try_lock_for(TURN_WAIT) else {
            return Ok(Step::Idle);
        };
        self.step_locked(&mut state)
    }

    pub(crate) fn step_locked(&self, state: &mut MutexGuard<'_, Maintenance>) -> Result<Step, StoreError> {
        // Whatever else there is to do makes more of them.
        if self.is_full_of_records() && self.write_tables() {
            return Ok(Step::More);
        }
        // Only a shorter log has room for what everything else makes. Where there is none for the tables that this takes, segments that
        // are empty come back first, and as long as the margin lasts what makes others empty goes on.
        let mut checkpoint = None;
        if self.is_log_short() {
            if state.checkpoint.is_none() && self.log.bytes() > 0 {
                self.start_checkpoint(state);
            }
            let (checkpointed, refused) = self.checkpoint_or_other(state, true)?;
            if checkpointed || self.write_tables() {
                return Ok(Step::More);
            }
            if self.is_log_at_its_end() {
                let worked = self.give_up_empty()? || self.wait_for_release(state)?;
                return done(worked, refused);
            }
            checkpoint = Some((checkpointed, refused));
        }
        // Reclaiming makes records itself: it waits for the merges that users would have to wait for, unless room is
        // short.
        let merges_first = self.is_loaded() && !self.is_short_of_room();
        // Garbage that lies where users write is brought back before anything that can wait longer.
        let pressed_free = self.free_where_pressed();
        if pressed_free.is_some() {
            // By turns: users who write without end leave no end of checkpoints and merges either.
            state.room_next = !state.room_next;
            if !state.room_next && self.bring_back(state, pressed_free)? {
                return Ok(Step::More);
            }
        }
        let (checkpointed, refused) = match checkpoint {
            Some(checkpoint) => checkpoint,
            None => self.checkpoint_or_other(state, false)?,
        };
        let worked = checkpointed
            || (merges_first && self.merge_step())
            || self.reclaim_step(state)?
            || self.repair_step()?
            || self.give_up_empty()?
            || self.compact_pressed(state, pressed_free)?
            || self.release_at_leisure(state)?
            || self.merge_step()
            || self.compact_at_leisure(state)?
            || self.compact_metadata(state)?
            || self.mirror_metadata(state)
            || self.discard_released(state);
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
        let is_unlistable = made.is_err() && !self.is_listable();
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
        self.release_durable(state);
        if state.checkpoint.is_none() && self.checkpoint_due() {
            self.start_checkpoint(state);
        }
        self.checkpoint_step(state)
    }

    /// Writes a checkpoint now: everything committed before the call is in the root afterwards and the log before
    /// it is given back.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.check_running()?;
        let mut state = self.maintenance.lock();
        self.checkpoint_step_until_done(&mut state)?;
        self.start_checkpoint(&mut state);
        self.checkpoint_step_until_done(&mut state)?;
        self.release_durable(&mut state);
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
                let sequence = self.commit_internal(Vec::new(), Counters::default())?;
                self.flush_until(sequence)?;
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
        let _tables = self.tables.lock();
        copy(&self.meta).map_err(|error| StoreError::Device(error.to_string().into()))
    }

    /// Makes the log go on in new segments; whether there is room for that.
    pub(crate) fn renew_log(&self) -> Result<bool, StoreError> {
        if self.log.leave_segments().is_err() {
            return Ok(false);
        }
        // One entry names the new segments, the next one is the first in them.
        for _ in 0..2 {
            let sequence = self.commit_internal(Vec::new(), Counters::default())?;
            self.flush_until(sequence)?;
        }
        Ok(true)
    }

    /// Whether a device has every entry of the log that is to be on it.
    pub fn has_whole_log(&self, device: u16) -> bool {
        !self.log.lacks(device)
    }

    /// Makes a new beginning for the log where a copy of it lacks entries: in new segments, with a root that starts there.
    pub fn begin_log_anew(&self) -> Result<(), StoreError> {
        self.renew_log()?;
        self.checkpoint()
    }

    /// Gives log and metadata their second copy at once, as far as there is room; whether they have it, also for the next opening.
    pub fn mirror_now(&self) -> Result<bool, StoreError> {
        if self.is_mirrored() && !self.meta.has_unlisted() {
            return Ok(true);
        }
        if !self.log.is_mirrored() {
            self.renew_log()?;
        }
        {
            let _maintenance = self.maintenance.lock();
            self.part_doubled();
        }
        while self.copy_metadata(|meta| meta.mirror_one(self.reserve_segments()))? {}
        self.checkpoint()?;
        Ok(self.is_mirrored())
    }

    /// A last checkpoint, before the pool is exported or the process ends. Later commits fail with `Stopped`; after an error they
    /// do not, and it can be closed again once the cause is gone.
    pub fn close(&self) -> Result<(), StoreError> {
        let result = self.checkpoint();
        if result.is_ok() {
            if let Err(error) = self.pool.repeat_last_root() {
                tracing::warn!(%error, "the last root is in one slot only: copies of devices that were made before look like these");
            }
            let mut stop = self.stop.lock();
            stop.get_or_insert_with(|| "it was closed".into());
            self.stopping.store(true, Ordering::Release);
        }
        self.log.catch_up();
        result
    }

    /// Whether a root can list all segments of metadata that it would need.
    pub(crate) fn is_listable(&self) -> bool {
        self.check_listable().is_ok()
    }

    /// Refuses, in words that help, what would be refused as a root that is too long.
    fn check_listable(&self) -> Result<(), StoreError> {
        let (all, most) = self.meta.listed(&[]);
        if all <= most {
            return Ok(());
        }
        let (segments, _) = self.meta.listed(&self.tree.replaced());
        if segments <= most {
            return Ok(());
        }
        Err(StoreError::Device(
            format!(
                "metadata takes {segments} segments and a root can list {most}, so that no checkpoint can be made and \
                 the log only grows; destroy snapshots or delete files, or move to a pool on larger devices, whose \
                 segments are larger"
            )
            .into(),
        ))
    }

    /// Metadata segments, and how many there can be at most before no root can list them any more.
    pub fn metadata_segments(&self) -> (u64, u64) {
        self.meta.listed(&[])
    }

    fn checkpoint_step_until_done(&self, state: &mut Maintenance) -> Result<(), StoreError> {
        while self.checkpoint_step(state)? {}
        Ok(())
    }

    /// Log length at which a checkpoint is due, bytes: less on a small pool or fast tier, so that the log does not fill it.
    pub(crate) fn log_limit(&self) -> u64 {
        let pool_bytes = self.pool.total_segments() * u64::from(self.pool.segment_bytes());
        let fastest_bytes = self
            .pool
            .tiers()
            .first()
            .map_or(pool_bytes, |tier| tier.size_bytes);
        self.options
            .checkpoint_log_bytes
            .min(pool_bytes / 16)
            .min(fastest_bytes / 32)
            .max(64 * 1024)
    }

    fn checkpoint_due(&self) -> bool {
        let low = || self.pool.free_for_content() < self.reserve_segments();
        let segment = u64::from(self.pool.segment_bytes());
        self.log.bytes() > self.log_limit()
            || (low() && (self.log.bytes() > segment || self.tree.usage().bytes_replaced > 2 * segment))
    }

    pub(crate) fn start_checkpoint(&self, state: &mut Maintenance) {
        // Under the lock of commits, so that the sealed part ends with a whole batch.
        let _commit = self.commit.lock();
        state.checkpoint = Some(self.tree.seal());
    }

    /// Goes on with a checkpoint; `false` when there is none.
    fn checkpoint_step(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        let Some(target) = state.checkpoint else {
            return Ok(false);
        };
        if self.tree.flushed_sequence() < target {
            match self.tree.step(SLICE_BYTES) {
                Ok(Progress::More) => {
                    state.failures = 0;
                    return Ok(true);
                }
                Ok(Progress::Idle) => {}
                Err(error) => {
                    // It may have been a merge, which the tree lets rest then; the writing of tables goes on.
                    tracing::warn!(%error, "a step of a checkpoint failed");
                    let error = meta_error(error);
                    // What merges replaced goes with any root, and may be all the room that there is for tables.
                    if matches!(error, StoreError::NoSpace) && self.tree.usage().bytes_replaced > 0 {
                        self.check_listable()?;
                        self.write_root()?;
                    }
                    state.failures += 1;
                    if state.failures < CHECKPOINT_ATTEMPTS {
                        return Ok(true);
                    }
                    state.failures = 0;
                    return Err(error);
                }
            }
        }
        self.check_listable()?;
        let left = self.write_root()?;
        state.checkpoint = None;
        if left {
            // What this root starts behind lies on the device that fails, too.
            self.start_checkpoint(state);
        }
        Ok(true)
    }

    /// Writes a root; whether the log left a device that fails behind where it starts.
    fn write_root(&self) -> Result<bool, StoreError> {
        let manifest = self.manifest().map_err(meta_error)?;
        let sequence = self.tree.described_sequence();
        // The tables name chunks and segments: these must be durable before a root names the tables.
        self.flush_until(sequence)?;
        self.log.catch_up();
        let position = self.log.position_at(sequence);
        let counters = {
            let commit = self.commit.lock();
            let mark = commit
                .marks
                .iter()
                .rev()
                .find(|(mark, _)| *mark == position.sequence);
            mark.map(|(_, counters)| *counters)
        };
        let Some(counters) = counters else {
            return Err(self.latch("the totals at the start of the log are not known"));
        };
        let version = self.format.wanted();
        let next_chunk = self.next_chunk_id();
        let dropped = self.tree.undescribed();
        let root = encode_root(
            version, &manifest, &position, &counters, next_chunk, &self.meta, &dropped,
        );
        self.pool.write_root(&root).map_err(pool_error)?;
        if version > self.format.durable() {
            // In the other slots too: should the newest be damaged, an older program must not find one that it knows.
            self.pool.write_root(&root).map_err(pool_error)?;
        }
        self.meta.keep_root(&encode_root_copy(&self.pool.id(), &root));
        // An opening looks at what is in the log for copies that were not made; what goes out of it now is known to be missing
        // only if the labels say of which device. Behind the root: without the devices that they call absent it is the newest.
        let left = self.leave_failing()?;
        if let Err(error) = self.pool.note_failing() {
            tracing::warn!(%error, "devices that fail could not be noted");
        }
        let released = self.tree.take_released();
        terrace_meta::ExtentStorage::release(&*self.meta, &released);
        self.meta.release_replaced();
        for segment in self.log.release_until(&position) {
            self.release_segment(segment);
        }
        let mut commit = self.commit.lock();
        commit.marks.retain(|(mark, _)| *mark >= position.sequence);
        self.format.set_durable(version);
        Ok(left)
    }

    /// The manifest for a root, which lists only copies that are there: tables that a failing device lacks are written anew
    /// on the others before. Without room for that they stay, and count as under-mirrored.
    fn manifest(&self) -> Result<Vec<u8>, MetaError> {
        let manifest = self.durable_manifest()?;
        let under_mirrored = self.meta.under_mirrored();
        if under_mirrored.is_empty() {
            return Ok(manifest);
        }
        let named: BTreeSet<Extent> = self.tree.extents().into_iter().collect();
        if !under_mirrored.iter().any(|extent| named.contains(extent)) {
            return Ok(manifest);
        }
        tracing::warn!(
            "{} extents of metadata lack a copy and are written anew",
            under_mirrored.len()
        );
        let anew = self.tree.rewrite(&under_mirrored);
        // The next manifest names the new tables, and its own extents lie elsewhere, too.
        anew.and_then(|_| self.tree.manifest()).or_else(|error| {
            tracing::warn!(%error, "tables that lack a copy could not be written anew");
            Ok(manifest)
        })
    }

    /// The manifest, of tables that are durable. Those that went with the only device that had them before they were are written
    /// anew from memory: nothing else would have them until the log is read again, at the next opening.
    fn durable_manifest(&self) -> Result<Vec<u8>, MetaError> {
        let failed = match self.tree.manifest() {
            Ok(manifest) => return Ok(manifest),
            Err(error) => error,
        };
        let lost = self.meta.lost();
        if lost.is_empty() {
            return Err(failed);
        }
        tracing::warn!(error = %failed, "{} tables are written anew on another device", lost.len());
        self.tree.rewrite(&lost)?;
        self.meta.give_up(&lost);
        self.tree.manifest()
    }

    /// How much of its usual rest background work may take while users do something: 1 all of it, 0 none, since users
    /// would soon have to wait for it. The more garbage there is beside what is free, the less.
    pub fn courtesy(&self) -> f64 {
        let rooms = self.tier_rooms();
        let tiers = rooms.iter().map(TierRoom::courtesy);
        tiers.fold(self.courtesy_of_pool(), f64::min)
    }

    /// The same, whichever tier the free room is on.
    pub(crate) fn courtesy_of_pool(&self) -> f64 {
        if self.is_loaded() || self.is_short_of_room() {
            return 0.0;
        }
        let pending = self.pending_free.load(Ordering::Relaxed).max(0);
        let garbage = {
            let books = self.keeper.lock();
            let content = books.segments.len() as i64 * i64::from(self.pool.segment_bytes());
            (content - books.live_bytes()).max(0) + pending
        };
        let free = self.pool.free_for_content() * u64::from(self.pool.segment_bytes());
        (1.0 - garbage as f64 / free.max(1) as f64).clamp(0.0, 1.0)
    }

    /// Room for what lands until garbage has to be brought back for it, bytes.
    pub fn landing_bytes(&self) -> u64 {
        let free = self.pool.free_for_content() * u64::from(self.pool.segment_bytes());
        let rooms = self.tier_rooms();
        let contested = rooms.iter().filter(|room| room.is_worth_it());
        contested.map(TierRoom::landing_bytes).fold(free, u64::min)
    }

    /// Users would soon have to wait for background work: records wait for it, or room is short, on a tier or on all.
    pub fn is_pressed(&self) -> bool {
        self.is_loaded() || self.is_short_of_room() || self.free_where_pressed().is_some()
    }

    /// Records come faster than they are written into tables.
    pub(crate) fn is_loaded(&self) -> bool {
        self.tree.pressure() > 0.5 || self.log.bytes() > self.log_limit() / 2 * 3
    }

    pub(crate) fn is_short_of_room(&self) -> bool {
        self.pool.free_for_content() < self.reserve_segments() * 3
    }
}
