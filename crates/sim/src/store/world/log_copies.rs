//! `LogCopies`: up to which batch all copies of the log are known to be alike.
//!
//! A copy on a slower disk may be behind that on the first one. A batch that tells of a chunk on a slower disk is in both
//! copies once it is flushed, and so is what came before it.

use std::collections::BTreeSet;

use terrace_store::ChunkId;

/// See the module.
#[derive(Default)]
pub(super) struct LogCopies {
    /// Chunks that records told of.
    known: BTreeSet<ChunkId>,
    /// Those that batches told of first, and these batches, since the copies of the log were known to be alike.
    told: Vec<(ChunkId, u64)>,
    /// The newest batch when chunks were moved to a slower tier.
    moved_after: u64,
}

impl LogCopies {
    /// After an opening: the chunks that records refer to.
    pub(super) fn recovered(&mut self, known: impl Iterator<Item = ChunkId>) {
        self.known = known.collect();
        self.told.clear();
        self.moved_after = 0;
    }

    /// A batch refers to these chunks.
    pub(super) fn committed(&mut self, chunks: impl Iterator<Item = ChunkId>, number: u64) {
        for chunk in chunks {
            if self.known.insert(chunk) {
                self.told.push((chunk, number));
            }
        }
    }

    /// Chunks were moved to a slower tier, after this batch.
    pub(super) fn moved(&mut self, newest: u64) {
        self.moved_after = newest;
    }

    /// A flush succeeded: the newest batch that all copies have.
    pub(super) fn flushed(&mut self, is_on_slower_disk: impl Fn(ChunkId) -> bool) -> u64 {
        let told = std::mem::take(&mut self.told);
        let alike = told.iter().filter(|(id, _)| is_on_slower_disk(*id));
        let alike = alike.map(|(_, number)| *number).max();
        alike.unwrap_or(0).max(self.moved_after)
    }
}
