//! `OpenSegment`: a data segment (or several, one per copy) that takes appends, with its buffers.
//!
//! Invariants:
//! - Bytes are appended to a buffer in memory; a full buffer becomes a *flight* that one thread writes out without
//!   holding the lock. Until its flight has landed, a chunk is read from memory.
//! - Room in a buffer is reserved under the lock and filled without it: a thread that the system stops while it copies holds
//!   up nobody who appends. A buffer that is to be written out while others still copy into it becomes a flight when the
//!   last of them is done, who writes it. A chunk is told of (`placed`) when its bytes are there, and before the buffer that
//!   has them can become a flight: who relocates that, or looks whether the segment is empty, finds the chunk in the ledger.
//! - Room that was reserved comes back however its owner ends. Of a buffer whose last piece came back without its chunk nobody has
//!   the flight: whoever waits for it next gets it, to write it out.
//! - Each write starts and ends on 4096, so no block is ever written twice.
//! - A closed segment takes no more appends; it is forgotten when its last flight has landed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::BytesMut;
use terrace_device::{AlignedBuffer, DEVICE_BLOCK_BYTES, HUGE_PAGE_BYTES};
use terrace_pool::{PoolId, SegmentId};
use terrace_sync::{Condvar, Mutex, RwLock, rank};

use super::write_buffer::{self, Filling, Piece};
use crate::encoding::{ChunkHeader, HEADER_BYTES, JOINED, Location, excess_max};

/// A buffer of this many bytes is written out.
pub const WRITE_BYTES: usize = 1024 * 1024;
/// Room of a buffer: the last chunk may pass the limit.
pub(crate) const BUFFER_BYTES: usize = WRITE_BYTES + 256 * 1024;
/// Buffers kept for reuse: the first use of memory costs a pass over it.
const SPARE_BUFFERS: usize = 8;
/// Room of a buffer for large reads: a huge page, so that neither the processor nor the kernel looks hundreds of pages up for
/// each.
pub(crate) const READ_BUFFER_BYTES: usize = HUGE_PAGE_BYTES;
/// Such buffers kept for reuse.
const SPARE_READ_BUFFERS: usize = 5;

/// A chunk in a buffer.
#[derive(Debug, Clone)]
pub struct Content {
    /// What its header says.
    pub header: ChunkHeader,
    /// Of its header, in the segment, bytes.
    pub offset: u32,
}

impl Content {
    /// Its place in this segment.
    pub fn location(&self, segment: SegmentId) -> Location {
        Location {
            segment,
            offset: self.offset,
            payload: self.offset + self.header.distance,
        }
    }
}

/// A chunk that is to be appended.
pub struct Chunk<'a> {
    /// Its header; where the payload lies is found when it has a place.
    pub header: &'a ChunkHeader,
    /// As many bytes as the header says.
    pub payload: &'a [u8],
}

/// A full buffer on its way to the devices.
pub struct Flight {
    number: u64,
    /// Where it starts in the segment, bytes.
    pub start: usize,
    /// What is to be written.
    pub buffer: BytesMut,
    /// The memory behind it that was not needed.
    rest: BytesMut,
    /// The chunks in it.
    pub contents: Vec<Content>,
}

struct State {
    /// Takes appends.
    filling: Filling,
    /// Buffers that take no more and are still copied into.
    sealed: Vec<Filling>,
    flights: Vec<Arc<Flight>>,
    /// Those of them that nobody writes out.
    left: Vec<Arc<Flight>>,
    /// Bytes more than otherwise that the buffers before took so that payloads lie on whole blocks.
    excess: usize,
}

impl State {
    /// Room for a chunk; where it may and there is room for that, of a payload that lies apart.
    fn reserve(&mut self, payload: usize, may_be_apart: bool, segment_bytes: usize, pool: &PoolId) -> Piece {
        let most = segment_bytes - self.filling.start;
        let excess = excess_max(segment_bytes).saturating_sub(self.excess);
        let apart = match may_be_apart {
            true => self.filling.reserve_apart(payload, most, excess, pool),
            false => None,
        };
        apart.unwrap_or_else(|| self.filling.reserve(payload))
    }

