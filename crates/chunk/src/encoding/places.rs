//! Places: where a look through segments found what.

use terrace_log::EntryHeader;
use terrace_meta::Preface;
use terrace_pool::SegmentId;
use terrace_store::{ChunkId, Owner};

use super::{chunk_header::ChunkHeader, chunk_record::Location};

/// A chunk that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The chunk.
    pub id: ChunkId,
    /// For whom it was first written.
    pub owner: Owner,
    /// Its segment.
    pub segment: SegmentId,
    /// Of its header, in the segment, bytes.
    pub offset: u32,
    /// Of its payload, in the segment, bytes.
    pub payload: u32,
    /// Content, bytes.
    pub length: u32,
}

impl ChunkPlace {
    pub(crate) fn new(header: &ChunkHeader, segment: SegmentId, offset: u32) -> Self {
        Self {
            id: header.id,
            owner: header.owner,
            segment,
            offset,
            payload: offset + header.distance,
            length: header.length,
        }
    }

    /// Where a record would say that it lies.
    pub(crate) fn location(&self) -> Location {
        Location {
            segment: self.segment,
            offset: self.offset,
            payload: self.payload,
        }
    }
}

/// A log entry that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPlace {
    /// What stands before its payload.
    pub header: EntryHeader,
    /// Where it lies, in each copy.
    pub copies: Vec<(SegmentId, u32)>,
}

/// A metadata table that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePlace {
    /// What it says of itself.
    pub preface: Preface,
    /// Where it lies, in each copy.
    pub copies: Vec<(SegmentId, u32)>,
}
