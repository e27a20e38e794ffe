//! `Shortage`: chunks that the log tells of and that have fewer copies than their tier keeps, though there are devices for more.
//! A device failed when they were written, and the process ended before the labels said so: it is back and counts as whole, so
//! that nobody else looks for what it lacks.
//!
//! Invariant: what devices lack that were known to be away is left to the job that brings it to them.

use std::collections::BTreeSet;

use terrace_meta::Operation;
use terrace_pool::{DeviceInfo, DeviceState, Pool, Presence, SegmentId};
use terrace_store::ChunkId;

use crate::encoding::{COPIES_MAX, ChunkRecord, LoggedBatch, TABLE_CHUNKS, chunk_of_key};

/// See the module.
pub(crate) struct Shortage<'a> {
    pool: &'a Pool,
    /// Whether any chunk can be short of copies, and no job looks for such.
    looks: bool,
    chunks: BTreeSet<ChunkId>,
}

impl<'a> Shortage<'a> {
    /// None so far.
    pub(crate) fn new(pool: &'a Pool) -> Self {
        let is_whole =
            |device: &DeviceInfo| device.state == DeviceState::Online && device.presence == Presence::Whole;
        let keeps_several = pool.tiers().iter().any(|tier| tier.settings.copies > 1);
        Self {
            pool,
            looks: keeps_several && pool.returned().is_empty() && pool.devices().iter().all(is_whole),
            chunks: BTreeSet::new(),
        }
    }

    /// What these batches, which come next, make of it.
    pub(crate) fn note(&mut self, batches: &[LoggedBatch]) {
        if !self.looks {
            return;
        }
        for (key, operation) in batches.iter().flat_map(|batch| &batch.operations) {
            if key.first() != Some(&TABLE_CHUNKS) {
                continue;
            }
            let Some(id) = chunk_of_key(key) else { continue };
            let record = match operation {
                Operation::Put(value) => ChunkRecord::decode(value).ok(),
                _ => None,
            };
            match record.is_some_and(|record| lacks_copies(self.pool, &record)) {
                true => self.chunks.insert(id),
                false => self.chunks.remove(&id),
            };
        }
    }

    /// Those that are short at the end.
    pub(crate) fn chunks(self) -> BTreeSet<ChunkId> {
        self.chunks
    }
}

/// Whether a chunk has fewer copies than its tier keeps, though there are devices for more.
pub(crate) fn lacks_copies(pool: &Pool, record: &ChunkRecord) -> bool {
    let first = record.locations.first();
    first.is_some_and(|first| are_too_few(pool, first.segment, record.locations.len()))
}

/// The same of what has so many copies, one of them in this segment.
pub(crate) fn are_too_few(pool: &Pool, one: SegmentId, copies: usize) -> bool {
    let Some(tier) = pool.tier_of(one.device) else {
        return false;
    };
    let wanted = usize::from(pool.copies_in(tier)).min(COPIES_MAX);
    copies < wanted && copies < pool.usable_devices(tier)
}
