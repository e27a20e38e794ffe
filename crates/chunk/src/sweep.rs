//! `Sweep`: a segment that is being emptied, read once from its start to its end: in each step a window of it, of which the live
//! chunks are appended elsewhere out of the memory that they were read into.
//!
//! Most of what compaction takes for a small chunk is finding it: a sweep asks the device once for all in a window, and the table of
//! chunks once for each (log-structured stores read segments as a whole for the same reason: Rosenblum and Ousterhout 1992).
//!
//! Invariants: only what its record says to lie at just this place is moved, whatever a header claims; a window is bounded, and so is
//! the number of chunks of a step; a step that fails is done again from its start; what no sound header tells of is left, and whoever
//! empties the segment sees that it is not empty.

use std::{borrow::Cow, ops::Range};

use parking_lot::Mutex;
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
/// Chunks that a thread takes at once.
const PART_CHUNKS: usize = 64;
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

/// Some of what lies in a segment.
struct Window<'a> {
    bytes: &'a [u8],
    /// In the segment, bytes.
    start: usize,
}

impl<'a> Window<'a> {
    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    /// What lies here of the segment, if all of it is in the window.
    fn get(&self, range: Range<usize>) -> Option<&'a [u8]> {
        let from = range.start.checked_sub(self.start)?;
        self.bytes.get(from..range.end.checked_sub(self.start)?)
    }

    /// The chunks that lie in it as a whole, from `offset` on, and where what was not looked at begins.
    fn find(&self, mut offset: usize, segment_bytes: usize) -> (Vec<Found>, usize) {
        let mut found = Vec::new();
        while found.len() < CHUNKS
            && let Some(head) = self.get(offset..offset + HEADER_BYTES)
        {
            let after =
                ChunkHeader::decode(head).map(|header| (header.id, offset + header.stored() as usize));
            match after {
                Ok((_, after)) if after > self.end() && after <= segment_bytes => break,
                Ok((id, after)) if after <= segment_bytes => {
                    found.push(Found { id, offset });
                    offset = after;
                }
                _ => offset = (offset + 1).next_multiple_of(BLOCK),
            }
        }
        (found, offset)
    }
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
        let bytes = buffer.reuse(extent.len());
        read_in_pieces(&self.pool, sweep.segment, extent.start, bytes);
        let window = Window {
            bytes,
            start: extent.start,
        };
        let (found, next) = window.find(sweep.offset, segment_bytes);
        let result = self.move_found(sweep.segment, &found, &window, placement);
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

    /// Moves those of them that live here; several threads append, as far as some are free.
    fn move_found(
        &self,
        segment: SegmentId,
        found: &[Found],
        window: &Window<'_>,
        placement: Placement,
    ) -> Result<RewriteOutcome, StoreError> {
        let known_at = self.commit.lock().sequence;
        let parts = Mutex::new(found.chunks(PART_CHUNKS));
        let all = Mutex::new((Ok(()), RewriteOutcome::default(), Vec::with_capacity(found.len())));
        self.crew.run(found.len().div_ceil(PART_CHUNKS), || {
            loop {
                let Some(part) = parts.lock().next().filter(|_| all.lock().0.is_ok()) else {
                    break;
                };
                let (mut outcome, mut begun) = (RewriteOutcome::default(), Vec::with_capacity(part.len()));
                let candidates = self.candidates_of(segment, part, window);
                let result = candidates.and_then(|candidates| {
                    self.begin_moves(candidates, placement, Some(segment), &mut outcome, &mut begun)
                });
                let mut all = all.lock();
                all.2.append(&mut begun);
                all.1.busy += outcome.busy;
                all.1.skipped += outcome.skipped;
                all.1.failed.append(&mut outcome.failed);
                if result.is_err() {
                    all.0 = result;
                }
            }
        });
        let (result, mut outcome, begun) = all.into_inner();
        // Also what was appended before an error.
        self.end_moves(&begun, known_at, &mut outcome)?;
        result.map(|()| outcome)
    }

    /// Those of them that live here, with their payload if it is what it should be.
    fn candidates_of<'a>(
        &self,
        segment: SegmentId,
        found: &[Found],
        window: &Window<'a>,
    ) -> Result<Vec<Candidate<'a>>, StoreError> {
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
            let stored = window.get(found.offset..found.offset + record.stored() as usize);
            let ahead = stored.and_then(|stored| good_payload(&record, stored));
            candidates.push(Candidate {
                id: found.id,
                record,
                ahead: ahead.map(|(owner, payload)| (owner, Cow::Borrowed(payload))),
                pin: None,
            });
        }
        Ok(candidates)
    }
}

