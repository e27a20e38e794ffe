//! Preallocation: `fallocate` sets room aside for ranges of a file, and what is written there cannot be refused for want of it.
//!
//! Room for all blocks of a range that are not *own* (`Preallocated`) is set aside for the dataset, and some to work in for the files
//! of all datasets. A write to the range takes room as any other; where there is none, and where a quota leaves none, it may use what is
//! set aside. The commit counts which blocks are own then, in the inode and in the counters of the dataset, and what stands for them is
//! anybody's again.
//!
//! Invariants: what is set aside is never less than writing all preallocated blocks needs; a promise counts from before its range is
//! in the inode until the commit that counts the range.

use super::write::ContentWriter;
use crate::{
    objects::{Block, Object, State},
    posix::FsError,
    records::{Promised, REGION_BLOCKS},
};
use std::{ops::Range, sync::Arc};
use terrace_store::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;
const PER_REGION: u64 = REGION_BLOCKS as u64;

/// What was there of a range before it was preallocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Found {
    /// Blocks that quotas count already.
    mapped_blocks: u64,
    /// Of these, blocks that are still dirty.
    dirty_blocks: u64,
    /// The others may be shared, or were stored in less than their size.
    is_stored: bool,
}

impl Found {
    /// Whether nothing is stored, or about to be, that was not. The gate is held, and nothing is written ahead.
    fn is_still_so(&self, state: &State, ranges: &[Range<u64>]) -> bool {
        let is_mapped = || ranges.iter().any(|range| state.data.maps(range.start, range.end));
        let clean = |range: &Range<u64>| state.data.clean_blocks(range.start, range.end);
        let dirty = |range: &Range<u64>| range.end - range.start - clean(range);
        self.is_stored || (ranges.iter().map(dirty).sum::<u64>() == self.dirty_blocks && !is_mapped())
    }
}

impl ContentWriter {
    /// Promises room for a range of a file, blocks. The caller holds its inode lock exclusively.
    ///
    /// # Errors
    /// `NoSpace` and `QuotaExceeded`: nothing is promised. `NotSupported` in pools of older format versions.
    pub(crate) fn preallocate(
        &self,
        object: &Arc<Object>,
        first: u64,
        end: u64,
        after: &mut dyn FnMut(&mut State),
    ) -> Result<(), FsError> {
        if !self.dataset.store().has_preallocation() {
            return Err(FsError::NotSupported);
        }
        loop {
            let (before, own_blocks) = {
                let state = object.state();
                let recorded = state.recorded_preallocated.as_ref();
                let own = recorded.map_or(0, |recorded| recorded.own_blocks);
                (state.inode.preallocated.clone().unwrap_or_default(), own)
            };
            let (ranges, added) = before.with(first, end);
            if added.is_empty() {
                return Ok(());
            }
            let found = self.found_in(object, &added)?;
            let mut more = Promised {
                blocks: ranges.blocks() - before.blocks(),
                mapped_blocks: found.mapped_blocks,
            };
            if found.is_stored {
                // Nothing of the file stands for it then, until it is written.
                more.blocks += own_blocks;
                more.mapped_blocks += own_blocks;
            }
            self.admission.promise(more)?;
            let still = self
                .epoch
                .stand_still()
                .inspect_err(|_| self.dataset.usage().take_promise_back(more))?;
            let gate = self.epoch.enter();
            // What was dirty then may be on its way to the store now, in less room than it may need.
            let mut state = object.state();
            let freed = state.freed;
            if freed || !found.is_still_so(&state, &added) {
                drop((state, gate, still));
                self.dataset.usage().take_promise_back(more);
                if freed {
                    return Err(FsError::Stale);
                }
                continue;
            }
            state.inode.preallocated = Some(Box::new(ranges));
            state.preallocated_over |= found.is_stored;
            self.epoch.add_promised(more);
            after(&mut state);
            self.epoch.mark_inode(object, &mut state);
            return Ok(());
        }
    }

    /// What there is in these ranges of blocks.
    fn found_in(&self, object: &Arc<Object>, ranges: &[Range<u64>]) -> Result<Found, FsError> {
        let mut found = Found::default();
        for range in ranges {
            let end = range.end.div_ceil(PER_REGION);
            let mut next = range.start / PER_REGION;
            while let Some(region) = self.extents.next_region(object, next, end)? {
                let first = region * PER_REGION;
                let blocks = range.start.max(first)..range.end.min(first + PER_REGION);
                self.find_in_region(object, region, blocks, &mut found)?;
                next = region + 1;
            }
        }
        Ok(found)
    }

    fn find_in_region(
        &self,
        object: &Arc<Object>,
        region: u64,
        blocks: Range<u64>,
        found: &mut Found,
    ) -> Result<(), FsError> {
        let mut below = Vec::new();
        let body = {
            let state = object.state();
            for block in blocks {
                let frozen = |state: &State| match state.frozen.as_deref().map(|layer| layer.block(block)) {
                    Some(Block::Dirty(_) | Block::Mapped(..)) => Some(true),
                    Some(Block::Void) => Some(false),
                    Some(Block::Below) | None => None,
                };
                // Blocks of the layer hide what is below, and it is not given back before they are committed.
                let (is_mapped, is_stored) = match state.data.block(block) {
                    Block::Dirty(_) => (true, false),
                    Block::Mapped(..) => (true, true),
                    Block::Void => (false, false),
                    Block::Below => match frozen(&state) {
                        Some(is_there) => (is_there, is_there),
                        None => {
                            below.push(block);
                            continue;
                        }
                    },
                };
                found.dirty_blocks += u64::from(is_mapped && !is_stored);
                found.mapped_blocks += u64::from(is_mapped);
                found.is_stored |= is_stored;
            }
            state.inode.body
        };
        if !below.is_empty()
            && let Some(record) = &self.table.region(body, region)?.record
        {
            let is_mapped = |block: &&u64| record.lookup((**block % PER_REGION) as u32).is_some();
            let mapped = below.iter().filter(is_mapped).count() as u64;
            found.mapped_blocks += mapped;
            found.is_stored |= mapped > 0;
        }
        Ok(())
    }
}

/// Whether room is set aside for all of these blocks.
pub(crate) fn is_preallocated(object: &Object, first: u64, last: u64) -> bool {
    let state = object.state();
    let preallocated = state.inode.preallocated.as_ref();
    preallocated.is_some_and(|ranges| ranges.end_within(first, last) == Some(last))
}

/// Where preallocated blocks end that begin with `first`, before `last`.
fn preallocated_end(object: &Object, first: u64, last: u64) -> Option<u64> {
    let state = object.state();
    let preallocated = state.inode.preallocated.as_ref()?;
    preallocated.end_within(first, last).filter(|end| *end < last)
}

/// Bytes of a write from `offset` on that room is set aside for, where the rest has none.
pub(crate) fn preallocated_part(object: &Object, offset: u64, length: usize) -> Option<usize> {
    let (first, last) = (offset / BLOCK, (offset + length as u64).div_ceil(BLOCK));
    let end = preallocated_end(object, first, last)?;
    Some((end * BLOCK - offset) as usize)
}

/// Takes blocks out of what an object has preallocated. The gate and the state are held.
pub(crate) fn release_blocks(state: &mut State, from: u64, to: u64) {
    if let Some(preallocated) = &mut state.inode.preallocated {
        preallocated.remove(from, to);
        if preallocated.ranges().is_empty() {
            state.inode.preallocated = None;
        }
    }
}