    /// Lets nothing more go to the buffer; a flight if nobody copies into it, or else when the last one is done.
    fn seal(&mut self) -> Option<Arc<Flight>> {
        if self.filling.len() == 0 {
            return None;
        }
        let end = self.filling.start + self.filling.len().next_multiple_of(DEVICE_BLOCK_BYTES);
        self.excess += self.filling.excess();
        let next = Filling::new(self.filling.number + 1, end);
        let sealed = std::mem::replace(&mut self.filling, next);
        if sealed.is_copied_into() {
            self.sealed.push(sealed);
            return None;
        }
        Some(self.take_off(sealed))
    }

    fn take_off(&mut self, filling: Filling) -> Arc<Flight> {
        let (number, start) = (filling.number, filling.start);
        let (buffer, rest, contents) = filling.into_whole();
        let flight = Arc::new(Flight {
            number,
            start,
            buffer,
            rest,
            contents,
        });
        self.flights.push(flight.clone());
        flight
    }

    /// Takes a piece with the chunk that was copied in, if there is one; a flight if it was the last one of a sealed buffer.
    fn put_back(&mut self, piece: Piece, content: Option<Content>) -> Option<Arc<Flight>> {
        if piece.buffer == self.filling.number {
            self.filling.put_back(piece, content);
            return None;
        }
        let at = self
            .sealed
            .iter()
            .position(|sealed| sealed.number == piece.buffer)?;
        self.sealed[at].put_back(piece, content);
        if self.sealed[at].is_copied_into() {
            return None;
        }
        let whole = self.sealed.remove(at);
        Some(self.take_off(whole))
    }

