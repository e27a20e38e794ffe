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

use terrace_device::AlignedBuffer;
use terrace_pool::{PoolId, SegmentId};
use terrace_store::{CHUNK_BYTES_MAX, ChunkId, Owner, Placement, RewriteOutcome, StoreError};
use terrace_sync::{Mutex, rank};

use super::relocation::{Candidate, Relocator, is_good};
use crate::{
    buffers::READ_BUFFER_BYTES,
    encoding::{Ahead, BLOCK, ChunkHeader, HEADER_BYTES, JOINED, Location, head_block},
    reading::{read_in_pieces, units_of},
};

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
    /// What head blocks told of and was not reached.
    ahead: Ahead<Found>,
    /// Some of what lives here could not be moved.
    left_some: bool,
    /// The window that comes next, if it was read beside the last one's moves, or was too much for one step.
    held: Option<Held>,
}

/// Some of a segment, in memory.
struct Held {
    /// In the segment, bytes.
    extent: Range<usize>,
    buffer: AlignedBuffer,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.extent.fmt(f)
    }
}

/// A chunk of which a header tells.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    id: ChunkId,
    owner: Owner,
    /// Of the header, in the segment, bytes.
    offset: usize,
    /// In the segment, bytes.
    payload: Range<usize>,
}

impl Found {
    fn new(offset: usize, header: &ChunkHeader) -> Self {
        Self {
            id: header.id,
            owner: header.owner,
            offset,
            payload: header.payload_at(offset),
        }
    }
}

impl Sweep {
    /// From the start of a segment that takes no appends.
    pub(crate) fn new(segment: SegmentId) -> Self {
        Self {
            segment,
            offset: 0,
            ahead: Ahead::default(),
            left_some: false,
            held: None,
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

    /// The chunks that lie in it as a whole, from `offset` on, and where what was not looked at begins. `ahead` gets what head blocks
    /// tell of.
    fn find(
        &self,
        mut offset: usize,
        ahead: &mut Ahead<Found>,
        segment_bytes: usize,
        pool: &PoolId,
    ) -> (Vec<Found>, usize) {
        let mut found = Vec::new();
        while found.len() < CHUNKS
            && let Some(head) = self.get(offset..offset + HEADER_BYTES)
        {
            if let Some((after, begun)) = ahead.at(offset) {
                match begun {
                    Some(_) if after > self.end() => break,
                    begun => found.extend(begun.cloned()),
                }
                offset = after;
                continue;
            }
            let header = ChunkHeader::decode(head)
                .ok()
                .filter(|header| header.distance == JOINED)
                .map(|header| Found::new(offset, &header))
                .filter(|found| found.payload.end <= segment_bytes);
            match header {
                Some(here) if here.payload.end > self.end() => break,
                Some(here) => {
                    offset = here.payload.end;
                    found.push(here);
                }
                // The rest of what may be a head block lies in the next window.
                None if offset.is_multiple_of(BLOCK)
                    && (self.end() + 1..=segment_bytes).contains(&(offset + BLOCK)) =>
                {
                    break;
                }
                None => {
                    let block = self.get(offset..offset + BLOCK);
                    let headers =
                        block.and_then(|block| head_block::headers_in(block, offset, segment_bytes, pool));
                    for (at, header) in headers.into_iter().flatten() {
                        let of = Found::new(at, &header);
                        ahead.add(of.payload.clone(), of);
                    }
                    offset = (offset + 1).next_multiple_of(BLOCK);
                }
            }
        }
        (found, offset)
    }
}

impl Relocator {
    /// Moves the live chunks of the next window, of about so many bytes, to `placement`. Who calls this works in the background, where
    /// alone chunks are reclaimed: they are not held meanwhile.
    pub(super) fn sweep_step(
        &self,
        sweep: &mut Sweep,
        placement: Placement,
        most_bytes: usize,
    ) -> Result<RewriteOutcome, StoreError> {
        self.stop.check_running()?;
        let segment_bytes = self.pool.segment_bytes() as usize;
        let length = most_bytes.clamp(WINDOW_BYTES_MIN, READ_BUFFER_BYTES - 2 * BLOCK);
        let segment = sweep.segment;
        let extent =
            |offset: usize| units_of(&self.pool, segment, offset..(offset + length).min(segment_bytes));
        let held = sweep.held.take();
        let Some(held) = held.or_else(|| Some(self.read_held(segment, extent(sweep.offset)?))) else {
            sweep.offset = segment_bytes;
            return Ok(RewriteOutcome::default());
        };
        let window = Window {
            bytes: &held.buffer,
            start: held.extent.start,
        };
        let mut payloads = sweep.ahead.clone();
        let (found, next) = window.find(sweep.offset, &mut payloads, segment_bytes, &self.pool.id());
        let end = held.extent.end;
        let holds_more = end == segment_bytes || next + WINDOW_BYTES_MIN <= end;
        // Where users wait for the device it rests between two reads.
        let rests = |tier| !self.space.spacing_of(tier).is_zero();
        let to_read = match holds_more || self.pool.tier_of(segment.device).is_none_or(rests) {
            true => None,
            false => extent(next),
        };
        let (result, ahead) = self.move_found(segment, &found, &window, placement, to_read);
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) => {
                sweep.held = Some(held);
                return Err(error);
            }
        };
        sweep.offset = next;
        sweep.ahead = payloads;
        sweep.held = match holds_more && !sweep.is_done(segment_bytes) {
            true => Some(held),
            false => {
                self.open_segments.give_back(held.buffer);
                ahead
            }
        };
        sweep.left_some |= outcome.busy + outcome.skipped > 0 || !outcome.failed.is_empty();
        Ok(outcome)
    }

