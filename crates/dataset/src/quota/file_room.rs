//! `FileRoom`: what is set aside for preallocated ranges of a dataset's files (`writing/preallocate.rs`).
//!
//! Invariant: it is never less than writing all preallocated blocks needs; a promise counts from before its range is in the inode until
//! the commit that counts the range.

use super::usage::blocks_to_bytes_of;
use crate::records::{PreallocatedTotals, Promised};

/// What is to be set aside for preallocated ranges of a dataset's files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FileRoom {
    totals: PreallocatedTotals,
    promised: Promised,
}

impl FileRoom {
    pub(crate) fn totals(&self) -> PreallocatedTotals {
        self.totals
    }

    pub(crate) fn is_none(&self) -> bool {
        self.totals.blocks == 0 && self.promised.blocks == 0
    }

    /// With more that is promised.
    pub(crate) fn with(mut self, more: Promised) -> Self {
        self.promised.add(more);
        self
    }

    /// Becomes what a commit counted; whether that is anything else than before.
    pub(crate) fn become_those(&mut self, totals: PreallocatedTotals, counted: Promised) -> bool {
        let before = *self;
        self.totals = totals;
        self.promised.blocks = self.promised.blocks.saturating_sub(counted.blocks);
        self.promised.mapped_blocks = self.promised.mapped_blocks.saturating_sub(counted.mapped_blocks);
        *self != before
    }

    /// Of all ranges, written or not, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        blocks_to_bytes_of(self.totals.blocks.saturating_add(self.promised.blocks))
    }

    /// What writing all of it needs, bytes.
    pub(crate) fn lacking_bytes(&self) -> u64 {
        blocks_to_bytes_of(self.totals.lacking_blocks().saturating_add(self.promised.blocks))
    }

    /// What quotas do not count otherwise, bytes.
    pub(crate) fn unmapped_bytes(&self) -> u64 {
        let promised = self.promised.blocks.saturating_sub(self.promised.mapped_blocks);
        blocks_to_bytes_of(self.totals.unmapped_blocks().saturating_add(promised))
    }

    /// What a snapshot would set aside beside that: what stands for the promises no longer does; `more_bytes` of it may become so
    /// much more before.
    pub(crate) fn snapshot_bytes(&self, more_bytes: u64) -> u64 {
        let own = blocks_to_bytes_of(self.totals.own_blocks).saturating_add(more_bytes);
        own.min(blocks_to_bytes_of(
            self.totals.blocks.saturating_add(self.promised.blocks),
        ))
    }
}
