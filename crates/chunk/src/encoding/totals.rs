//! `Counters`: exact totals of the store, kept by every batch and written with it.
//!
//! Invariant: the totals in a root plus the changes of the batches replayed after it are the totals in memory.

use terrace_codec::{DecodeError, Reader, Writer};

/// Totals, or the change that one batch makes to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Chunks with a record.
    pub chunks: i64,
    /// Their content, bytes.
    pub unique: i64,
    /// Their content in blocks, each begun one counted.
    pub unique_blocks: i64,
    /// Their headers and payloads, bytes, one copy.
    pub stored: i64,
    /// References, in blocks.
    pub blocks: i64,
}

impl Counters {
    /// Adds a change.
    pub fn add(&mut self, change: &Counters) {
        self.chunks += change.chunks;
        self.unique += change.unique;
        self.unique_blocks += change.unique_blocks;
        self.stored += change.stored;
        self.blocks += change.blocks;
    }

    /// Appends five signed integers.
    pub fn encode(&self, writer: &mut Writer) {
        writer.signed_varint(self.chunks).signed_varint(self.unique);
        writer.signed_varint(self.stored).signed_varint(self.blocks);
        writer.signed_varint(self.unique_blocks);
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            chunks: reader.signed_varint("chunk counter")?,
            unique: reader.signed_varint("unique counter")?,
            stored: reader.signed_varint("stored counter")?,
            blocks: reader.signed_varint("blocks counter")?,
            unique_blocks: reader.signed_varint("unique blocks counter")?,
        })
    }
}
