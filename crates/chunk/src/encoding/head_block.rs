//! Head blocks: the headers of chunks whose payloads lie apart from them.
//!
//! What is stored as it is and fills whole blocks lies on whole blocks of the device this way: a read of one block of it touches
//! one, where a payload right behind its header lies across two. (Log-structured filesystems keep what describes the blocks of a
//! partial segment together in front of them for this: Rosenblum and Ousterhout 1992.)
//!
//! Layout (4096 bytes, at a multiple of 4096): magic 8 · pool id 16 · [`SLOTS`] headers of 88 bytes, those that are not used zero · zero.
//!
//! Invariants: a head block lies before the payloads that it tells of, in the same buffer; each header has a sum of its own, so that a
//! bad one says nothing about its neighbours; who walks through a segment passes the payloads by of which a sound header tells, and
//! what a payload holds of another pool is none of its head blocks.

use std::{collections::BTreeMap, ops::Range};

use terrace_pool::PoolId;

use super::chunk_header::{ChunkHeader, HEADER_BYTES, JOINED};

/// Bytes of a head block, and what a payload apart is a multiple of and lies on.
pub(crate) const BLOCK: usize = terrace_device::DEVICE_BLOCK_BYTES;
const MAGIC: [u8; 8] = *b"TerrHead";
/// Of magic and pool id.
const FRONT_BYTES: usize = MAGIC.len() + size_of::<PoolId>();
/// Headers in a block.
pub(crate) const SLOTS: usize = (BLOCK - FRONT_BYTES) / HEADER_BYTES;
/// The part of a segment that may be left unused so that payloads lie on whole blocks.
const EXCESS_PART: usize = 128;

/// Bytes of a segment that may be left unused so that payloads lie on whole blocks: as long as a block of it is left payloads lie
/// apart, and one more buffer may take a block then.
pub(crate) const fn excess_max(segment_bytes: usize) -> usize {
    segment_bytes / EXCESS_PART
}

/// Makes an empty head block of this memory.
pub(crate) fn begin(block: &mut [u8], pool: &PoolId) {
    block.fill(0);
    block[..MAGIC.len()].copy_from_slice(&MAGIC);
    block[MAGIC.len()..FRONT_BYTES].copy_from_slice(pool);
}

/// Where a header lies in its block.
pub(crate) fn slot(number: usize) -> Range<usize> {
    let start = FRONT_BYTES + number * HEADER_BYTES;
    start..start + HEADER_BYTES
}

/// The headers in the block at the start of `bytes`, which lies at `offset` of a segment, with where each lies in it; `None` if this
/// is no head block of this pool. Only those whose payload lies behind the block and in the segment.
pub(crate) fn headers_in(
    bytes: &[u8],
    offset: usize,
    segment_bytes: usize,
    pool: &PoolId,
) -> Option<Vec<(usize, ChunkHeader)>> {
    let block = bytes.get(..BLOCK)?;
    let is_ours = block[..MAGIC.len()] == MAGIC && block[MAGIC.len()..FRONT_BYTES] == *pool;
    if !is_ours || !offset.is_multiple_of(BLOCK) {
        return None;
    }
    let found = (0..SLOTS).map(slot).filter_map(|slot| {
        let header = ChunkHeader::decode(&block[slot.clone()]).ok()?;
        let payload = header.payload_at(offset + slot.start);
        let is_here =
            header.distance != JOINED && payload.start >= offset + BLOCK && payload.end <= segment_bytes;
        is_here.then_some((offset + slot.start, header))
    });
    Some(found.collect())
}

/// Payloads ahead of who walks through a segment, each with what a head block told of it.
#[derive(Debug, Clone)]
pub(crate) struct Ahead<T>(BTreeMap<usize, (usize, T)>);

impl<T> Default for Ahead<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Ahead<T> {
    pub(crate) fn add(&mut self, payload: Range<usize>, of: T) {
        self.0.insert(payload.start, (payload.end, of));
    }

    /// The end of the payload in which `offset` lies, and what was told of it if it begins just there. Those before it are
    /// forgotten.
    pub(crate) fn at(&mut self, offset: usize) -> Option<(usize, Option<&T>)> {
        while let Some(first) = self.0.first_entry() {
            if first.get().0 > offset {
                break;
            }
            first.remove();
        }
        let (start, (end, of)) = self.0.first_key_value()?;
        (*start <= offset).then_some((*end, (*start == offset).then_some(of)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const POOL: PoolId = [9; 16];

    #[test]
    fn sound_headers_whose_payload_is_behind_the_block_are_found_whatever_their_neighbours_are() {
        let at = 3 * BLOCK;
        let segment_bytes = 8 * BLOCK;
        let mut block = vec![0xa5; BLOCK];
        begin(&mut block, &POOL);
        let mut put = |number: usize, id: u64, payload_at: usize| {
            let distance = payload_at - (at + slot(number).start);
            block[slot(number)].copy_from_slice(&ChunkHeader::raw(id, BLOCK, distance as u32).encode());
        };
        put(0, 1, at + BLOCK);
        put(1, 2, at + 2 * BLOCK);
        // The block itself, behind the segment's end, and the last place that there is.
        put(2, 3, at + BLOCK - 1);
        put(3, 4, segment_bytes - BLOCK + 1);
        put(SLOTS - 1, 5, segment_bytes - BLOCK);
        block[slot(1).start + 50] ^= 1;
        let ids = |block: &[u8], at: usize| {
            let found = headers_in(block, at, segment_bytes, &POOL)?;
            Some(
                found
                    .into_iter()
                    .map(|(offset, header)| (offset - at, header.id.0))
                    .collect::<Vec<_>>(),
            )
        };
        let expected = vec![(slot(0).start, 1), (slot(SLOTS - 1).start, 5)];
        assert_eq!(ids(&block, at), Some(expected));
        assert_eq!(ids(&block[1..], at), None);
        assert_eq!(ids(&block[..BLOCK - 1], at), None);
        assert_eq!(ids(&block, at + 512), None);
        for byte in [7, 8, FRONT_BYTES - 1] {
            block[byte] ^= 1;
            assert_eq!(ids(&block, at), None, "{byte}");
            block[byte] ^= 1;
        }
        // A header that says that its payload lies right behind it does not belong here.
        begin(&mut block, &POOL);
        block[slot(0)].copy_from_slice(&ChunkHeader::raw(1, BLOCK, JOINED).encode());
        assert_eq!(ids(&block, at), Some(vec![]));
    }

    #[test]
    fn payloads_ahead_are_met_in_order_and_told_of_where_they_begin() {
        let mut ahead = Ahead::default();
        assert_eq!(ahead.at(0), None::<(usize, Option<&u8>)>);
        ahead.add(30..40, 3);
        ahead.add(10..20, 1);
        // What lies in another one is met when that has been passed, if it is longer.
        ahead.add(15..25, 2);
        assert_eq!(ahead.at(5), None);
        assert_eq!(ahead.at(10), Some((20, Some(&1))));
        assert_eq!(ahead.at(19), Some((20, None)));
        assert_eq!(ahead.at(20), Some((25, None)));
        assert_eq!(ahead.at(25), None);
        assert_eq!(ahead.at(30), Some((40, Some(&3))));
        assert_eq!(ahead.at(40), None);
    }
}
