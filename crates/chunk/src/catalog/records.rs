//! Records of chunks, as the tree has them.

use terrace_store::{ChunkId, StoreError};

use crate::encoding::ChunkRecord;

pub(crate) fn decode(id: ChunkId, value: &[u8]) -> Result<ChunkRecord, StoreError> {
    ChunkRecord::decode(value)
        .map_err(|error| StoreError::DamagedMetadata(format!("record of chunk {id}: {error}").into()))
}