    /// Copies what is at `offset`; `None` if it is being copied in, `Some(false)` if it is not in memory.
    fn read(&self, offset: usize, output: &mut [u8]) -> Option<bool> {
        for flight in &self.flights {
            if let Some(from) = offset.checked_sub(flight.start)
                && let Some(bytes) = flight.buffer.get(from..from + output.len())
            {
                output.copy_from_slice(bytes);
                return Some(true);
            }
        }
        for filling in self.sealed.iter().chain([&self.filling]) {
            if filling.read(offset, output)? {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Whether a buffer with a number below `limit` has not landed.
    fn is_in_the_air(&self, limit: u64) -> bool {
        let flights = self.flights.iter().map(|flight| flight.number);
        let sealed = self.sealed.iter().map(|filling| filling.number);
        flights.chain(sealed).any(|number| number < limit)
    }
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
    /// Takes no more appends. Changed under the lock only.
    closed: AtomicBool,
    state: Mutex<State, rank::append::OpenSegment>,
    /// A flight has landed, or a chunk that somebody waits for has been copied.
    changed: Condvar,
}

/// All segments that take appends or have flights, by each copy.
pub struct OpenSegments {
    pool: PoolId,
    by_id: RwLock<BTreeMap<SegmentId, Arc<OpenSegment>>, rank::append::OpenSegments>,
    /// To read into.
    spare: Mutex<Vec<AlignedBuffer>, rank::append::SpareBuffers>,
    /// To be filled.
    memory: Mutex<Vec<BytesMut>, rank::Leaf>,
}

impl OpenSegments {
    /// None yet, of this pool.
    pub fn new(pool: PoolId) -> Self {
        Self {
            pool,
            by_id: RwLock::default(),
            spare: Mutex::default(),
            memory: Mutex::default(),
        }
    }

    /// Opens segments for appends.
    pub fn open(&self, copies: Vec<SegmentId>, segment_bytes: usize) -> Arc<OpenSegment> {
        let state = State {
            filling: Filling::new(0, 0),
            sealed: Vec::new(),
            flights: Vec::new(),
            left: Vec::new(),
            excess: 0,
        };
        let open = Arc::new(OpenSegment {
            copies,
            segment_bytes,
            closed: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
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
        let done = open.is_closed()
            && state.flights.is_empty()
            && state.sealed.is_empty()
            && state.filling.len() == 0;
        done && open
            .copies
            .iter()
            .filter(|copy| by_id.remove(copy).is_some())
            .count()
            > 0
    }

    /// A buffer of [`READ_BUFFER_BYTES`], empty, for large reads.
    pub fn buffer(&self) -> AlignedBuffer {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(|| AlignedBuffer::in_huge_pages(READ_BUFFER_BYTES))
    }

    /// Takes such a buffer back.
    pub fn give_back(&self, mut buffer: AlignedBuffer) {
        buffer.clear();
        let mut spare = self.spare.lock();
        if buffer.capacity() == READ_BUFFER_BYTES && spare.len() < SPARE_READ_BUFFERS {
            spare.push(buffer);
        }
    }

    /// Memory to be filled.
    fn memory(&self) -> BytesMut {
        let spare = self.memory.lock().pop();
        spare.unwrap_or_else(write_buffer::memory)
    }

    /// Takes the memory of a flight back.
    fn take_back(&self, flight: Flight) {
        let mut whole = flight.buffer;
        whole.unsplit(flight.rest);
        let mut memory = self.memory.lock();
        if whole.len() == BUFFER_BYTES && memory.len() < SPARE_BUFFERS {
            memory.push(whole);
        }
    }

    /// Memory of spare buffers and those in use, bytes.
    pub fn memory_bytes(&self) -> usize {
        let open: usize = self.all().iter().map(|open| open.memory_bytes()).sum();
        open + self.spare.lock().len() * READ_BUFFER_BYTES
            + self.memory.lock().len() * write_buffer::MEMORY_BYTES
    }
}

impl OpenSegment {
    /// Appends one chunk; `may_be_apart`: its payload may lie apart from its header. `placed` is called with the locations when its
    /// bytes are there, before they can be written out; it must not wait for anybody who waits for this segment.
    pub fn append(
        &self,
        owner: &OpenSegments,
        chunk: &Chunk<'_>,
        may_be_apart: bool,
        placed: &mut dyn FnMut(Vec<Location>),
    ) -> Append {
        let mut copying = match self.reserve(owner, chunk.payload.len(), may_be_apart) {
            Ok(piece) => Copying {
                open: self,
                piece: Some(piece),
                is_copied: false,
            },
            Err(flight) => return Append::Full(flight),
        };
        let Some(content) = copying.copy(chunk) else {
            return Append::Full(None);
        };
        let copies = self.copies.iter();
        placed(copies.map(|segment| content.location(*segment)).collect());
        Append::Placed(copying.put_back(Some(content)))
    }

    /// Room for a chunk; if there is none, what was in the buffer is to be written out by the caller.
    fn reserve(
        &self,
        owner: &OpenSegments,
        payload: usize,
        may_be_apart: bool,
    ) -> Result<Piece, Option<Arc<Flight>>> {
        let mut state = self.state.lock();
        let end = state.filling.start + state.filling.len();
        if self.is_closed() || end + HEADER_BYTES + payload > self.segment_bytes {
            self.closed.store(true, Ordering::Release);
            return Err(state.seal());
        }
        if state.filling.is_without_memory() {
            state.filling.give(owner.memory());
        }
        let piece = state.reserve(payload, may_be_apart, self.segment_bytes, &owner.pool);
        if state.filling.len() >= WRITE_BYTES {
            // Who copies the last of its chunks, maybe this one, gets the flight.
            let none = state.seal();
            debug_assert!(none.is_none(), "the caller is still to copy");
        }
        Ok(piece)
    }

    /// Lets what is in the buffer be written out: by the caller, or by the last of those who still copy into it.
    pub fn take(&self) -> Option<Arc<Flight>> {
        self.state.lock().seal()
    }

    /// Takes no more appends.
    pub fn close(&self) {
        let _state = self.state.lock();
        self.closed.store(true, Ordering::Release);
    }

    /// Whether it takes no more appends.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Bytes that can still be appended.
    pub fn room(&self) -> usize {
        let state = self.state.lock();
        if self.is_closed() {
            0
        } else {
            self.segment_bytes
                .saturating_sub(state.filling.start + state.filling.len())
        }
    }

    fn memory_bytes(&self) -> usize {
        let state = self.state.lock();
        let filling = usize::from(!state.filling.is_without_memory());
        (filling + state.sealed.len() + state.flights.len()) * write_buffer::MEMORY_BYTES
    }

    /// A flight was written (or its chunks were placed elsewhere): it is no longer read from memory.
    pub fn land(&self, owner: &OpenSegments, flight: Arc<Flight>) {
        self.state
            .lock()
            .flights
            .retain(|other| other.number != flight.number);
        self.changed.notify_all();
        if let Some(flight) = Arc::into_inner(flight) {
            owner.take_back(flight);
        }
    }

    /// Returns when everything that was taken before the call, or got full, has landed; or with a flight that nobody writes out,
    /// to be written out by the caller before it waits again.
    pub fn wait_landed(&self) -> Option<Arc<Flight>> {
        let mut state = self.state.lock();
        let limit = state.filling.number;
        while state.left.is_empty() && state.is_in_the_air(limit) {
            self.changed.wait(&mut state);
        }
        state.left.pop()
    }

    /// Copies `output.len()` bytes of a chunk at `offset` if they are still in memory.
    pub fn read(&self, offset: usize, output: &mut [u8]) -> bool {
        let mut state = self.state.lock();
        loop {
            if let Some(found) = state.read(offset, output) {
                return found;
            }
            // Somebody knows of it already, and its bytes are about to be told of.
            self.changed.wait(&mut state);
        }
    }
}

/// Room that one thread fills; it comes back when this is dropped, whatever made that happen.
struct Copying<'a> {
    open: &'a OpenSegment,
    piece: Option<Piece>,
    is_copied: bool,
}

impl Copying<'_> {
    /// Copies a chunk in; returns it with its place. A header that lies apart comes with the piece.
    fn copy(&mut self, chunk: &Chunk<'_>) -> Option<Content> {
        let piece = self.piece.as_mut()?;
        let (head, distance) = match piece.head {
            Some(head) => (head, (piece.offset - head) as u32),
            None => (piece.offset, JOINED),
        };
        let header = ChunkHeader {
            distance,
            ..chunk.header.clone()
        };
        let mut rest = &mut piece.memory[..];
        if piece.head.is_none() {
            let (here, others) = rest.split_at_mut(HEADER_BYTES);
            here.copy_from_slice(&header.encode());
            rest = others;
        }
        rest.copy_from_slice(chunk.payload);
        self.is_copied = true;
        Some(Content {
            header,
            offset: head as u32,
        })
    }

    /// Gives the room back, with the chunk in it if it is told of; a flight if nothing else is copied into the buffer any more.
    fn put_back(&mut self, content: Option<Content>) -> Option<Arc<Flight>> {
        let piece = self.piece.take()?;
        let flight = self.open.state.lock().put_back(piece, content);
        self.open.changed.notify_all();
        flight
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        let Some(piece) = &mut self.piece else { return };
        // What the memory held before is not to be taken for chunks by whoever walks through the segment; nor is a payload of which
        // nothing tells.
        if !self.is_copied || piece.head.is_some() {
            piece.memory.fill(0);
        }
        if let Some(flight) = self.put_back(None) {
            self.open.state.lock().left.push(flight);
            self.open.changed.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{
        atomic::AtomicU64,
        mpsc::{Receiver, Sender, channel},
    };

    use super::*;

    const SEGMENT_BYTES: usize = 24 << 20;

    fn segment() -> (OpenSegments, Arc<OpenSegment>) {
        let all = OpenSegments::new([9; 16]);
        let id = SegmentId { device: 0, index: 7 };
        let open = all.open(vec![id], SEGMENT_BYTES);
        (all, open)
    }

    fn content(id: u64, length: usize) -> Vec<u8> {
        (0..length).map(|at| (id as usize * 31 + at / 7) as u8).collect()
    }

    fn append_to(
        all: &OpenSegments,
        open: &OpenSegment,
        id: u64,
        length: usize,
        placed: &mut dyn FnMut(Vec<Location>),
    ) -> Append {
        let chunk = Chunk {
            header: &ChunkHeader::raw(id, length, JOINED),
            payload: &content(id, length),
        };
        open.append(all, &chunk, true, placed)
    }

    fn flight_of(append: Append) -> Option<Arc<Flight>> {
        match append {
            Append::Placed(flight) | Append::Full(flight) => flight,
        }
    }

    #[test]
    fn who_is_held_up_while_copying_holds_up_nobody_but_the_flight() {
        let (all, open) = segment();
        let (copied, is_copied): (Sender<usize>, Receiver<usize>) = channel();
        let (go_on, may_go_on) = channel::<()>();
        std::thread::scope(|scope| {
            // Dropped when something fails here, so that nobody waits for ever.
            let go_on = go_on;
            let (all, open) = (&all, &open);
            let slow = scope.spawn(move || {
                append_to(all, open, 1, 5000, &mut |locations| {
                    copied.send(locations[0].payload as usize).unwrap();
                    let _ = may_go_on.recv();
                })
            });
            let first = is_copied.recv().unwrap();
            let mut second = 0;
            let append = append_to(all, open, 2, 3000, &mut |locations| {
                second = locations[0].payload as usize;
            });
            assert!(matches!(append, Append::Placed(None)));
            let mut bytes = vec![0; 3000];
            assert!(open.read(second, &mut bytes));
            assert_eq!(bytes, content(2, 3000));
            // What is to be written out is not whole yet; what comes goes elsewhere.
            assert!(open.take().is_none());
            let is_in_the_air = || {
                let state = open.state.lock();
                state.is_in_the_air(state.filling.number)
            };
            assert!(is_in_the_air(), "who waits for it waits for those who copy");
            let mut third = 0;
            let append = append_to(all, open, 3, 10, &mut |locations| {
                third = locations[0].payload as usize;
            });
            assert!(matches!(append, Append::Placed(None)));
            assert_eq!(third - HEADER_BYTES, 8192, "behind whole blocks");
            assert!(open.read(second, &mut bytes), "in memory still");
            let reader = scope.spawn(move || {
                let mut bytes = vec![0; 5000];
                assert!(open.read(first, &mut bytes));
                bytes
            });
            let waiting = scope.spawn(move || assert!(open.wait_landed().is_none()));
            go_on.send(()).unwrap();
            assert_eq!(reader.join().unwrap(), content(1, 5000));
            let flight = flight_of(slow.join().unwrap()).expect("the last one writes it");
            assert_eq!((flight.start, flight.buffer.len()), (0, 8192));
            let mut ids: Vec<u64> = flight
                .contents
                .iter()
                .map(|content| content.header.id.0)
                .collect();
            ids.sort_unstable();
            assert_eq!(ids, [1, 2]);
            assert!(is_in_the_air());
            open.land(all, flight);
            assert!(!is_in_the_air());
            waiting.join().unwrap();
        });
        assert!(!all.forget_if_done(&open), "it takes appends");
        open.close();
        assert!(!all.forget_if_done(&open), "something is in it");
        let flight = open.take().unwrap();
        open.land(&all, flight);
        assert!(all.forget_if_done(&open));
        assert_eq!(all.memory.lock().len(), 2, "both buffers are kept");
    }

    #[test]
    fn what_is_given_up_holds_up_nobody_and_its_buffer_is_written_by_who_waits() {
        let (all, open) = segment();
        let append = |id: u64, length: usize| {
            let mut at = 0;
            let append = append_to(&all, &open, id, length, &mut |locations| {
                at = locations[0].payload as usize;
            });
            assert!(matches!(append, Append::Placed(None)));
            at
        };
        let fail = |length: usize, seal: bool| {
            let open = &open;
            let fails = std::panic::AssertUnwindSafe(|| {
                append_to(&all, open, 9, length, &mut |_| {
                    if seal {
                        assert!(open.take().is_none(), "it is being copied into");
                    }
                    std::panic::resume_unwind(Box::new(()));
                })
            });
            assert!(std::panic::catch_unwind(fails).is_err());
        };
        let first = append(1, 3000);
        fail(6000, false);
        // Of what lies apart nothing tells.
        fail(8192, false);
        let second = append(2, 3000);
        let mut bytes = vec![0; 3000];
        for (id, at) in [(1, first), (2, second)] {
            assert!(open.read(at, &mut bytes));
            assert_eq!(bytes, content(id, 3000));
        }
        // The last one of a buffer that is to be written out.
        fail(6000, true);
        let third = append(3, 10);
        assert_eq!((third - HEADER_BYTES) % 4096, 0, "in another buffer");
        assert_eq!(open.state.lock().left.len(), 1, "or who waits waits for ever");
        let flight = open.wait_landed().expect("nobody else writes it out");
        let mut ids: Vec<u64> = flight
            .contents
            .iter()
            .map(|content| content.header.id.0)
            .collect();
        ids.sort_unstable();
        assert_eq!((ids, flight.start), (vec![1, 2], 0));
        assert_eq!(flight.buffer.len(), third - HEADER_BYTES);
        assert!(open.read(second, &mut bytes), "in memory until it has landed");
        let zero = flight.buffer.chunks(4096);
        let zero = zero.filter(|block| block.iter().all(|byte| *byte == 0));
        assert_eq!(zero.count(), 2, "what was given up apart");
        open.land(&all, flight);
        assert!(open.wait_landed().is_none());
        open.close();
        open.land(&all, open.take().unwrap());
        assert!(all.forget_if_done(&open));
    }

    #[test]
    fn who_waits_already_is_told_of_what_is_given_up() {
        let (all, open) = segment();
        std::thread::scope(|scope| {
            let (all, open) = (&all, &open);
            let (copied, is_copied) = channel::<()>();
            let (go_on, may_go_on) = channel::<()>();
            let fails = scope.spawn(move || {
                append_to(all, open, 1, 5000, &mut |_| {
                    copied.send(()).unwrap();
                    let _ = may_go_on.recv();
                    std::panic::resume_unwind(Box::new(()));
                })
            });
            is_copied.recv().unwrap();
            assert!(open.take().is_none());
            let waits = scope.spawn(move || {
                let flight = open.wait_landed().unwrap();
                open.land(all, flight);
                open.wait_landed().is_none()
            });
            drop(go_on);
            assert!(fails.join().is_err());
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn what_many_append_at_once_is_all_there_from_memory_or_written() {
        let (all, open) = segment();
        let device = Mutex::<_, rank::Leaf>::new(vec![0u8; SEGMENT_BYTES]);
        let written = Mutex::<_, rank::Leaf>::new(Vec::new());
        let next = AtomicU64::new(1);
        let known: Mutex<Vec<(u64, usize, usize)>, rank::Leaf> = Mutex::default();
        let write = |flight: Option<Arc<Flight>>| {
            let Some(flight) = flight else { return };
            assert_eq!((flight.start % 4096, flight.buffer.len() % 4096), (0, 0));
            let range = flight.start..flight.start + flight.buffer.len();
            device.lock()[range.clone()].copy_from_slice(&flight.buffer);
            written.lock().push((range.start, range.end));
            open.land(&all, flight);
        };
        let check = |(id, offset, length): (u64, usize, usize)| {
            let mut bytes = vec![0; length];
            if !open.read(offset, &mut bytes) {
                bytes.copy_from_slice(&device.lock()[offset..offset + length]);
            }
            assert_eq!(bytes, content(id, length), "chunk {id} at {offset}");
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (all, open, known, next, write, check) = (&all, &open, &known, &next, &write, &check);
                scope.spawn(move || {
                    for round in 0..400u64 {
                        let id = next.fetch_add(1, Ordering::Relaxed);
                        // Some are whole blocks, and lie apart from their headers where there is room for that.
                        let length = match id % 3 {
                            0 => 4096 * (1 + id as usize % 4),
                            _ => 100 + (id * 7919 % 20_000) as usize,
                        };
                        let append = append_to(all, open, id, length, &mut |locations| {
                            known.lock().push((id, locations[0].payload as usize, length));
                        });
                        assert!(matches!(append, Append::Placed(_)));
                        write(flight_of(append));
                        if (round + thread) % 16 == 0 {
                            write(open.take());
                        }
                        let some = {
                            let known = known.lock();
                            known[(id * 104_729) as usize % known.len()]
                        };
                        check(some);
                    }
                });
            }
        });
        write(open.take());
        assert!(open.wait_landed().is_none());
        let known = known.into_inner();
        assert_eq!(known.len(), 1600);
        known.into_iter().for_each(check);
        let mut written = written.into_inner();
        written.sort_unstable();
        assert!(
            written.windows(2).all(|two| two[0].1 == two[1].0),
            "no block twice, none left out"
        );
    }
}
