//! Reading what lies at any place of a segment, and chunks that a survey found.
//!
//! Invariant: nothing is returned as a chunk's content that does not match the hash in its header.

use terrace_device::AlignedBuffer;
use terrace_pool::{Pool, PoolError, SegmentId};

use super::spans::units_of;
use crate::encoding::{ChunkHeader, ChunkPlace, HEADER_BYTES, compression};

/// Reads `length` bytes at `offset` of a segment, whatever their alignment.
pub(crate) fn read_stored(
    pool: &Pool,
    segment: SegmentId,
    offset: u32,
    length: u32,
) -> Result<Vec<u8>, PoolError> {
    let bytes = offset as usize..offset as usize + length as usize;
    let units = units_of(pool, segment, bytes).ok_or_else(|| {
        PoolError::Invalid(format!(
            "{offset}+{length} is beyond the end of segment {segment}"
        ))
    })?;
    let mut buffer = AlignedBuffer::with_capacity(units.len());
    pool.read(segment, units.start as u64, buffer.reuse(units.len()))?;
    let skip = offset as usize - units.start;
    Ok(buffer[skip..skip + length as usize].to_vec())
}

/// Hash and content of a chunk that a [`Survey`](crate::Survey) found, verified against the hash in its header;
/// else why there is none.
pub(crate) fn read_found(pool: &Pool, place: &ChunkPlace) -> Result<([u8; 32], Vec<u8>), String> {
    let read =
        |offset, length| read_stored(pool, place.segment, offset, length).map_err(|error| error.to_string());
    let head = read(place.offset, HEADER_BYTES as u32)?;
    let header = ChunkHeader::decode(&head).map_err(|error| error.to_string())?;
    let payload = read(place.payload, header.payload)?;
    match compression::decompress(&payload, header.compression, header.length as usize) {
        Some(content) if header.id == place.id && *blake3::hash(&content).as_bytes() == header.hash => {
            Ok((header.hash, content.to_vec()))
        }
        _ => Err(format!(
            "chunk {} in segment {} does not match its hash",
            place.id, place.segment
        )),
    }
}
