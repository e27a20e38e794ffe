//! Counting what a commit makes of the preallocated ranges of one object.
//!
//! Invariant: it looks only at the regions that the commit changes, and at those of ranges that are new.

use super::freeze::FrozenObject;
use crate::{
    live::DatasetState,
    posix::FsError,
    records::{Preallocated, REGION_BLOCKS, RegionRecord, decode_region, keys},
};
use std::{collections::BTreeSet, ops::Range};

const PER_REGION: u64 = REGION_BLOCKS as u64;
/// Region records that are read at once.
const RECORDS: usize = 256;

/// Counts what a commit makes of the preallocated ranges of one object.
pub(crate) struct Counting {
    was: Option<Box<Preallocated>>,
    now: Preallocated,
    /// Ranges that are counted as they were before.
    old: Preallocated,
    mapped: i64,
    own: i64,
    counted: BTreeSet<u64>,
}

impl Counting {
    /// Nothing where an object has, and had, none. `newest_snapshot`: the first chunk that no snapshot has; `next_chunk`: the first that
    /// the commit itself may make.
    pub(crate) fn begin(
        frozen: &FrozenObject,
        was: Option<Box<Preallocated>>,
        is_replaced: bool,
        newest_snapshot: u64,
        next_chunk: u64,
    ) -> Option<Self> {
        let ranges = frozen.inode.preallocated.as_deref();
        if ranges.is_none() && was.is_none() {
            return None;
        }
        let mut now = ranges.cloned().unwrap_or_default();
        let since = was.as_ref().map_or(0, |was| was.since).max(newest_snapshot);
        now.since = match frozen.preallocated_over {
            true => next_chunk.max(since),
            false => since,
        };
        let mut old = was
            .as_deref()
            .filter(|_| !is_replaced)
            .cloned()
            .unwrap_or_default();
        if now.since > old.since {
            old.own_blocks = 0;
        }
        old.since = now.since;
        Some(Self {
            mapped: old.mapped_blocks as i64,
            own: old.own_blocks as i64,
            counted: BTreeSet::new(),
            was,
            now,
            old,
        })
    }

    /// A region has another record than before.
    pub(crate) fn change(&mut self, region: u64, old: Option<&RegionRecord>, new: &RegionRecord) {
        let before = old.map_or((0, 0), |old| self.old.count(region, old));
        let after = self.now.count(region, new);
        self.mapped += after.0 as i64 - before.0 as i64;
        self.own += after.1 as i64 - before.1 as i64;
        self.counted.insert(region);
    }

    /// The ranges as they are recorded now, and as they were.
    #[allow(clippy::type_complexity)]
    pub(crate) fn end(
        mut self,
        dataset: &DatasetState,
        body: u64,
    ) -> Result<(Option<Box<Preallocated>>, Option<Box<Preallocated>>), FsError> {
        for range in self.now.beyond(&self.old) {
            self.count_added(dataset, body, &range)?;
        }
        let blocks = self.now.blocks();
        self.now.mapped_blocks = u64::try_from(self.mapped).unwrap_or(0).min(blocks);
        self.now.own_blocks = u64::try_from(self.own).unwrap_or(0).min(self.now.mapped_blocks);
        let now = (blocks > 0).then(|| Box::new(self.now));
        Ok((now, self.was))
    }

    /// Counts what a range that is new has in records which do not change.
    pub(crate) fn count_added(
        &mut self,
        dataset: &DatasetState,
        body: u64,
        range: &Range<u64>,
    ) -> Result<(), FsError> {
        let from = keys::region(dataset.number(), body, range.start / PER_REGION);
        let to = keys::region(dataset.number(), body, range.end.div_ceil(PER_REGION));
        for found in dataset.records().each(from, to, RECORDS) {
            let (key, value) = found?;
            let region = keys::parse_region(&key)?.2;
            if self.counted.insert(region) {
                let record = decode_region(&value)?.record;
                let (before, after) = (self.old.count(region, &record), self.now.count(region, &record));
                self.mapped += after.0 as i64 - before.0 as i64;
                self.own += after.1 as i64 - before.1 as i64;
            }
        }
        Ok(())
    }
}
