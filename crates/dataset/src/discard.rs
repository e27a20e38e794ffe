//! Discards: ranges of a volume that are given back, however large, in pieces that a commit can take.
//!
//! What a commit lets go of is one batch, and takes room in the log: little for each block, but a device is discarded as a whole in
//! one request, and on a full pool there is little room. (ZFS splits what it frees over transaction groups for the same reason:
//! `zfs_async_block_max_blocks`.)
//!
//! Invariants: between two commits of this kind some [`BYTES_AT_ONCE`] are given back at most, of large ranges counted by the regions in
//! which something is mapped; what is not mapped costs nothing there, and small ranges are not looked up. Each piece is complete before the next begins; a range that is given back in part after an error
//! or a crash is so from its start on.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Volume, error::FsError, region::REGION_BYTES, settings::Durability};

/// Bytes that are given back between two commits, about: of single blocks some hundreds of kilobytes of records.
const BYTES_AT_ONCE: u64 = 64 * REGION_BYTES;

/// How many bytes were given back since the last commit for their sake.
#[derive(Debug, Default)]
pub(crate) struct LetGo(AtomicU64);

impl Volume {
    /// Makes the range read as zero and gives its room back.
    pub fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.live.writable()?;
        self.within(offset, length)?;
        let end = offset + length;
        let mut from = offset;
        loop {
            let (to, bytes) = self.end_of_piece(from, end)?;
            self.discard_piece(from, to - from)?;
            from = to;
            let bytes = self.let_go.0.fetch_add(bytes, Ordering::AcqRel) + bytes;
            // What is only in memory takes no room in a log until the pool is closed.
            if bytes >= BYTES_AT_ONCE && self.live.settings().durability != Durability::Ram {
                self.let_go.0.store(0, Ordering::Release);
                self.live.commit()?;
            }
            if from >= end {
                return self.live.settle();
            }
        }
    }

    /// Where the next piece of a range ends, and how many bytes of it may be mapped.
    fn end_of_piece(&self, from: u64, end: u64) -> Result<(u64, u64), FsError> {
        if end - from <= BYTES_AT_ONCE {
            return Ok((end, end - from));
        }
        let last = end.div_ceil(REGION_BYTES);
        let mut region = from / REGION_BYTES;
        for mapped in (0..BYTES_AT_ONCE).step_by(REGION_BYTES as usize) {
            match self.live.next_region(&self.object, region, last)? {
                Some(found) => region = found + 1,
                None => return Ok((end, mapped)),
            }
        }
        Ok(((region * REGION_BYTES).min(end), BYTES_AT_ONCE))
    }
}
