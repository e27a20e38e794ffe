//! Records of chunks, as the tree has them.

use std::sync::atomic::Ordering;

use terrace_store::{ChunkId, StoreError};

use super::batches::Catalog;
use crate::{
    encoding::{ChunkRecord, TABLE_CHUNKS, TABLE_REFERENCES, chunk_key},
    errors::meta_error,
};

pub(crate) fn decode(id: ChunkId, value: &[u8]) -> Result<ChunkRecord, StoreError> {
    ChunkRecord::decode(value)
        .map_err(|error| StoreError::DamagedMetadata(format!("record of chunk {id}: {error}").into()))
}

impl Catalog {
    /// References of chunks; `None` of those whose count cannot be read.
    pub(crate) fn references_of(&self, ids: impl Iterator<Item = ChunkId> + Clone) -> Vec<Option<i64>> {
        let keys: Vec<_> = ids.clone().map(|id| chunk_key(TABLE_REFERENCES, id)).collect();
        if let Ok(counts) = self.tree.get_counts(&keys) {
            return counts.into_iter().map(Some).collect();
        }
        let one_by_one = ids.map(|id| {
            self.references(id)
                .inspect_err(|error| {
                    tracing::error!(chunk = %id, %error, "the references of a chunk cannot be read");
                })
                .ok()
        });
        one_by_one.collect()
    }

    /// The committed record of a chunk.
    pub(crate) fn record(&self, id: ChunkId) -> Result<Option<ChunkRecord>, StoreError> {
        let Some(value) = self.tree.get(&chunk_key(TABLE_CHUNKS, id)).map_err(meta_error)? else {
            return Ok(None);
        };
        decode(id, &value).map(Some)
    }

    /// The committed records of `ids`, in their order; as [`record`](Self::record) of each, but looked up together.
    pub(crate) fn records_of(&self, ids: &[ChunkId]) -> Vec<Result<Option<ChunkRecord>, StoreError>> {
        let keys: Vec<_> = ids.iter().map(|id| chunk_key(TABLE_CHUNKS, *id)).collect();
        let Ok(values) = self.tree.get_many(&keys) else {
            // Whose record can be read is not to suffer from a neighbour's that cannot.
            return ids.iter().map(|id| self.record(*id)).collect();
        };
        let records = ids.iter().zip(values);
        records
            .map(|(id, value)| value.map(|value| decode(*id, &value)).transpose())
            .collect()
    }

    /// The record of a chunk, committed or not.
    pub(crate) fn any_record(&self, id: ChunkId) -> Result<Option<ChunkRecord>, StoreError> {
        if let Some(record) = self.record(id)? {
            return Ok(Some(record));
        }
        let pending = self.ledger.lock().pending(id).cloned();
        if pending.is_some() {
            return Ok(pending);
        }
        // It may have been committed between the two looks: a commit takes the record out of the ledger before the tree
        // has it, both under this lock.
        drop(self.commit.lock());
        self.record(id)
    }

    /// The records of `ids`, committed or not, as far as they can be had; looked up together.
    pub(crate) fn records_to_read(&self, ids: &[ChunkId]) -> Vec<Option<ChunkRecord>> {
        let records = ids.iter().zip(self.records_of(ids));
        records
            .map(|(id, record)| match record {
                Ok(None) => self.any_record(*id).unwrap_or_default(),
                record => record.unwrap_or_default(),
            })
            .collect()
    }

    /// References of a chunk, in blocks.
    pub(crate) fn references(&self, id: ChunkId) -> Result<i64, StoreError> {
        self.tree
            .get_count(&chunk_key(TABLE_REFERENCES, id))
            .map_err(meta_error)
    }

    /// The next chunk id, for a root.
    pub(crate) fn next_chunk_id(&self) -> u64 {
        self.next_chunk.load(Ordering::Acquire)
    }
}
