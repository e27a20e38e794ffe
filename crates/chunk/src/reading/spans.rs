//! Spans: chunks that lie near each other on a device are read together, and what lies apart at the same time.
//!
//! Invariants: this only fetches; who gets the bytes compares them with a sum, and reads the chunk by itself if they do
//! not match or did not come. What is still in a buffer in memory (the segment takes appends) is taken from there. Of a device
//! nothing is read but the sectors in which something lies that is wanted, and what is between two that lie near each other.

use std::ops::Range;

use terrace_pool::{Pool, SegmentId, SegmentRead};
use terrace_sync::{Mutex, rank};

use super::reader::{BUFFER, ChunkReader, SMALL_BYTES};
use crate::{
    buffers::READ_BUFFER_BYTES,
    encoding::{HEADER_BYTES, Location},
};

/// Bytes of one read at most.
const SPAN_BYTES: usize = 1024 * 1024;
/// Bytes between two chunks that are rather read than left out.
const GAP_BYTES: usize = 32 * 1024;

/// A piece of a stored chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored {
    segment: SegmentId,
    /// In the segment, bytes.
    offset: usize,
    /// Bytes.
    length: usize,
}

impl Stored {
    /// The header.
    pub(crate) fn header(location: Location) -> Self {
        Self {
            segment: location.segment,
            offset: location.offset as usize,
            length: HEADER_BYTES,
        }
    }

    /// This part of the payload.
    pub(crate) fn payload(location: Location, part: Range<usize>) -> Self {
        let Range { start, end } = location.part(part);
        Self {
            segment: location.segment,
            offset: start,
            length: end - start,
        }
    }

    fn end(&self) -> usize {
        self.offset + self.length
    }

    /// Where it lies: in which segment, and where in it.
    pub(crate) fn place(&self) -> (SegmentId, Range<usize>) {
        (self.segment, self.offset..self.end())
    }

    /// It, of the bytes of a span that begins at `start`.
    pub(crate) fn of<'a>(&self, bytes: &'a [u8], start: usize) -> Option<&'a [u8]> {
        let from = self.offset.checked_sub(start)?;
        bytes.get(from..from.checked_add(self.length)?)
    }
}

/// One read of a device, and which pieces it brings.
struct Span {
    segment: SegmentId,
    /// In the segment, whole units of reads.
    extent: Range<usize>,
    chunks: Vec<usize>,
}

impl ChunkReader {
    /// Calls `each` with the number and the bytes of each of `wanted` that could be read; in parallel where there are
    /// threads, and with many reads under way where the device can.
    pub(crate) fn read_spans(&self, wanted: &[Stored], each: &(dyn Fn(usize, &[u8]) + Sync)) {
        let batches = in_batches(self.spans(wanted, each));
        if batches.is_empty() {
            return;
        }
        let rest = Mutex::<_, rank::Leaf>::new(batches.iter());
        self.crew.run(batches.len(), || {
            loop {
                let Some(batch) = rest.lock().next() else { break };
                self.read_batch(wanted, batch, each);
            }
        });
    }

