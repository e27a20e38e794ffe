//! Verification: no byte of a chunk is returned that was not compared with a sum of its record.

use std::ops::Range;

use bytes::Bytes;
use terrace_store::BLOCK_BYTES;

use crate::{
    buffer_pool,
    encoding::{ChunkRecord, compression},
};

/// The content of a stored chunk, if it is what its record says: by its hash.
pub(crate) fn verified(record: &ChunkRecord, stored: &[u8]) -> Option<Bytes> {
    let content = compression::decompress(stored, record.compression, record.length as usize)?;
    (*blake3::hash(&content).as_bytes() == record.hash).then_some(content)
}

/// The same for readers: by the sums of its blocks, which takes a quarter of the time.
pub(crate) fn verified_by_sums(record: &ChunkRecord, stored: &[u8]) -> Option<Bytes> {
    if !record.is_in_blocks() {
        let content = compression::decompress(stored, record.compression, record.length as usize)?;
        return first_bad_block(record, 0, &content).is_none().then_some(content);
    }
    let whole = stored.len() == record.length as usize && first_bad_block(record, 0, stored).is_none();
    whole.then(|| buffer_pool::copy(stored))
}

/// Part of the content of a compressed chunk, in memory of its own: what is kept of it keeps nothing else. Only what lies before
/// its end is unpacked, and only its blocks are compared with their sums.
pub(crate) fn verified_part(record: &ChunkRecord, stored: &[u8], part: Range<usize>) -> Option<Bytes> {
    let blocks = blocks_of(record, &part);
    let length = record.length as usize;
    compression::with_beginning(stored, record.compression, length, blocks.end, |content| {
        let first = blocks.start / BLOCK_BYTES;
        let is_good = first_bad_block(record, first, &content[blocks]).is_none();
        is_good.then(|| buffer_pool::copy(&content[part]))
    })
}

/// The whole blocks in which a part of the content lies; the last one may be a begun one.
pub(crate) fn blocks_of(record: &ChunkRecord, part: &Range<usize>) -> Range<usize> {
    let end = part.end.next_multiple_of(BLOCK_BYTES);
    part.start / BLOCK_BYTES * BLOCK_BYTES..end.min(record.length as usize)
}

/// The first block, counted from the chunk's start, that does not match its sum; `blocks` begin with block `first`.
pub(crate) fn first_bad_block(record: &ChunkRecord, first: usize, blocks: &[u8]) -> Option<usize> {
    blocks
        .chunks(BLOCK_BYTES)
        .enumerate()
        .map(|(index, block)| (first + index, block))
        .find(|(at, block)| record.sums.get(*at) != Some(&crc32c::crc32c(block)))
        .map(|(at, _)| at)
}
