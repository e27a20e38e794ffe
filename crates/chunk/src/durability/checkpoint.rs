//! Checkpoints: tables, manifest and root, so that the log before them can go.
//!
//! Invariants: what a checkpoint frees goes back only when the root that does without it is durable, and no root is written before
//! every copy of the log has what it holds.

use std::collections::BTreeSet;

use terrace_meta::{Extent, MetaError, Progress};
use terrace_store::StoreError;

use super::group_commit::Journal;
use crate::{
    encoding::{Counters, Format, encode_root_copy},
    errors::{meta_error, pool_error},
    metadata::encode_root,
};

/// How often a step of a checkpoint may fail in a row.
const CHECKPOINT_ATTEMPTS: u32 = 8;
/// What one slice of a merge or of a table's writing moves, bytes.
pub(crate) const SLICE_BYTES: usize = 1 << 20;

/// How far a checkpoint is that is made in steps.
#[derive(Default)]
pub(crate) struct Checkpoint {
    /// One is being made that holds everything up to this sequence.
    target: Option<u64>,
    /// Failed steps of it in a row.
    failures: u32,
}

impl Checkpoint {
    /// Whether one is being made.
    pub(crate) fn is_under_way(&self) -> bool {
        self.target.is_some()
    }
}

impl Journal {
    /// The format version of the pool.
    pub(crate) fn format(&self) -> &Format {
        &self.format
    }

    /// Whether log and tables have two copies on two devices: on a pool of one device, or where a device is full, they do
    /// not.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.log.is_mirrored() && self.meta.is_mirrored()
    }

    /// The format version of the pool.
    pub(crate) fn format_version(&self) -> u8 {
        self.format.durable()
    }

    /// Makes durable in every copy of the log that segments were given up; whether there were any.
    pub(crate) fn flush_given_up(&self) -> Result<bool, StoreError> {
        let last = self.ledger.lock().freeing.iter().map(|(at, _)| *at).max();
        let Some(last) = last else { return Ok(false) };
        if self.durable_everywhere() < last {
            self.flush_until(last)?;
            self.log.catch_up();
        }
        Ok(true)
    }

    /// Makes the log go on in new segments; whether there is room for that.
    pub(crate) fn renew_log(&self) -> Result<bool, StoreError> {
        if self.log.leave_segments().is_err() {
            return Ok(false);
        }
        // One entry names the new segments, the next one is the first in them.
        for _ in 0..2 {
            let sequence = self.catalog.commit_internal(Vec::new(), Counters::default())?;
            self.flush_until(sequence)?;
        }
        Ok(true)
    }

    /// Whether a device has every entry of the log that is to be on it.
    pub(crate) fn has_whole_log(&self, device: u16) -> bool {
        !self.log.lacks(device)
    }

    pub(crate) fn checkpoint_step_until_done(&self, state: &mut Checkpoint) -> Result<(), StoreError> {
        while self.checkpoint_step(state)? {}
        Ok(())
    }

    pub(crate) fn start_checkpoint(&self, state: &mut Checkpoint) {
        state.target = Some(self.catalog.seal());
    }

    /// Goes on with a checkpoint; `false` when there is none.
    pub(crate) fn checkpoint_step(&self, state: &mut Checkpoint) -> Result<bool, StoreError> {
        let Some(target) = state.target else {
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
                        self.space.check_listable()?;
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
        self.space.check_listable()?;
        let left = self.write_root()?;
        state.target = None;
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
        let Some(counters) = self.catalog.totals_at(position.sequence) else {
            return Err(self
                .stop
                .latch("the totals at the start of the log are not known"));
        };
        let version = self.format.wanted();
        let next_chunk = self.catalog.next_chunk_id();
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
            self.space.release_segment(segment);
        }
        self.catalog.forget_totals_before(position.sequence);
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
}
