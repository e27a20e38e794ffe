//! `Counters`: sizes of one dataset, kept with every commit so that nothing is ever counted by a walk.

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_store::BLOCK_BYTES;

use super::{preallocated::PreallocatedTotals, versioned_batch::CounterChange};

/// Sizes of a dataset as of its newest commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Blocks mapped by live region records.
    pub live_blocks: u64,
    /// Blocks mapped by region records that only held checkpoints see.
    pub history_blocks: u64,
    /// Objects.
    pub objects: u64,
    /// The next number for an object or body.
    pub next_object: u64,
    /// The newest checkpoint that has records of this dataset.
    pub newest_checkpoint: u64,
    /// Of the live blocks of a volume, those that the newest held checkpoint has as well; `None`: it is not counted yet (after a
    /// rebuilding), or the dataset is a filesystem.
    pub shared_blocks: Option<u64>,
    /// What its files have preallocated.
    pub preallocated: PreallocatedTotals,
}

impl Counters {
    /// Content mapped by the live dataset, bytes, before compression and dedup.
    pub fn referenced_bytes(&self) -> u64 {
        self.live_blocks.saturating_mul(BLOCK_BYTES as u64)
    }

    /// Content mapped by the live dataset and its history, bytes, before compression and dedup.
    pub fn used_bytes(&self) -> u64 {
        self.live_blocks
            .saturating_add(self.history_blocks)
            .saturating_mul(BLOCK_BYTES as u64)
    }

    /// Content that only held checkpoints map, bytes.
    pub fn history_bytes(&self) -> u64 {
        self.history_blocks.saturating_mul(BLOCK_BYTES as u64)
    }

    pub(crate) fn apply(&mut self, change: CounterChange, checkpoint: u64) {
        self.live_blocks = self.live_blocks.saturating_add_signed(change.live_blocks);
        self.history_blocks = self.history_blocks.saturating_add_signed(change.history_blocks);
        self.objects = self.objects.saturating_add_signed(change.objects);
        self.newest_checkpoint = self.newest_checkpoint.max(checkpoint);
        self.shared_blocks = self
            .shared_blocks
            .map(|shared| shared.saturating_add_signed(change.shared_blocks));
        self.preallocated.apply(change.preallocated);
    }

    /// The value of its record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(24);
        writer
            .varint(self.live_blocks)
            .varint(self.history_blocks)
            .varint(self.objects);
        writer.varint(self.next_object).varint(self.newest_checkpoint);
        let preallocated = Some(self.preallocated).filter(|all| *all != PreallocatedTotals::default());
        if let Some(shared) = self.shared_blocks.or(preallocated.map(|_| 0)) {
            writer.varint(shared);
        }
        if let Some(all) = preallocated {
            writer.varint(all.blocks).varint(all.mapped_blocks);
            writer.varint(all.own_blocks).varint(all.since);
        }
        writer.into_bytes()
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(value);
        let mut counters = Self {
            live_blocks: reader.varint("live blocks")?,
            history_blocks: reader.varint("history blocks")?,
            objects: reader.varint("objects")?,
            next_object: reader.varint("next object")?,
            newest_checkpoint: reader.varint("newest checkpoint")?,
            shared_blocks: None,
            preallocated: PreallocatedTotals::default(),
        };
        if reader.remaining() > 0 {
            counters.shared_blocks = Some(reader.varint("shared blocks")?);
        }
        if reader.remaining() > 0 {
            counters.preallocated = PreallocatedTotals {
                blocks: reader.varint("preallocated blocks")?,
                mapped_blocks: reader.varint("mapped preallocated blocks")?,
                own_blocks: reader.varint("own preallocated blocks")?,
                since: reader.varint("first own chunk")?,
            };
        }
        reader.finish()?;
        Ok(counters)
    }
}
