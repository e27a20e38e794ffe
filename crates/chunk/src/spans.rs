//! Spans: chunks that lie near each other on a device are read together.
//!
//! Invariants: this only fetches; who gets the bytes compares them with a sum, and reads the chunk by itself if they do
//! not match or did not come. What may still be in a buffer in memory (the segment takes appends) is left out.

use std::ops::Range;

use parking_lot::Mutex;
use terrace_pool::SegmentId;

use crate::{header::HEADER_BYTES, record::Location, store::ChunkStore};

/// Bytes of one read at most.
const SPAN_BYTES: usize = 512 * 1024;
/// Bytes between two chunks that are rather read than left out.
const GAP_BYTES: usize = 32 * 1024;
const BLOCK: usize = 4096;

/// A stored chunk: where its header is, and the length of what follows it.
pub(crate) type Stored = (Location, u32);

impl ChunkStore {
    /// Calls `each` with the number and the payload of those of `wanted` that lie together with others; in parallel
    /// where there are threads.
    pub(crate) fn read_spans(&self, wanted: &[Stored], each: &(dyn Fn(usize, &[u8]) + Sync)) {
        let spans = self.spans(wanted);
        if spans.is_empty() {
            return;
        }
        let rest = Mutex::new(spans.iter());
        self.crew.run(spans.len(), || {
            loop {
                let Some(span) = rest.lock().next() else { break };
                self.read_span(wanted, span, each);
            }
        });
    }

    /// Which of `wanted` are read together.
    fn spans(&self, wanted: &[Stored]) -> Vec<Vec<usize>> {
        let mut spans = neighbours(wanted);
        spans.retain(|span| {
            span.len() > 1
                && span
                    .first()
                    .is_some_and(|at| self.open_segments.find(wanted[*at].0.segment).is_none())
        });
        spans
    }

    fn read_span(&self, wanted: &[Stored], span: &[usize], each: &(dyn Fn(usize, &[u8]) + Sync)) {
        let Some((segment, extent)) = extent_of(wanted, span, self.pool.segment_bytes()) else {
            return;
        };
        let mut buffer = self.open_segments.buffer();
        let bytes = buffer.reuse(extent.len());
        if self.pool.read(segment, extent.start as u64, bytes).is_ok() {
            for at in span {
                let (location, payload) = wanted[*at];
                let from = location.offset as usize + HEADER_BYTES - extent.start;
                if let Some(bytes) = buffer.get(from..from + payload as usize) {
                    each(*at, bytes);
                }
            }
        }
        self.open_segments.give_back(buffer);
    }
}

/// Groups those of `wanted` that lie near each other on one segment, each group at most [`SPAN_BYTES`] long.
pub(crate) fn neighbours(wanted: &[Stored]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by_key(|at| (wanted[*at].0.segment, wanted[*at].0.offset));
    let mut spans: Vec<Vec<usize>> = Vec::new();
    let mut reach = None;
    for at in order {
        let (location, payload) = wanted[at];
        let start = location.offset as usize;
        let end = start + HEADER_BYTES + payload as usize;
        match (reach, spans.last_mut()) {
            (Some((segment, first, last)), Some(span))
                if segment == location.segment
                    && start <= last + GAP_BYTES
                    && end.saturating_sub(first) <= SPAN_BYTES =>
            {
                span.push(at);
                reach = Some((segment, first, end.max(last)));
            }
            _ => {
                spans.push(vec![at]);
                reach = Some((location.segment, start, end));
            }
        }
    }
    spans
}

/// The whole blocks of its segment that hold a group; `None` if it would go beyond the segment's end.
pub(crate) fn extent_of(
    wanted: &[Stored],
    span: &[usize],
    segment_bytes: u32,
) -> Option<(SegmentId, Range<usize>)> {
    let (first, _) = wanted[*span.first()?];
    let ends = span.iter().map(|at| {
        let (location, payload) = wanted[*at];
        location.offset as usize + HEADER_BYTES + payload as usize
    });
    let end = ends.max()?.next_multiple_of(BLOCK);
    let start = first.offset as usize / BLOCK * BLOCK;
    (end <= segment_bytes as usize).then_some((first.segment, start..end))
}
