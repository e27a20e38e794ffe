//! Batches: what commits change, in one order, and the operations of one batch.
//!
//! Invariant: a batch gets its number, its place in the pending log payload and its place in the tree under one lock.

use std::collections::{BTreeSet, VecDeque};

use terrace_codec::Writer;
use terrace_meta::{Key, Operation};
use terrace_pool::SegmentId;
use terrace_store::ChunkId;

use crate::encoding::{ChunkRecord, Counters, TABLE_CHUNKS, TABLE_LIVE, chunk_key, segment_key};

/// Operations of one batch.
pub(crate) type Operations = Vec<(Key, Operation)>;

/// Adds the operations that enter a chunk's record to a batch.
pub(crate) fn put_record(operations: &mut Operations, id: ChunkId, record: &ChunkRecord) {
    operations.push((
        chunk_key(TABLE_CHUNKS, id).into(),
        Operation::Put(record.encode().into()),
    ));
}

/// Adds a change of a segment's live bytes to a batch.
pub(crate) fn add_live(operations: &mut Operations, segment: SegmentId, bytes: i64) {
    operations.push((segment_key(TABLE_LIVE, segment).into(), Operation::Add(bytes)));
}

/// What commits change, in one order.
pub(crate) struct CommitState {
    /// Sequence of the newest batch.
    pub sequence: u64,
    /// Batches that are not in the log yet.
    pub pending: Writer,
    /// Bytes of batches that are being written to the log.
    pub in_flight: u64,
    /// Sequence of the first of them.
    pub first: u64,
    /// Totals after the newest batch.
    pub counters: Counters,
    /// Totals at each place where the log can be entered.
    pub marks: VecDeque<(u64, Counters)>,
    /// Devices on which the chunks lie that pending batches tell of.
    pub places: BTreeSet<u16>,
}