#[cfg(test)]
mod tests {
    use terrace_store::Owner;

    use super::*;
    use crate::compress;

    const SEGMENT_BYTES: usize = 1 << 20;

    fn head(id: u64, payload: usize) -> [u8; HEADER_BYTES] {
        let header = ChunkHeader {
            id: ChunkId(id),
            owner: Owner::default(),
            compression: compress::RAW,
            length: payload as u32,
            payload: payload as u32,
            hash: [0; 32],
        };
        header.encode()
    }

    /// A segment with a chunk of so many bytes behind the other at each of these places.
    fn segment(chunks: &[(usize, usize)]) -> Vec<u8> {
        let mut bytes = vec![0xa5; SEGMENT_BYTES];
        for (number, (offset, payload)) in chunks.iter().enumerate() {
            bytes[*offset..offset + HEADER_BYTES].copy_from_slice(&head(number as u64, *payload));
        }
        bytes
    }

    fn found(segment: &[u8], window: Range<usize>, offset: usize) -> (Vec<u64>, usize) {
        let window = Window {
            bytes: &segment[window.clone()],
            start: window.start,
        };
        let (found, next) = window.find(offset, SEGMENT_BYTES);
        (found.iter().map(|found| found.id.0).collect(), next)
    }

    #[test]
    fn chunks_are_found_behind_one_another_and_where_a_write_began() {
        let second = HEADER_BYTES + 5000;
        let third = 3 * BLOCK;
        let bytes = segment(&[(0, 5000), (second, 100), (third, 5000)]);
        let end = third + HEADER_BYTES + 5000;
        assert_eq!(found(&bytes, 0..64 << 10, 0), (vec![0, 1, 2], 64 << 10));
        assert_eq!(found(&bytes, BLOCK..64 << 10, second), (vec![1, 2], 64 << 10));
        // The last one lies in the next window as a whole, and so does a header that is cut.
        assert_eq!(found(&bytes, 0..third + BLOCK, 0), (vec![0, 1], third));
        assert_eq!(found(&bytes, 0..end, 0), (vec![0, 1, 2], end));
        assert_eq!(found(&bytes, 0..third + HEADER_BYTES - 1, 0), (vec![0, 1], third));
    }

    #[test]
    fn what_would_end_behind_its_segment_is_no_chunk() {
        let near = SEGMENT_BYTES - 2 * BLOCK;
        let bytes = segment(&[(near, 2 * BLOCK), (near + BLOCK, BLOCK - HEADER_BYTES)]);
        let window = SEGMENT_BYTES - (64 << 10)..SEGMENT_BYTES;
        assert_eq!(found(&bytes, window, near), (vec![1], SEGMENT_BYTES));
    }

    #[test]
    fn a_step_has_a_bounded_number_of_chunks() {
        let stored = HEADER_BYTES + 10;
        let chunks: Vec<(usize, usize)> = (0..2 * CHUNKS).map(|at| (at * stored, 10)).collect();
        let bytes = segment(&chunks);
        let (some, next) = found(&bytes, 0..SEGMENT_BYTES, 0);
        assert_eq!((some.len(), next), (CHUNKS, CHUNKS * stored));
        let (rest, _) = found(&bytes, 0..SEGMENT_BYTES, next);
        assert_eq!((rest.len(), rest[0]), (CHUNKS, CHUNKS as u64));
    }

    #[test]
    fn the_longest_chunk_lies_in_the_shortest_window_wherever_it_begins() {
        let longest = HEADER_BYTES + CHUNK_BYTES_MAX;
        for offset in [BLOCK, BLOCK + 1, 2 * BLOCK - 1] {
            let bytes = segment(&[(offset, CHUNK_BYTES_MAX)]);
            let window = BLOCK..(offset + WINDOW_BYTES_MIN).next_multiple_of(BLOCK);
            assert_eq!(found(&bytes, window, offset).0, [0]);
            assert!(offset + longest <= BLOCK + WINDOW_BYTES_MIN);
        }
    }
}
