//! `Batch`: changes that become visible and durable together.

use std::sync::Arc;

use crate::{ChunkId, Written};

/// Puts, deletions and reference counts; applied in the order in which they were added (the last put of a key wins).
#[derive(Default)]
pub struct Batch {
    records: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    references: Vec<(ChunkId, i64)>,
    pins: Vec<Arc<dyn Send + Sync>>,
    privileged: bool,
}

impl Batch {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.records.push((key.into(), Some(value.into())));
    }

    /// Removes `key`; no error if it is absent.
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.records.push((key.into(), None));
    }

    /// Adds `blocks` (may be negative) to the references of a chunk. A chunk whose count is 0 after the batch, and
    /// that no [`Written`] holds, is freed in the background.
    pub fn reference(&mut self, id: ChunkId, blocks: i64) {
        if blocks != 0 {
            self.references.push((id, blocks));
        }
    }

    /// Keeps the chunk alive until the batch is applied; call it for each `Written` whose id the batch refers to.
    pub fn hold(&mut self, written: Written) {
        self.pins.push(written.into_pin());
    }

    /// Lets the batch use the pool's reserve: for changes that free space.
    pub fn privileged(&mut self) {
        self.privileged = true;
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.references.is_empty()
    }

    /// About how many bytes it takes in the log.
    pub fn encoded_bytes(&self) -> usize {
        self.records
            .iter()
            .map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len) + 8)
            .sum::<usize>()
            + self.references.len() * 12
    }

    /// The records, in order; `None` deletes.
    pub fn records(&self) -> &[(Vec<u8>, Option<Vec<u8>>)] {
        &self.records
    }

    /// The reference changes, in order.
    pub fn references(&self) -> &[(ChunkId, i64)] {
        &self.references
    }

    /// Whether [`privileged`](Self::privileged) was called.
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }

    /// Takes it apart: records, references, pins.
    #[allow(clippy::type_complexity)]
    pub fn into_parts(
        self,
    ) -> (
        Vec<(Vec<u8>, Option<Vec<u8>>)>,
        Vec<(ChunkId, i64)>,
        Vec<Arc<dyn Send + Sync>>,
    ) {
        (self.records, self.references, self.pins)
    }

    /// Appends everything of `other`.
    pub fn append(&mut self, other: Batch) {
        self.records.extend(other.records);
        self.references.extend(other.references);
        self.pins.extend(other.pins);
        self.privileged |= other.privileged;
    }
}
