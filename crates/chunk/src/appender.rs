//! `OpenSegment`: a data segment (or several, one per copy) that takes appends, with its buffers.
//!
//! Invariants:
//! - Bytes are appended to a buffer in memory; a full buffer becomes a *flight* that one thread writes out without
//!   holding the lock. Until its flight has landed, a chunk is read from memory.
//! - Each write starts and ends on 4096, so no block is ever written twice.
//! - A closed segment takes no more appends; it is forgotten when its last flight has landed.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::{Condvar, Mutex, RwLock};
use terrace_device::AlignedBuffer;
use terrace_pool::SegmentId;
use terrace_store::ChunkId;

use crate::record::Location;

/// A buffer of this many bytes is written out.
pub const WRITE_BYTES: usize = 1024 * 1024;
/// Room of a buffer: the last chunk may pass the limit.
pub(crate) const BUFFER_BYTES: usize = WRITE_BYTES + 256 * 1024;
/// Buffers kept for reuse: new memory costs a page fault per 4 KiB, more than hashing it.
const SPARE_BUFFERS: usize = 16;

/// A chunk in a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Content {
    /// The chunk.
    pub id: ChunkId,
    /// Of its header, in the segment, bytes.
    pub offset: u32,
    /// Header and payload, bytes.
    pub stored: u32,
}

/// A full buffer on its way to the devices.
pub struct Flight {
    number: u64,
    /// Where it starts in the segment, bytes.
    pub start: usize,
    /// What is to be written.
    pub buffer: AlignedBuffer,
    /// The chunks in it.
    pub contents: Vec<Content>,
}

struct State {
    start: usize,
    buffer: AlignedBuffer,
    contents: Vec<Content>,
    flights: Vec<Arc<Flight>>,
    next_flight: u64,
    closed: bool,
}

/// What became of an append.
pub enum Append {
    /// It is in the buffer at this offset; a buffer that got full is to be written out by the caller.
    Placed(Option<Arc<Flight>>),
    /// The segment is full or closed; what was in its buffer is to be written out by the caller.
    Full(Option<Arc<Flight>>),
}

/// A segment that takes appends.
pub struct OpenSegment {
    /// The copies.
    pub copies: Vec<SegmentId>,
    segment_bytes: usize,
    state: Mutex<State>,
    landed: Condvar,
}

/// All segments that take appends or have flights, by each copy.
#[derive(Default)]
pub struct OpenSegments {
    by_id: RwLock<BTreeMap<SegmentId, Arc<OpenSegment>>>,
    spare: Mutex<Vec<AlignedBuffer>>,
}

impl OpenSegments {
    /// Opens segments for appends.
    pub fn open(&self, copies: Vec<SegmentId>, segment_bytes: usize) -> Arc<OpenSegment> {
        let state = State {
            start: 0,
            buffer: AlignedBuffer::with_capacity(4096),
            contents: Vec::new(),
            flights: Vec::new(),
            next_flight: 0,
            closed: false,
        };
        let open = Arc::new(OpenSegment {
            copies,
            segment_bytes,
            state: Mutex::new(state),
            landed: Condvar::new(),
        });
        let mut by_id = self.by_id.write();
        for copy in &open.copies {
            by_id.insert(*copy, open.clone());
        }
        open
    }

    /// The open segment of this id.
    pub fn find(&self, segment: SegmentId) -> Option<Arc<OpenSegment>> {
        self.by_id.read().get(&segment).cloned()
    }

    /// All of them, each once, in order of their first copy.
    pub fn all(&self) -> Vec<Arc<OpenSegment>> {
        let by_id = self.by_id.read();
        by_id
            .iter()
            .filter(|(id, open)| open.copies.first() == Some(id))
            .map(|(_, open)| open.clone())
            .collect()
    }

    /// Forgets a segment if it is closed and everything in it has landed; whether it did so now.
    pub fn forget_if_done(&self, open: &OpenSegment) -> bool {
        let mut by_id = self.by_id.write();
        let state = open.state.lock();
        let done = state.closed && state.flights.is_empty() && state.buffer.is_empty();
        done && open
            .copies
            .iter()
            .filter(|copy| by_id.remove(copy).is_some())
            .count()
            > 0
    }

    /// A buffer of at least [`WRITE_BYTES`], empty.
    pub fn buffer(&self) -> AlignedBuffer {
        self.spare
            .lock()
            .pop()
            .unwrap_or_else(|| AlignedBuffer::with_capacity(BUFFER_BYTES))
    }

