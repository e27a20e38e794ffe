//! Walking a segment by the headers in it, without any table.
//!
//! Invariants: nothing is trusted before its sum was compared; every step moves forward by at least a block or a chunk,
//! so that a hostile segment cannot hold the walk up.

use terrace_device::AlignedBuffer;
use terrace_pool::{Pool, PoolError, SegmentId};
use terrace_store::StoreError;

use crate::{
    FoundChunk,
    header::{ChunkHeader, HEADER_BYTES},
    store::{ChunkStore, pool_error},
};

const BLOCK: usize = 4096;
/// Read at once, bytes.
const WINDOW_BYTES: usize = 1024 * 1024;

/// Reads `length` bytes at `offset` of a segment, whatever their alignment.
pub(crate) fn read_stored(
    pool: &Pool,
    segment: SegmentId,
    offset: u32,
    length: u32,
) -> Result<Vec<u8>, PoolError> {
    let first = offset as usize / BLOCK * BLOCK;
    let end = (offset as usize + length as usize).next_multiple_of(BLOCK);
    if end > pool.segment_bytes() as usize {
        return Err(PoolError::Invalid(format!(
            "{offset}+{length} is beyond the end of segment {segment}"
        )));
    }
    let mut buffer = AlignedBuffer::with_capacity(end - first);
    pool.read(segment, first as u64, buffer.reuse(end - first))?;
    let skip = offset as usize - first;
    Ok(buffer[skip..skip + length as usize].to_vec())
}

impl ChunkStore {
    /// Lists the self-describing chunks of one segment, those of its earlier uses included; needs no open store. The
    /// payloads are not verified.
    pub fn walk_segment(pool: &Pool, segment: SegmentId) -> Result<Vec<FoundChunk>, StoreError> {
        let segment_bytes = pool.segment_bytes() as usize;
        let mut found = Vec::new();
        let mut window = AlignedBuffer::with_capacity(WINDOW_BYTES);
        let (mut start, mut end) = (0, 0);
        let mut offset = 0;
        while offset + HEADER_BYTES <= segment_bytes {
            if offset + HEADER_BYTES > end {
                start = offset / BLOCK * BLOCK;
                end = (start + WINDOW_BYTES).min(segment_bytes);
                pool.read(segment, start as u64, window.reuse(end - start))
                    .map_err(pool_error)?;
            }
            match ChunkHeader::decode(&window[offset - start..end - start]) {
                Ok(header) if offset + header.stored() as usize <= segment_bytes => {
                    found.push(FoundChunk {
                        id: header.id,
                        owner: header.owner,
                        segment,
                        offset: offset as u32,
                        length: header.length,
                        hash: header.hash,
                    });
                    offset += header.stored() as usize;
                }
                // Each write starts on a block: go on at the next one.
                _ => offset = (offset + 1).next_multiple_of(BLOCK),
            }
        }
        Ok(found)
    }
}
