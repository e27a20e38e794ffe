//! What is given back: deletions, and ranges that are discarded, however large, in portions that a commit can take.
//!
//! What a commit lets go of is one batch, and takes room in the log: little for each block and each name, but a device is discarded
//! as a whole in one request, a tree of files is removed within one commit interval, and on a full pool there is little room. (ZFS
//! splits what it frees over transaction groups for the same reason: `zfs_async_block_max_blocks`.)
//!
//! Invariants: between two commits no more is let go of than takes some [`LOG_BYTES_AT_ONCE`] of the log, or an eighth of the room that
//! writers still have, where that is more; of large ranges the regions in which something is mapped count, what is not mapped costs
//! nothing, and small ranges are not looked up. Each portion of a range is complete before the next begins: a range that is given
//! back in part after an error or a crash is so from its start on, a file that was to be made shorter is shorter from its end on.

use super::write::ContentWriter;
use crate::{
    live::BLOCK_LOG_BYTES, objects::Object, posix::FsError, quota::LOG_BYTES_AT_ONCE, records::REGION_BYTES,
};
use std::sync::Arc;

use terrace_store::BLOCK_BYTES;

/// Bytes that a portion of a range has mapped at most.
pub(crate) const PORTION_BYTES: u64 = LOG_BYTES_AT_ONCE / BLOCK_LOG_BYTES * BLOCK_BYTES as u64;

impl ContentWriter {
    /// Gives a range of an object back, portion by portion: `piece` does it for one (from, to).
    pub(crate) fn give_back(
        &self,
        object: &Arc<Object>,
        offset: u64,
        end: u64,
        piece: &mut dyn FnMut(u64, u64) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let mut from = offset;
        loop {
            let (to, bytes) = self.end_of_portion(object, from, end)?;
            self.admission.commit_pending_frees()?;
            piece(from, to)?;
            self.epoch.pending_frees().add_content(bytes);
            from = to;
            if from >= end {
                return Ok(());
            }
        }
    }

    /// Where an object ends after each of the portions in which it is made shorter, from the last on; not the size that it is to
    /// have. Empty where one portion is enough.
    pub(crate) fn ends_on_the_way(
        &self,
        object: &Arc<Object>,
        size: u64,
        old: u64,
    ) -> Result<Vec<u64>, FsError> {
        let mut ends = Vec::new();
        let mut from = size;
        while from < old {
            (from, _) = self.end_of_portion(object, from, old)?;
            if from < old {
                ends.push(from);
            }
        }
        ends.reverse();
        Ok(ends)
    }

    /// Where the next portion of a range ends, and how many bytes of it may be mapped.
    fn end_of_portion(&self, object: &Arc<Object>, from: u64, end: u64) -> Result<(u64, u64), FsError> {
        if end.saturating_sub(from) <= PORTION_BYTES {
            return Ok((end, end.saturating_sub(from)));
        }
        let last = end.div_ceil(REGION_BYTES);
        let mut region = from / REGION_BYTES;
        for mapped in (0..PORTION_BYTES).step_by(REGION_BYTES as usize) {
            match self.extents.next_region(object, region, last)? {
                Some(found) => region = found + 1,
                None => return Ok((end, mapped)),
            }
        }
        Ok(((region * REGION_BYTES).min(end), PORTION_BYTES))
    }
}
