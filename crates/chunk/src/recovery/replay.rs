//! Replay: the log behind a root, applied to the tree.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use terrace_log::{Copies, LogPosition, Scanned, Scanner};
use terrace_meta::Tree;
use terrace_pool::Pool;
use terrace_store::{ChunkId, StoreError};

use super::tail;
use crate::{
    append::Shortage,
    encoding::{Counters, LoggedBatch, decode_batches},
    errors::{damaged, log_error, meta_error},
    worker_pool::Crew,
};

/// Records of the segment table read at once.
pub(crate) const SCAN: usize = 4096;

/// Totals of the replay as it goes.
pub(crate) struct Replay {
    pub(super) tree: Tree,
    pub(super) counters: Counters,
    pub(super) next_chunk: u64,
    pub(super) sequence: u64,
}

impl Replay {
    pub(crate) fn apply(&mut self, batches: Vec<LoggedBatch>) -> Result<(), StoreError> {
        for batch in batches {
            if batch.sequence != self.sequence + 1 {
                return Err(StoreError::DamagedMetadata(
                    format!("the log goes from batch {} to {}", self.sequence, batch.sequence).into(),
                ));
            }
            self.sequence = batch.sequence;
            self.counters.add(&batch.change);
            self.next_chunk = self.next_chunk.max(batch.next_chunk);
            // What the tables hold already must not be applied twice: additions are not idempotent.
            if batch.sequence > self.tree.flushed_sequence() {
                self.tree
                    .apply(batch.sequence, batch.operations)
                    .map_err(meta_error)?;
            }
        }
        Ok(())
    }
}

/// Gives all records of a table to `each`, a page at a time.
pub(crate) fn scan_table(
    tree: &Tree,
    table: u8,
    mut each: impl FnMut(&[(Bytes, Bytes)]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut from = vec![table];
    loop {
        let records = tree.scan(&from, &[table + 1], SCAN).map_err(meta_error)?;
        let Some((last, _)) = records.last() else {
            return Ok(());
        };
        from = last.to_vec();
        from.push(0);
        each(&records)?;
    }
}

/// What a replay came to.
pub(crate) struct Replayed {
    /// The place behind the last entry that was accepted.
    pub(super) tail: LogPosition,
    /// The segments up to it.
    pub(super) segments: Vec<Copies>,
    /// Why the log is broken there, if it is: what could be accepted before that was applied.
    pub(super) broken: Option<StoreError>,
    /// Knows which entries may lack in one copy.
    pub(super) scanner: Scanner,
    /// Chunks of which a copy is not there, or of which there are fewer than there should be.
    pub(super) lacking: BTreeSet<ChunkId>,
    /// Up to here the log itself says that it was durable.
    pub(super) confirmed: u64,
}

/// Replays the log from `start`.
pub(crate) fn replay_log(
    pool: &Arc<Pool>,
    crew: &Crew,
    start: LogPosition,
    replay: &mut Replay,
) -> Result<Replayed, StoreError> {
    let mut broken = None;
    let mut scanner = Scanner::new(pool.clone(), start).map_err(log_error)?;
    let mut tail = start;
    let mut confirmed = replay.tree.flushed_sequence();
    let mut unsure: VecDeque<(Scanned, Vec<LoggedBatch>)> = VecDeque::new();
    let mut shortage = Shortage::new(pool);
    loop {
        let mut scanned = match scanner.next_payload() {
            Ok(Some(scanned)) => scanned,
            Ok(None) => break,
            Err(error) => {
                broken = Some(log_error(error));
                break;
            }
        };
        let payload = std::mem::take(&mut scanned.payload);
        let batches = match decode_batches(&payload) {
            Ok(batches) => batches,
            Err(error) => {
                broken = Some(damaged(format!("log entry: {error}")));
                break;
            }
        };
        confirmed = confirmed.max(scanned.flushed);
        unsure.push_back((scanned, batches));
        while unsure
            .front()
            .is_some_and(|(scanned, _)| scanned.last <= confirmed)
        {
            let Some((scanned, batches)) = unsure.pop_front() else {
                break;
            };
            shortage.note(&batches);
            replay.apply(batches)?;
            tail = scanned.after;
        }
    }
    let accepted = tail::accepted(pool, crew, unsure.iter());
    if accepted.entries < unsure.len() {
        tracing::info!(
            dropped = unsure.len() - accepted.entries,
            "the log ended in entries that were never durable"
        );
    }
    for (scanned, batches) in unsure.drain(..).take(accepted.entries) {
        shortage.note(&batches);
        replay.apply(batches)?;
        tail = scanned.after;
    }
    let mut lacking = shortage.chunks();
    lacking.extend(accepted.lacking);
    let mut segments = scanner.segments().to_vec();
    if let Some(last) = segments.iter().position(|copies| *copies == tail.segment) {
        segments.truncate(last + 1);
    }
    Ok(Replayed {
        tail,
        segments,
        broken,
        scanner,
        lacking,
        confirmed,
    })
}
