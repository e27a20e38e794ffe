//! `BlockStatus`: which parts of a volume hold data and which are holes, of one that is in use and of one as it was.
//!
//! Invariant: one answer looks at a bounded number of regions, whatever there is of data, or was at other times.

use terrace_store::BLOCK_BYTES;

use super::fs_error::FsError;
use crate::records::{REGION_BLOCKS, REGION_BYTES};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most regions that one answer about data and holes looks at: 4 GiB of data, so that nobody keeps a thread busy for minutes
/// with one question about a large volume.
const STATUS_REGIONS_MAX: usize = 4096;

/// Which blocks of a region are mapped.
pub(crate) type Mapped = [bool; REGION_BLOCKS as usize];

/// Data or hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockStatus {
    /// Where it starts, bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Whether anything is mapped there; otherwise it reads as zero.
    pub data: bool,
}

/// Data and holes from `offset` to `end`, at most `limit` pieces, from its start; of much data only the first part. `next_region`
/// gives the first region from the one up to the other in which something may be mapped, `mapped` what is.
pub(crate) fn pieces_of(
    offset: u64,
    end: u64,
    limit: usize,
    next_region: impl Fn(u64, u64) -> Result<Option<u64>, FsError>,
    mapped: impl Fn(u64) -> Result<Mapped, FsError>,
) -> Result<Vec<BlockStatus>, FsError> {
    let mut pieces: Vec<BlockStatus> = Vec::new();
    let mut at = offset;
    let mut looked_at = 0;
    while at < end && pieces.len() <= limit && looked_at < STATUS_REGIONS_MAX {
        let region = at / REGION_BYTES;
        let last = end.div_ceil(REGION_BYTES);
        let next = next_region(region, last)?.unwrap_or(last);
        if next > region {
            let until = (next * REGION_BYTES).min(end);
            push(&mut pieces, at, until, false);
            at = until;
            continue;
        }
        looked_at += 1;
        let mapped = mapped(region)?;
        for data in &mapped[((at % REGION_BYTES) / BLOCK) as usize..] {
            let until = ((at / BLOCK + 1) * BLOCK).min(end);
            if at < until {
                push(&mut pieces, at, until, *data);
            }
            at = until;
        }
    }
    pieces.truncate(limit);
    Ok(pieces)
}

fn push(pieces: &mut Vec<BlockStatus>, offset: u64, until: u64, data: bool) {
    let length = until - offset;
    match pieces.last_mut() {
        Some(last) if last.data == data => last.length += length,
        _ => pieces.push(BlockStatus { offset, length, data }),
    }
}
