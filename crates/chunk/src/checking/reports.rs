//! Reports of the store's maintenance: scrub, audit, evacuation, the walk of segments.

use std::{collections::BTreeSet, sync::Arc};

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_pool::SegmentId;
use terrace_store::ChunkId;

use crate::Findings;

/// More bytes than any pool has: what is read from a record is at most that.
const BYTES_MAX: u64 = 1 << 60;

/// Where a scrub is; `Default` starts a new one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubCursor {
    pub(crate) next_chunk: u64,
    pub(crate) chunks_done: bool,
    pub(crate) tables: terrace_meta::VerifyCursor,
    pub(crate) done_bytes: u64,
    pub(crate) finished: bool,
    /// Of chunks only copies on these devices are read; `None`: all.
    pub(crate) only: Option<Vec<u16>>,
}

impl ScrubCursor {
    /// Starts one that reads, of chunks, only copies on these devices, and gives those a copy that lack one: for devices
    /// that were away.
    pub fn only(devices: Vec<u16>) -> Self {
        Self {
            only: Some(devices),
            ..Self::default()
        }
    }

    /// Adds it to a record: one of a scrub of everything, which another opening of the pool may go on with. Tables that were
    /// written since it began are left out there too.
    pub fn encode(&self, writer: &mut Writer) {
        writer
            .varint(self.next_chunk)
            .u8(u8::from(self.chunks_done) | (u8::from(self.finished) << 1))
            .varint(self.tables.next)
            .varint(self.tables.end)
            .varint(self.done_bytes);
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If the bytes are no such thing.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let next_chunk = reader.varint("next chunk")?;
        let flags = reader.u8("what is done")?;
        Ok(Self {
            next_chunk,
            chunks_done: flags & 1 != 0,
            finished: flags & 2 != 0,
            tables: terrace_meta::VerifyCursor {
                next: reader.varint("next table")?,
                end: reader.varint("last table")?,
            },
            done_bytes: reader.varint("bytes")?.min(BYTES_MAX),
            only: None,
        })
    }
}

/// A chunk that could not be repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedChunk {
    /// The chunk.
    pub id: ChunkId,
    /// Blocks that refer to it.
    pub references: i64,
    /// What was found.
    pub cause: Arc<str>,
}

/// What one step of a scrub did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Bytes read and verified since the scrub began.
    pub done_bytes: u64,
    /// Bytes there are to verify, now.
    pub total_bytes: u64,
    /// Chunk copies read in this step.
    pub copies: u64,
    /// Copies repaired from another one in this step.
    pub repaired: u64,
    /// Chunks that had fewer copies than their tier keeps, and have as many now.
    pub completed: u64,
    /// Chunks that have fewer copies than their tier keeps, since there was no room for another one.
    pub short: u64,
    /// Chunks found in this step with a bad copy and a good one, that keep the bad one since there was no room for another.
    pub unmended: u64,
    /// Chunks found damaged in this step with no good copy.
    pub damaged: Vec<DamagedChunk>,
    /// Damaged metadata found in this step.
    pub damaged_metadata: Findings,
    /// Whether the scrub is at its end.
    pub finished: bool,
}

/// What one step of a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes read since it began.
    pub done_bytes: u64,
    /// Bytes there are to read.
    pub total_bytes: u64,
    /// Chunks looked at in this step.
    pub chunks: u64,
    /// Copies of them read.
    pub copies: u64,
    /// Copies that do not verify or cannot be read.
    pub damaged_copies: u64,
    /// Chunks without a good copy, and why.
    pub lost: Vec<(ChunkId, Arc<str>)>,
    /// Damaged tables.
    pub damaged_tables: Findings,
    /// Whether everything was seen.
    pub finished: bool,
}

/// What one step of an evacuation did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvacuateProgress {
    /// Live bytes still on the device, metadata and log included.
    pub remaining_bytes: u64,
    /// Chunks moved in this step.
    pub moved: u64,
    /// The tiers that they left or came to, as bits.
    pub tiers: u64,
    /// Everything has left but chunks that have no readable copy anywhere: these, a million at most.
    pub unreadable: BTreeSet<ChunkId>,
    /// How many there are; 0 while there is more to do.
    pub unreadable_count: u64,
    /// There is nothing to do until what was written and not committed yet is.
    pub waits: bool,
    /// Whether nothing is left on the device.
    pub finished: bool,
}

/// What a full walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Chunks walked.
    pub chunks: u64,
    /// The first discrepancies in words; empty when all is well.
    pub discrepancies: Vec<String>,
    /// How many there are.
    pub discrepancy_count: u64,
}

/// A segment of metadata of which a part cannot be read from any of its copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableMetadata {
    /// Where its copies lie.
    pub copies: Vec<SegmentId>,
    /// What readers met there, of the first part.
    pub cause: String,
}