    /// What is read together, in order of place. What is in memory is not: `each` has had it then.
    fn spans(&self, wanted: &[Stored], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Vec<Span> {
        neighbours(wanted)
            .into_iter()
            .filter_map(|mut chunks| {
                let segment = wanted[*chunks.first()?].segment;
                if let Some(open) = self.open_segments.find(segment) {
                    BUFFER.with_borrow_mut(|bytes| {
                        chunks.retain(|at| {
                            let Stored { offset, length, .. } = wanted[*at];
                            let is_here = open.read(offset, bytes.reuse(length));
                            if is_here {
                                each(*at, bytes);
                            }
                            !is_here
                        });
                    });
                }
                let (segment, extent) = extent_of(&self.pool, wanted, &chunks)?;
                Some(Span {
                    segment,
                    extent,
                    chunks,
                })
            })
            .collect()
    }

    /// What is small is read into memory of the thread, the rest into that which large reads share.
    fn read_batch(&self, wanted: &[Stored], batch: &[Span], each: &(dyn Fn(usize, &[u8]) + Sync)) {
        let bytes = batch.iter().map(|span| span.extent.len()).sum();
        if bytes <= SMALL_BYTES {
            return BUFFER
                .with_borrow_mut(|buffer| self.read_into_buffer(wanted, batch, each, buffer.reuse(bytes)));
        }
        let mut buffer = self.open_segments.buffer();
        self.read_into_buffer(wanted, batch, each, buffer.reuse(bytes));
        self.open_segments.give_back(buffer);
    }

    fn read_into_buffer(
        &self,
        wanted: &[Stored],
        batch: &[Span],
        each: &(dyn Fn(usize, &[u8]) + Sync),
        buffer: &mut [u8],
    ) {
        let Some(device) = batch.first().map(|span| span.segment.device) else {
            return;
        };
        let mut rest = buffer;
        let mut reads = Vec::with_capacity(batch.len());
        for span in batch {
            let (mine, others) = rest.split_at_mut(span.extent.len());
            reads.push(SegmentRead::new(span.segment, span.extent.start as u64, mine));
            rest = others;
        }
        self.pool.read_many(device, &mut reads);
        for (span, read) in batch.iter().zip(&reads) {
            if read.outcome.is_err() {
                continue;
            }
            for at in &span.chunks {
                if let Some(bytes) = wanted[*at].of(read.buffer, span.extent.start) {
                    each(*at, bytes);
                }
            }
        }
    }
}

/// Neighbouring spans of one device that fit into one buffer.
fn in_batches(spans: Vec<Span>) -> Vec<Vec<Span>> {
    let mut batches: Vec<Vec<Span>> = Vec::new();
    let mut bytes = 0;
    for span in spans {
        let length = span.extent.len();
        match batches.last_mut() {
            Some(batch)
                if bytes + length <= READ_BUFFER_BYTES
                    && batch
                        .last()
                        .is_some_and(|last| last.segment.device == span.segment.device) =>
            {
                bytes += length;
                batch.push(span);
            }
            _ => {
                bytes = length;
                batches.push(vec![span]);
            }
        }
    }
    batches
}

/// Groups those of `wanted` that lie near each other on one segment, each group at most [`SPAN_BYTES`] long.
pub(crate) fn neighbours(wanted: &[Stored]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by_key(|at| (wanted[*at].segment, wanted[*at].offset));
    let mut spans: Vec<Vec<usize>> = Vec::new();
    let mut reach = None;
    for at in order {
        let Stored { segment, offset, .. } = wanted[at];
        let end = wanted[at].end();
        match (reach, spans.last_mut()) {
            (Some((other, first, last)), Some(span))
                if other == segment
                    && offset <= last + GAP_BYTES
                    && end.saturating_sub(first) <= SPAN_BYTES =>
            {
                span.push(at);
                reach = Some((segment, first, end.max(last)));
            }
            _ => {
                spans.push(vec![at]);
                reach = Some((segment, offset, end));
            }
        }
    }
    spans
}

/// What is to be read of a segment for a group; `None` if it would go beyond the segment's end.
pub(crate) fn extent_of(pool: &Pool, wanted: &[Stored], span: &[usize]) -> Option<(SegmentId, Range<usize>)> {
    let first = wanted[*span.first()?];
    let end = span.iter().map(|at| wanted[*at].end()).max()?;
    let extent = units_of(pool, first.segment, first.offset..end)?;
    Some((first.segment, extent))
}

/// The whole units of reads in which these bytes of a segment lie; `None` if it ends before them.
pub(crate) fn units_of(pool: &Pool, segment: SegmentId, bytes: Range<usize>) -> Option<Range<usize>> {
    let unit = pool.read_unit_bytes(segment.device);
    let end = bytes.end.checked_next_multiple_of(unit)?;
    (end <= pool.segment_bytes() as usize).then_some(bytes.start / unit * unit..end)
}