    fn read_held(&self, segment: SegmentId, extent: Range<usize>) -> Held {
        let mut buffer = self.open_segments.buffer();
        read_in_pieces(&self.pool, segment, extent.start, buffer.reuse(extent.len()));
        Held { extent, buffer }
    }

    /// Moves those of them that live here; several threads append, as far as some are free, and one reads what is `to_read` meanwhile.
    fn move_found(
        &self,
        segment: SegmentId,
        found: &[Found],
        window: &Window<'_>,
        placement: Placement,
        to_read: Option<Range<usize>>,
    ) -> (Result<RewriteOutcome, StoreError>, Option<Held>) {
        let known_at = self.catalog.newest();
        let parts = Mutex::<_, rank::Leaf>::new(found.chunks(PART_CHUNKS));
        let all =
            Mutex::<_, rank::Leaf>::new((Ok(()), RewriteOutcome::default(), Vec::with_capacity(found.len())));
        let hands = found.len().div_ceil(PART_CHUNKS) + usize::from(to_read.is_some());
        let (to_read, ahead) = (
            Mutex::<_, rank::Leaf>::new(to_read),
            Mutex::<_, rank::Leaf>::new(None),
        );
        self.crew.run(hands, || {
            let extent = to_read.lock().take();
            if let Some(extent) = extent {
                let held = self.read_held(segment, extent);
                *ahead.lock() = Some(held);
            }
            loop {
                let is_well = all.lock().0.is_ok();
                let next = parts.lock().next();
                let Some(part) = next.filter(|_| is_well) else {
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
        let ended = self.end_moves(&begun, known_at, &mut outcome);
        (ended.and(result).map(|()| outcome), ahead.into_inner())
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
        for (found, record) in found.iter().zip(self.catalog.records_of(&ids)) {
            let here = Location {
                segment,
                offset: found.offset as u32,
                payload: found.payload.start as u32,
            };
            let Some(record) = record?.filter(|record| record.locations.contains(&here)) else {
                continue;
            };
            let payload = window.get(here.part(0..record.payload as usize));
            let payload = payload.filter(|payload| is_good(&record, payload));
            candidates.push(Candidate {
                id: found.id,
                record,
                ahead: payload.map(|payload| (found.owner, Cow::Borrowed(payload))),
                pin: None,
            });
        }
        Ok(candidates)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use terrace_store::{Batch, Piece, Store};

    use super::*;
    use crate::{
        Options,
        store_in_memory::{raw_piece, store_in_memory},
    };

    const POOL: PoolId = [9; 16];
    const SEGMENT_BYTES: usize = 1 << 20;

    fn head(id: u64, payload: usize, distance: u32) -> [u8; HEADER_BYTES] {
        ChunkHeader::raw(id, payload, distance).encode()
    }

    /// A segment with a chunk of so many bytes behind the other at each of these places.
    fn segment(chunks: &[(usize, usize)]) -> Vec<u8> {
        let mut bytes = vec![0xa5; SEGMENT_BYTES];
        for (number, (offset, payload)) in chunks.iter().enumerate() {
            bytes[*offset..offset + HEADER_BYTES].copy_from_slice(&head(number as u64, *payload, JOINED));
        }
        bytes
    }

    fn found(segment: &[u8], window: Range<usize>, offset: usize) -> (Vec<u64>, usize) {
        let window = Window {
            bytes: &segment[window.clone()],
            start: window.start,
        };
        let (found, next) = window.find(offset, &mut Ahead::default(), SEGMENT_BYTES, &POOL);
        (found.iter().map(|found| found.id.0).collect(), next)
    }

    /// Puts a head block at `at` that tells of these payloads, each with where it lies and its length.
    fn put_heads(bytes: &mut [u8], at: usize, payloads: &[(u64, usize, usize)]) {
        head_block::begin(&mut bytes[at..at + BLOCK], &POOL);
        for (number, (id, start, length)) in payloads.iter().enumerate() {
            let slot = head_block::slot(number);
            let distance = (start - at - slot.start) as u32;
            bytes[at + slot.start..at + slot.end].copy_from_slice(&head(*id, *length, distance));
        }
    }

    #[test]
    fn payloads_apart_are_found_where_they_lie_and_what_lies_between_them() {
        let packed = 3 * BLOCK;
        let mut bytes = segment(&[(packed, 100)]);
        // Two before the chunk that has its header with it and one behind, of another head block; in the second payload lies what
        // looks like a chunk.
        put_heads(
            &mut bytes,
            0,
            &[
                (10, BLOCK, BLOCK),
                (11, 2 * BLOCK, BLOCK),
                (12, 4 * BLOCK, 3 * BLOCK),
            ],
        );
        bytes[2 * BLOCK..2 * BLOCK + HEADER_BYTES].copy_from_slice(&head(99, 50, JOINED));
        put_heads(&mut bytes, 7 * BLOCK, &[(13, 8 * BLOCK, BLOCK)]);
        let all = |window: usize| {
            let (mut ahead, mut next, mut ids) = (Ahead::default(), 0, Vec::new());
            while next + HEADER_BYTES <= SEGMENT_BYTES {
                let start = next / BLOCK * BLOCK;
                let window = Window {
                    bytes: &bytes[start..(start + window).min(SEGMENT_BYTES)],
                    start,
                };
                let (found, after) = window.find(next, &mut ahead, SEGMENT_BYTES, &POOL);
                for found in &found {
                    assert!(window.get(found.payload.clone()).is_some());
                }
                assert!(after > next);
                ids.extend(found.iter().map(|found| found.id.0));
                next = after;
            }
            ids
        };
        // They end within blocks as well: what is read of a device is sectors.
        for window in (4 * BLOCK..10 * BLOCK).step_by(512).chain([SEGMENT_BYTES]) {
            assert_eq!(all(window), [10, 11, 0, 12, 13], "{window}");
        }
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

    /// Windows end between a head block and what it tells of.
    #[test]
    fn the_smallest_steps_empty_a_segment_of_payloads_apart() {
        let store = store_in_memory(64 << 20, Options::default());
        let content = |number: usize| -> Vec<u8> {
            let mut noise = vec![0; CHUNK_BYTES_MAX >> (number % 3)];
            StdRng::seed_from_u64(number as u64).fill(&mut noise[..]);
            noise
        };
        let mut ids = Vec::new();
        for number in 0..40 {
            let content = content(number);
            let piece = Piece {
                owner: Owner {
                    block: number as u64,
                    ..Owner::default()
                },
                ..raw_piece(&content)
            };
            let written = store.write_chunks(&[piece]).unwrap().remove(0);
            ids.push(written.id);
            let mut batch = Batch::new();
            batch.reference(written.id, 1);
            batch.hold(written);
            store.commit(batch).unwrap();
        }
        store.close_streams().unwrap();
        let first = |id: ChunkId| store.catalog().record(id).unwrap().unwrap().locations[0];
        let segment = first(ids[0]).segment;
        assert!(
            ids.iter()
                .all(|id| !first(*id).segment.eq(&segment) || first(*id).is_apart())
        );
        let placement = Placement::Tier {
            tier: 0,
            strict: false,
        };
        let mut sweep = Sweep::new(segment);
        while !sweep.is_done(store.pool().segment_bytes() as usize) {
            store.relocator().sweep_step(&mut sweep, placement, 1).unwrap();
        }
        assert!(!sweep.left_some() && !store.compactor().lives_in(segment));
        store.close_streams().unwrap();
        let survey = crate::Survey::new(store.pool(), &mut |_| {});
        for (number, id) in ids.iter().enumerate() {
            assert_eq!(store.read_chunk(*id).unwrap(), content(number));
            let mut here = survey.places(*id).iter();
            let here = here.find(|place| place.location() == first(*id)).unwrap();
            assert_eq!(here.owner.block, number as u64);
        }
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
