//! Spans: chunks that lie near each other on a device are read together, and what lies apart at the same time.
//!
//! Invariants: this only fetches; who gets the bytes compares them with a sum, and reads the chunk by itself if they do
//! not match or did not come. What may still be in a buffer in memory (the segment takes appends) is left out.

use std::ops::Range;

use parking_lot::Mutex;
use terrace_pool::{SegmentId, SegmentRead};

use crate::{appender::BUFFER_BYTES, header::HEADER_BYTES, record::Location, store::ChunkStore};

/// Bytes of one read at most.
const SPAN_BYTES: usize = 1024 * 1024;
/// Bytes between two chunks that are rather read than left out.
const GAP_BYTES: usize = 32 * 1024;
const BLOCK: usize = 4096;

/// A stored chunk: where its header is, and the length of what follows it.
pub(crate) type Stored = (Location, u32);

/// One read of a device, and which chunks it brings.
struct Span {
    segment: SegmentId,
    /// In the segment, whole blocks.
    extent: Range<usize>,
    chunks: Vec<usize>,
}

impl ChunkStore {
    /// Calls `each` with the number and the stored bytes, header and payload, of each of `wanted` that could be read; in
    /// parallel where there are threads, and with many reads under way where the device can.
    pub(crate) fn read_spans(&self, wanted: &[Stored], each: &(dyn Fn(usize, &[u8]) + Sync)) {
        let batches = in_batches(self.spans(wanted));
        if batches.is_empty() {
            return;
        }
        let rest = Mutex::new(batches.iter());
        self.crew.run(batches.len(), || {
            loop {
                let Some(batch) = rest.lock().next() else { break };
                self.read_batch(wanted, batch, each);
            }
        });
    }

    /// What is read together, in order of place.
    fn spans(&self, wanted: &[Stored]) -> Vec<Span> {
        neighbours(wanted)
            .into_iter()
            .filter_map(|chunks| {
                let (segment, extent) = extent_of(wanted, &chunks, self.pool.segment_bytes())?;
                let on_devices = self.open_segments.find(segment).is_none();
                on_devices.then_some(Span {
                    segment,
                    extent,
                    chunks,
                })
            })
            .collect()
    }

    fn read_batch(&self, wanted: &[Stored], batch: &[Span], each: &(dyn Fn(usize, &[u8]) + Sync)) {
        let Some(device) = batch.first().map(|span| span.segment.device) else {
            return;
        };
        let mut buffer = self.open_segments.buffer();
        let mut rest = buffer.reuse(batch.iter().map(|span| span.extent.len()).sum());
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
                let (location, payload) = wanted[*at];
                let from = location.offset as usize - span.extent.start;
                if let Some(bytes) = read.buffer.get(from..from + HEADER_BYTES + payload as usize) {
                    each(*at, bytes);
                }
            }
        }
        drop(reads);
        self.open_segments.give_back(buffer);
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
                if bytes + length <= BUFFER_BYTES
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
