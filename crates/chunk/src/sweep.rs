//! `Sweep`: a segment that is being emptied, read once from its start to its end: in each step a window of it, of which the live
//! chunks are appended elsewhere out of the memory that they were read into.
//!
//! Most of what compaction takes for a small chunk is finding it: a sweep asks the device once for all in a window, and the table of
//! chunks once for each (log-structured stores read segments as a whole for the same reason: Rosenblum and Ousterhout 1992).
//!
//! Invariants: only what its record says to lie at just this place is moved, whatever a header claims; a window is bounded, and so is
//! the number of chunks of a step; a step that fails is done again from its start; what no sound header tells of is left, and whoever
//! empties the segment sees that it is not empty.

use std::borrow::Cow;

use terrace_pool::SegmentId;
use terrace_store::{CHUNK_BYTES_MAX, ChunkId, Placement, RewriteOutcome, StoreError};

use crate::{
    appender::READ_BUFFER_BYTES,
    header::{ChunkHeader, HEADER_BYTES},
    moves::{Candidate, good_payload},
    record::Location,
    spans::units_of,
    store::ChunkStore,
    survey::read_in_pieces,
};

/// Where a chunk begins that nothing lies right before, bytes.
const BLOCK: usize = 4096;
/// Chunks of a step at most.
const CHUNKS: usize = 256;
/// In a window of so many bytes lies at least one chunk as a whole, wherever it begins.
const WINDOW_BYTES_MIN: usize = CHUNK_BYTES_MAX + 4 * BLOCK;

/// How far a segment is swept.
#[derive(Debug)]
pub(crate) struct Sweep {
    segment: SegmentId,
    /// Where the next header may be, bytes.
    offset: usize,
    /// What the next window is to hold, bytes: as much as had too many chunks last time, and then twice as much each time.
    wanted_bytes: usize,
    /// Some of what lives here could not be moved.
    left_some: bool,
}

/// A chunk that lies in a window as a whole, as its header says.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    id: ChunkId,
    /// In the segment, bytes.
    offset: usize,
    /// Header and payload, bytes.
    stored: usize,
}

impl Sweep {
    /// From the start of a segment that takes no appends.
    pub(crate) fn new(segment: SegmentId) -> Self {
        Self {
            segment,
            offset: 0,
            wanted_bytes: READ_BUFFER_BYTES,
            left_some: false,
        }
    }

    pub(crate) fn segment(&self) -> SegmentId {
        self.segment
    }

    /// Whether something was found to live here and is where it was.
    pub(crate) fn left_some(&self) -> bool {
        self.left_some
    }

    /// Whether nothing is left to look at.
    pub(crate) fn is_done(&self, segment_bytes: usize) -> bool {
        self.offset + HEADER_BYTES > segment_bytes
    }
}

/// The chunks from `offset` on in a window that begins at `start`, and where what was not looked at begins.
fn find(window: &[u8], start: usize, mut offset: usize, segment_bytes: usize) -> (Vec<Found>, usize) {
    let end = start + window.len();
    let mut found = Vec::new();
    while offset + HEADER_BYTES <= end && found.len() < CHUNKS {
        let header = ChunkHeader::decode(&window[offset - start..]);
        let header = header.map(|header| (header.id, offset + header.stored() as usize));
        match header {
            Ok((_, after)) if after > end && after <= segment_bytes => break,
            Ok((id, after)) if after <= end => {
                found.push(Found {
                    id,
                    offset,
                    stored: after - offset,
                });
                offset = after;
            }
            _ => offset = (offset + 1).next_multiple_of(BLOCK),
        }
    }
    (found, offset)
}

impl ChunkStore {
    /// Moves the live chunks of the next window, of about so many bytes, to `placement`. Who calls this works in the background, where
    /// alone chunks are reclaimed: they are not held meanwhile.
    pub(crate) fn sweep_step(
        &self,
        sweep: &mut Sweep,
        placement: Placement,
        most_bytes: usize,
    ) -> Result<RewriteOutcome, StoreError> {
        self.check_running()?;
        let segment_bytes = self.pool.segment_bytes() as usize;
        let length = most_bytes.min(sweep.wanted_bytes).max(WINDOW_BYTES_MIN);
        let end = (sweep.offset + length).min(segment_bytes);
        let Some(extent) = units_of(&self.pool, sweep.segment, sweep.offset..end) else {
            sweep.offset = segment_bytes;
            return Ok(RewriteOutcome::default());
        };
        let mut buffer = self.open_segments.buffer();
        let window = buffer.reuse(extent.len());
        read_in_pieces(&self.pool, sweep.segment, extent.start, window);
        let (found, next) = find(window, extent.start, sweep.offset, segment_bytes);
        let result = self.move_found(sweep.segment, &found, window, extent.start, placement);
        self.open_segments.give_back(buffer);
        let outcome = result?;
        sweep.wanted_bytes = match found.len() {
            CHUNKS.. => next - sweep.offset,
            _ => (length * 2).min(READ_BUFFER_BYTES),
        };
        sweep.offset = next;
        sweep.left_some |= outcome.busy + outcome.skipped > 0 || !outcome.failed.is_empty();
        Ok(outcome)
    }

    /// Moves those of them that live here.
    fn move_found(
        &self,
        segment: SegmentId,
        found: &[Found],
        window: &[u8],
        start: usize,
        placement: Placement,
    ) -> Result<RewriteOutcome, StoreError> {
        let known_at = self.commit.lock().sequence;
        let ids: Vec<ChunkId> = found.iter().map(|found| found.id).collect();
        let mut candidates = Vec::with_capacity(found.len());
        for (found, record) in found.iter().zip(self.records_of(&ids)) {
            let here = Location {
                segment,
                offset: found.offset as u32,
            };
            let Some(record) = record?.filter(|record| record.locations.contains(&here)) else {
                continue;
            };
            let from = found.offset - start;
            let stored = window.get(from..from + found.stored);
            let stored = stored.filter(|_| record.stored() as usize == found.stored);
            let ahead = stored.and_then(|stored| good_payload(&record, stored));
            candidates.push(Candidate {
                id: found.id,
                record,
                ahead: ahead.map(|(owner, payload)| (owner, Cow::Borrowed(payload))),
                pin: None,
            });
        }
        let mut outcome = RewriteOutcome::default();
        self.move_page(candidates, known_at, placement, Some(segment), &mut outcome)?;
        Ok(outcome)
    }
}
