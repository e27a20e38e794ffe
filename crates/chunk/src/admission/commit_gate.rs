//! The gate of commits: a batch is accepted once the log can take it and records have room in memory.
//!
//! Invariant: who is refused has changed nothing.

use std::{collections::BTreeMap, time::Duration};

use terrace_meta::Operation;
use terrace_store::{Batch, ChunkId, FIRST_USER_TABLE, KEY_BYTES_MAX, Sequence, StoreError, VALUE_BYTES_MAX};

use super::make_room::Admission;
use crate::{
    catalog::{Change, Operations, fold_references},
    durability::log_bytes,
    space::{Backlog, Margin, THROTTLED_PRESSURE},
};

/// Pending payload at which a commit flushes by itself, bytes: bounds memory and the size of a log entry. An eighth of
/// the memtables' share, within these limits.
const PENDING_BYTES_MAX: usize = 16 << 20;
const PENDING_BYTES_MIN: usize = 1 << 20;

/// Chunk data after which a commit flushes by itself, bytes: a recovery verifies what the last entries introduce.
const UNLOGGED_BYTES_MAX: u64 = 256 << 20;

impl Admission {
    pub(crate) fn commit_batch(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.stop.check_running()?;
        for (key, value) in batch.records() {
            if key.first().is_none_or(|table| *table < FIRST_USER_TABLE) || key.len() > KEY_BYTES_MAX {
                return Err(StoreError::Invalid(
                    "a key outside the user's tables, or too long".into(),
                ));
            }
            if value.as_ref().is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
                return Err(StoreError::Invalid("a value that is too long".into()));
            }
        }
        self.hold_back();
        // What destroys may use some of what background work keeps: it may be all that still gives room back.
        let margin = match batch.is_privileged() {
            true => Margin::Half,
            false => Margin::All,
        };
        let (records, references, pins) = batch.into_parts();
        let bytes = log_bytes(&records, &references);
        let changes = fold_references(&references);
        self.catalog.check_known(&changes)?;
        let mut operations: Operations = Vec::with_capacity(records.len() + changes.len() * 3);
        for (key, value) in records {
            let operation = value.map_or(Operation::Delete, |value| Operation::Put(value.into()));
            operations.push((key.into(), operation));
        }
        let (sequence, pending) = self.commit_once_it_fits(&mut operations, &changes, bytes, margin)?;
        // Guards take the lock of the ledger when they are dropped.
        drop(pins);
        if self.is_long(pending) {
            self.journal.flush_until(sequence)?;
        }
        Ok(Sequence(sequence))
    }

    /// Commits once the log takes so many bytes more; who has to wait for that works for it himself. The sequence, and what is pending.
    /// No reservation stands for this: what a batch takes in the log is known when it is built, deletions have none, and a log that
    /// cannot be written stops the store.
    ///
    /// # Errors
    /// `NoSpace` if nothing can be had: the batch was not accepted.
    fn commit_once_it_fits(
        &self,
        operations: &mut Operations,
        changes: &BTreeMap<ChunkId, Change>,
        bytes: u64,
        margin: Margin,
    ) -> Result<(u64, usize), StoreError> {
        let takes = |due: u64| self.journal.log_takes(due + bytes, margin);
        loop {
            if let Some(committed) = self.catalog.try_commit(operations, changes, takes)? {
                return Ok(committed);
            }
            self.log
                .seek_next()
                .map_err(|error| StoreError::Device(error.to_string().into()))?;
            let enough = || self.catalog.with_due_bytes(takes);
            if !enough() && !self.make_room(enough)? {
                return Err(StoreError::NoSpace);
            }
        }
    }

    /// Whether so much is pending, or was appended, that a commit flushes by itself.
    fn is_long(&self, pending: usize) -> bool {
        // At most a segment: on a pool of small ones an entry of many may not have room in what is kept for the log.
        let segment_bytes = self.pool.segment_bytes() as usize;
        let pending_max = (self.tree.memory_bytes() / 8)
            .clamp(PENDING_BYTES_MIN, PENDING_BYTES_MAX)
            .min(segment_bytes);
        pending > pending_max || self.catalog.unlogged_bytes() > UNLOGGED_BYTES_MAX
    }

    /// Slows writers when the background falls behind, smoothly; does for it what relieves it where there is none. A question of speed,
    /// asked of each batch: nobody is refused here.
    fn hold_back(&self) {
        let backlog = self.space.backlog();
        if backlog < Backlog::Throttled {
            return;
        }
        let pressure = self.tree.pressure();
        let helped = backlog == Backlog::Full
            && match self.collector.try_turn() {
                Some(mut state) => {
                    match self.collector.checkpoint_if_due(&mut state) {
                        Ok(true) => {}
                        Ok(false) => drop(self.merger.merge_step()),
                        Err(error) => tracing::warn!(%error, "a background step failed"),
                    }
                    true
                }
                None => self.merger.merge_step(),
            };
        if !helped {
            let late = (pressure - THROTTLED_PRESSURE).clamp(0.0, 1.0);
            self.options
                .clock
                .rest(Duration::from_micros((late * 20_000.0) as u64));
        }
        self.merger.wait_for_tables();
    }
}
