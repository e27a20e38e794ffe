//! `LogPosition`: a place between two entries.

use terrace_codec::{DecodeError, Reader, Writer};

use crate::Copies;

/// From where a replay starts: what it takes to find and accept the entry that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// The segments that hold this piece of the log.
    pub segment: Copies,
    /// Where in them the next entry would start, bytes.
    pub offset: u32,
    /// Where the log goes on if it does not start there.
    pub next: Copies,
    /// Sum of the entry before.
    pub previous: [u8; 32],
    /// Last sequence before this place.
    pub sequence: u64,
}

impl LogPosition {
    /// Appends 68 bytes.
    pub fn encode(&self, writer: &mut Writer) {
        self.segment.encode(writer);
        writer.u32(self.offset);
        self.next.encode(writer);
        writer.bytes(&self.previous).u64(self.sequence);
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            segment: Copies::decode(reader)?,
            offset: reader.u32("log offset")?,
            next: Copies::decode(reader)?,
            previous: reader.array("log previous sum")?,
            sequence: reader.u64("log sequence")?,
        })
    }
}
