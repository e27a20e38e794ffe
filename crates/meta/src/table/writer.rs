//! `TableWriter`: builds the content of one table.
//!
//! Invariants: keys ascend strictly; room for the preface is left at the start, and filled in by the last step; a table exceeds its target by at most one block and the head.

use xxhash_rust::xxh3::xxh3_64;

use super::{block::BlockBuilder, head::encode_head, reader::TableFacts};
use crate::{
    Extent, PREFACE_BYTES,
    entries::{OperationRef, filter_bytes, filter_hash},
};

/// Builds the content of one table.
pub(crate) struct TableWriter {
    target_bytes: usize,
    block_bytes: usize,
    data: Vec<u8>,
    block: BlockBuilder,
    blocks: Vec<(u32, u64, Vec<u8>)>,
    head_bytes: usize,
    hashes: Vec<u64>,
    unsettled: u64,
    first: Vec<u8>,
}

impl TableWriter {
    /// An empty table that is full at `target_bytes`.
    pub(crate) fn new(target_bytes: usize) -> Self {
        let mut data = Vec::with_capacity(target_bytes + target_bytes / 8);
        data.resize(PREFACE_BYTES, 0);
        Self {
            target_bytes,
            block_bytes: (target_bytes / 8).min(8192),
            data,
            block: BlockBuilder::default(),
            blocks: Vec::new(),
            head_bytes: 16,
            hashes: Vec::new(),
            unsettled: 0,
            first: Vec::new(),
        }
    }

    /// Adds an entry.
    pub(crate) fn add(&mut self, key: &[u8], operation: OperationRef<'_>) {
        let adds = key.len()
            + if let OperationRef::Put(value) = operation {
                value.len()
            } else {
                8
            };
        // A large value gets a block of its own, so that its neighbours stay cheap to read.
        if !self.block.is_empty() && self.block.len() + adds > self.block_bytes {
            self.cut_block();
        }
        if self.hashes.is_empty() {
            self.first.extend_from_slice(key);
        }
        self.hashes.push(filter_hash(key));
        self.unsettled += u64::from(!matches!(operation, OperationRef::Put(_)));
        self.block.add(key, operation);
    }

    fn cut_block(&mut self) {
        if self.block.is_empty() {
            return;
        }
        let start = self.data.len();
        let last = self.block.last_key().to_vec();
        let length = self.block.finish_into(&mut self.data);
        self.head_bytes += last.len() + 16;
        self.blocks
            .push((length as u32, xxh3_64(&self.data[start..]), last));
    }

    /// About how many bytes the table would take now.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + self.block.len() + self.head_bytes + filter_bytes(self.hashes.len())
    }

    /// Whether the table should be finished.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.target_bytes
    }

    /// Whether nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The finished content, and its facts but for the extent's location. `number` and `sequences` (above, up to) are
    /// the table's, `identity` is that of the tree.
    pub(crate) fn finish(
        mut self,
        identity: [u8; 16],
        number: u64,
        sequences: (u64, u64),
    ) -> (Vec<u8>, TableFacts) {
        self.cut_block();
        let head = encode_head(&self.blocks, &self.hashes);
        let head_offset = self.data.len() as u32;
        let last = self.blocks.pop().map(|(_, _, last)| last).unwrap_or_default();
        let head_sum = xxh3_64(&head);
        self.data.extend_from_slice(&head);
        let facts = TableFacts {
            number,
            extent: Extent {
                location: 0,
                bytes: self.data.len() as u32,
            },
            head_offset,
            head_sum,
            entries: self.hashes.len() as u64,
            unsettled: self.unsettled,
            above: sequences.0,
            up_to: sequences.1,
            first: self.first.into_boxed_slice(),
            last: last.into_boxed_slice(),
        };
        self.data[..PREFACE_BYTES].copy_from_slice(&facts.preface(identity).encode());
        (self.data, facts)
    }
}
