//! `rescue`: of a chunk that is damaged as a whole, the blocks that a reader asked for.
//!
//! Invariants: nothing is given on that the store did not verify; a reader is refused only if a block of what it asked for
//! is bad in every copy, or the chunk is stored so that its blocks cannot be told apart (compressed).

use terrace_store::{BLOCK_BYTES, ChunkId, Store, StoreError};

/// Fills `target` with the content of the chunk from `offset` on, block by block, after `error` was met with the whole.
/// Returns how many bytes the chunk had for it.
pub(crate) fn rescue(
    store: &dyn Store,
    id: ChunkId,
    offset: usize,
    target: &mut [u8],
    error: StoreError,
) -> Result<usize, StoreError> {
    if !matches!(error, StoreError::Damaged { .. }) {
        return Err(error);
    }
    let Ok(Some(info)) = store.chunk_info(id) else {
        return Err(error);
    };
    let end = offset.saturating_add(target.len()).min(info.length as usize);
    let mut at = offset;
    while at < end {
        let until = (at / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES).min(end);
        let Ok(block) = store.read_chunk_part(id, at, until - at) else {
            return Err(error);
        };
        target[at - offset..until - offset].copy_from_slice(&block);
        at = until;
    }
    Ok(end.saturating_sub(offset))
}