    /// Takes a buffer back.
    pub fn give_back(&self, mut buffer: AlignedBuffer) {
        buffer.clear();
        let mut spare = self.spare.lock();
        if buffer.capacity() >= BUFFER_BYTES && spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    }

    /// Memory of spare buffers and those in use, bytes.
    pub fn memory_bytes(&self) -> usize {
        let open: usize = self.all().iter().map(|open| open.memory_bytes()).sum();
        open + self.spare.lock().len() * BUFFER_BYTES
    }
}

impl OpenSegment {
    /// Appends the parts of one chunk. `placed` is called with the locations while no other thread can see the chunk.
    pub fn append(
        &self,
        owner: &OpenSegments,
        id: ChunkId,
        parts: &[&[u8]],
        placed: &mut dyn FnMut(Vec<Location>),
    ) -> Append {
        let stored: usize = parts.iter().map(|part| part.len()).sum();
        let mut state = self.state.lock();
        let end = state.start + state.buffer.len();
        if state.closed || end + stored > self.segment_bytes {
            state.closed = true;
            return Append::Full(self.take_flight(&mut state));
        }
        if state.buffer.capacity() < BUFFER_BYTES && state.buffer.is_empty() {
            state.buffer = owner.buffer();
        }
        for part in parts {
            state.buffer.extend_from_slice(part);
        }
        let offset = end as u32;
        state.contents.push(Content {
            id,
            offset,
            stored: stored as u32,
        });
        placed(
            self.copies
                .iter()
                .map(|segment| Location {
                    segment: *segment,
                    offset,
                })
                .collect(),
        );
        let full = state.buffer.len() >= WRITE_BYTES;
        Append::Placed(if full { self.take_flight(&mut state) } else { None })
    }

    /// Takes what is in the buffer, to be written out by the caller.
    pub fn take(&self) -> Option<Arc<Flight>> {
        self.take_flight(&mut self.state.lock())
    }

    /// Takes no more appends.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Whether it takes no more appends.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Bytes that can still be appended.
    pub fn room(&self) -> usize {
        let state = self.state.lock();
        if state.closed {
            0
        } else {
            self.segment_bytes
                .saturating_sub(state.start + state.buffer.len())
        }
    }

    fn memory_bytes(&self) -> usize {
        let state = self.state.lock();
        state.buffer.capacity()
            + state
                .flights
                .iter()
                .map(|flight| flight.buffer.capacity())
                .sum::<usize>()
    }

    fn take_flight(&self, state: &mut State) -> Option<Arc<Flight>> {
        if state.buffer.is_empty() {
            return None;
        }
        let mut buffer = std::mem::replace(&mut state.buffer, AlignedBuffer::with_capacity(4096));
        buffer.pad_to_block();
        let flight = Arc::new(Flight {
            number: state.next_flight,
            start: state.start,
            buffer,
            contents: std::mem::take(&mut state.contents),
        });
        state.next_flight += 1;
        state.start += flight.buffer.len();
        state.flights.push(flight.clone());
        Some(flight)
    }

    /// A flight was written (or its chunks were placed elsewhere): it is no longer read from memory.
    pub fn land(&self, owner: &OpenSegments, flight: Arc<Flight>) {
        self.state
            .lock()
            .flights
            .retain(|other| other.number != flight.number);
        self.landed.notify_all();
        if let Some(flight) = Arc::into_inner(flight) {
            owner.give_back(flight.buffer);
        }
    }

    /// Returns when every flight that was taken before the call has landed.
    pub fn wait_landed(&self) {
        let mut state = self.state.lock();
        let limit = state.next_flight;
        while state.flights.iter().any(|flight| flight.number < limit) {
            self.landed.wait(&mut state);
        }
    }

    /// Copies `output.len()` bytes at `offset` if they are still in memory.
    pub fn read(&self, offset: usize, output: &mut [u8]) -> bool {
        let state = self.state.lock();
        let flights = state.flights.iter().map(|flight| (flight.start, &flight.buffer));
        for (start, buffer) in flights.chain([(state.start, &state.buffer)]) {
            if let Some(from) = offset.checked_sub(start)
                && let Some(bytes) = buffer.get(from..from + output.len())
            {
                output.copy_from_slice(bytes);
                return true;
            }
        }
        false
    }
}
