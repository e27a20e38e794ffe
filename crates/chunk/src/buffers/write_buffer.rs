//! `Filling`: a buffer for one write to a device, into which several threads copy chunks at the same time.
//!
//! Invariants: room is reserved in order, each piece of memory belongs to one thread until it comes back; a
//! sealed buffer takes no more; what is written out is whole: every piece that was reserved has come back. A payload apart lies
//! on whole blocks, and its header in a head block before it; how many blocks more than otherwise that may take is for the
//! segment to say.

use std::ops::Range;

use bytes::BytesMut;
use terrace_device::DEVICE_BLOCK_BYTES;
use terrace_pool::PoolId;

use super::open_segment::{BUFFER_BYTES, Content};
use crate::encoding::{BLOCK, ChunkHeader, HEADER_BYTES, SLOTS, head_block};

/// What a buffer takes, bytes.
pub(crate) const MEMORY_BYTES: usize = BUFFER_BYTES + DEVICE_BLOCK_BYTES;

/// Memory for one buffer, of [`BUFFER_BYTES`], aligned for the device.
pub(crate) fn memory() -> BytesMut {
    let mut all = BytesMut::zeroed(MEMORY_BYTES);
    let skip = all
        .as_ptr()
        .align_offset(DEVICE_BLOCK_BYTES)
        .min(DEVICE_BLOCK_BYTES);
    let mut aligned = all.split_off(skip);
    aligned.truncate(BUFFER_BYTES);
    aligned
}

/// A piece of a buffer that one thread fills.
pub(crate) struct Piece {
    /// Of which buffer of its segment.
    pub(crate) buffer: u64,
    /// In the segment, bytes.
    pub(crate) offset: usize,
    pub(crate) memory: BytesMut,
    /// Where the header of what lies apart from it goes, in the segment; `None`: in front of the memory.
    pub(crate) head: Option<usize>,
}

/// Headers whose payloads lie apart.
struct Heads {
    /// In the segment, bytes.
    start: usize,
    memory: BytesMut,
    /// Headers that it is reserved for.
    slots: usize,
}

/// See the module.
pub(crate) struct Filling {
    /// Numbers the buffers of a segment.
    pub(crate) number: u64,
    /// Where it starts in the segment.
    pub(crate) start: usize,
    /// Bytes reserved.
    fill: usize,
    /// Of these, what headers and payloads take.
    stored: usize,
    heads: Vec<Heads>,
    /// What is not reserved.
    free: BytesMut,
    /// What came back, by offset in the segment.
    pieces: Vec<(usize, BytesMut)>,
    /// What is being copied, in the segment.
    copying: Vec<Range<usize>>,
    /// The chunks that came back.
    contents: Vec<Content>,
}

impl Filling {
    /// An empty buffer; its memory is asked for with the first piece.
    pub(crate) fn new(number: u64, start: usize) -> Self {
        Self {
            number,
            start,
            fill: 0,
            stored: 0,
            heads: Vec::new(),
            free: BytesMut::new(),
            pieces: Vec::new(),
            copying: Vec::new(),
            contents: Vec::new(),
        }
    }

    /// Bytes reserved so far.
    pub(crate) fn len(&self) -> usize {
        self.fill
    }

    /// Whether it needs memory before anything can be reserved.
    pub(crate) fn is_without_memory(&self) -> bool {
        self.fill == 0 && self.free.is_empty()
    }

    /// Gives it memory.
    pub(crate) fn give(&mut self, memory: BytesMut) {
        self.free = memory;
    }

    /// Whether threads still copy into it.
    pub(crate) fn is_copied_into(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Bytes that it takes more of the device than it would if each payload lay right behind its header.
    pub(crate) fn excess(&self) -> usize {
        let blocks = self.fill.next_multiple_of(BLOCK);
        blocks.saturating_sub(self.stored.next_multiple_of(BLOCK))
    }

    /// Room for a header and a payload of `length` bytes behind it.
    pub(crate) fn reserve(&mut self, length: usize) -> Piece {
        self.stored += HEADER_BYTES + length;
        self.piece(HEADER_BYTES + length, None)
    }

    /// Room for a payload of `length` bytes, whole blocks, and elsewhere for its header; `None` if the buffer would take more than
    /// `most_bytes`, or more than otherwise by more than `excess` bytes. What comes behind, in front of its payload, may make that a block more:
    /// with less than a block left there is no room apart at all.
    pub(crate) fn reserve_apart(
        &mut self,
        length: usize,
        most_bytes: usize,
        excess: usize,
        pool: &PoolId,
    ) -> Option<Piece> {
        let padding = self.fill.next_multiple_of(BLOCK) - self.fill;
        let has_slot = self.heads.last().is_some_and(|heads| heads.slots < SLOTS);
        let fill = self.fill + padding + if has_slot { 0 } else { BLOCK } + length;
        let stored = self.stored + HEADER_BYTES + length;
        let more = fill.saturating_sub(stored.next_multiple_of(BLOCK));
        let is_left = excess >= BLOCK && more <= excess;
        if fill > most_bytes || !is_left || !length.is_multiple_of(BLOCK) {
            return None;
        }
        if padding > 0 {
            let start = self.start + self.fill;
            let mut memory = self.take(padding);
            memory.fill(0);
            self.pieces.push((start, memory));
        }
        if !has_slot {
            let start = self.start + self.fill;
            let mut memory = self.take(BLOCK);
            head_block::begin(&mut memory, pool);
            self.heads.push(Heads {
                start,
                memory,
                slots: 0,
            });
        }
        let heads = self.heads.last_mut()?;
        let head = heads.start + head_block::slot(heads.slots).start;
        heads.slots += 1;
        self.stored = stored;
        self.copying.push(head..head + HEADER_BYTES);
        Some(self.piece(length, Some(head)))
    }

    fn take(&mut self, length: usize) -> BytesMut {
        self.fill += length;
        // Beyond the room of a buffer no chunk goes; if one did, joining would copy.
        match length <= self.free.len() {
            true => self.free.split_to(length),
            false => BytesMut::zeroed(length),
        }
    }

    fn piece(&mut self, length: usize, head: Option<usize>) -> Piece {
        let offset = self.start + self.fill;
        self.copying.push(offset..offset + length);
        Piece {
            buffer: self.number,
            offset,
            memory: self.take(length),
            head,
        }
    }

    /// Takes a piece back, filled with a chunk; or with none, if whoever had it gave it up.
    pub(crate) fn put_back(&mut self, piece: Piece, content: Option<Content>) {
        if let (Some(head), Some(content)) = (piece.head, &content) {
            self.put_head(head, &content.header);
        }
        self.contents.extend(content);
        let is_its = |range: &Range<usize>| range.start == piece.offset || Some(range.start) == piece.head;
        self.copying.retain(|range| !is_its(range));
        // Mostly the last one.
        let at = self.pieces.iter().rposition(|(offset, _)| *offset < piece.offset);
        let at = at.map_or(0, |before| before + 1);
        self.pieces.insert(at, (piece.offset, piece.memory));
    }

    fn put_head(&mut self, offset: usize, header: &ChunkHeader) {
        let heads = self.heads.iter_mut().rfind(|heads| heads.start <= offset);
        let slot = heads.and_then(|heads| {
            let from = offset - heads.start;
            heads.memory.get_mut(from..from + HEADER_BYTES)
        });
        if let Some(slot) = slot {
            slot.copy_from_slice(&header.encode());
        }
    }

    /// Copies what is at `offset` in the segment; `None` if it is being copied in, `Some(false)` if it is not here.
    pub(crate) fn read(&self, offset: usize, output: &mut [u8]) -> Option<bool> {
        if self.copying.iter().any(|range| range.contains(&offset)) {
            return None;
        }
        let after = self.pieces.partition_point(|(start, _)| *start <= offset);
        let piece = after.checked_sub(1).and_then(|at| self.pieces.get(at));
        let heads = self.heads.iter().map(|heads| (&heads.start, &heads.memory));
        let all = piece
            .map(|(start, memory)| (start, memory))
            .into_iter()
            .chain(heads);
        let bytes = all
            .filter(|(start, _)| **start <= offset)
            .find_map(|(start, memory)| memory.get(offset - start..offset - start + output.len()));
        if let Some(bytes) = bytes {
            output.copy_from_slice(bytes);
        }
        Some(bytes.is_some())
    }

    /// All of it in one piece, filled up to a whole block with zeroes; the memory that was not needed; the chunks in it.
    pub(crate) fn into_whole(self) -> (BytesMut, BytesMut, Vec<Content>) {
        debug_assert!(self.copying.is_empty(), "every piece has come back");
        let mut pieces = self.pieces;
        pieces.extend(self.heads.into_iter().map(|heads| (heads.start, heads.memory)));
        pieces.sort_unstable_by_key(|(start, _)| *start);
        let mut pieces = pieces.into_iter().map(|(_, memory)| memory);
        let mut whole = pieces.next().unwrap_or_default();
        pieces.for_each(|piece| whole.unsplit(piece));
        let mut free = self.free;
        let gap = whole.len().next_multiple_of(DEVICE_BLOCK_BYTES) - whole.len();
        let mut padding = match gap <= free.len() {
            true => free.split_to(gap),
            false => BytesMut::zeroed(gap),
        };
        padding.fill(0);
        whole.unsplit(padding);
        (whole, free, self.contents)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::encoding::JOINED;

    /// What comes back with a piece of memory.
    fn content_of(id: u64, piece: &Piece) -> Content {
        let (offset, distance) = match piece.head {
            Some(head) => (head, (piece.offset - head) as u32),
            None => (piece.offset, JOINED),
        };
        Content {
            header: ChunkHeader::raw(id, 4096, distance),
            offset: offset as u32,
        }
    }

    fn filling(start: usize) -> Filling {
        let mut filling = Filling::new(3, start);
        let mut used = memory();
        used.fill(0xff);
        filling.give(used);
        filling
    }

    #[test]
    fn pieces_come_back_in_any_order_and_make_one_aligned_whole() {
        let mut filling = filling(8192);
        let lengths = [5000, 1, 4096, 70_000, 17];
        let mut pieces: Vec<Piece> = lengths.iter().map(|length| filling.reserve(*length)).collect();
        for (number, piece) in pieces.iter_mut().enumerate() {
            piece.memory.fill(number as u8 + 1);
        }
        let offsets: Vec<usize> = pieces.iter().map(|piece| piece.offset).collect();
        let mut byte = [0];
        for number in [2, 4, 0, 1, 3] {
            assert_eq!(
                filling.read(offsets[number], &mut byte),
                None,
                "it is being copied in"
            );
            let at = pieces
                .iter()
                .position(|piece| piece.offset == offsets[number])
                .unwrap();
            let piece = pieces.swap_remove(at);
            let content = content_of(number as u64, &piece);
            filling.put_back(piece, Some(content));
            assert_eq!(filling.read(offsets[number], &mut byte), Some(true));
            assert_eq!(byte[0], number as u8 + 1);
        }
        assert!(!filling.is_copied_into());
        let end = 8192 + filling.len();
        assert_eq!(filling.read(end, &mut byte), Some(false));
        assert_eq!(filling.read(8191, &mut byte), Some(false));
        let mut two = vec![0; HEADER_BYTES + 5001];
        assert_eq!(filling.read(8192, &mut two), Some(false), "more than one chunk");
        let (mut whole, free, contents) = filling.into_whole();
        assert_eq!(contents.len(), lengths.len());
        let expected: Vec<u8> = lengths
            .iter()
            .enumerate()
            .flat_map(|(number, length)| vec![number as u8 + 1; HEADER_BYTES + *length])
            .collect();
        assert_eq!(&whole[..expected.len()], &expected[..]);
        assert_eq!(whole.len(), expected.len().next_multiple_of(4096));
        assert!(whole[expected.len()..].iter().all(|byte| *byte == 0));
        assert_eq!(whole.as_ptr().align_offset(DEVICE_BLOCK_BYTES), 0);
        let address = whole.as_ptr();
        whole.unsplit(free);
        assert_eq!(
            (whole.len(), whole.as_ptr()),
            (BUFFER_BYTES, address),
            "the same memory again"
        );
    }

    #[test]
    fn payloads_apart_lie_on_whole_blocks_and_their_headers_in_blocks_before_them() {
        let start = 4 * BLOCK;
        let mut filling = filling(start);
        let most = BUFFER_BYTES;
        // Nothing more would be taken by this one, but by what may come behind it.
        assert!(filling.reserve_apart(BLOCK, most, BLOCK - 1, &[9; 16]).is_none());
        let mut pieces = vec![filling.reserve(100)];
        // Padding and a head block: two blocks more than the two that both would take.
        let pool: PoolId = [9; 16];
        assert!(filling.reserve_apart(BLOCK, most, BLOCK - 1, &pool).is_none());
        assert!(filling.reserve_apart(BLOCK, 3 * BLOCK - 1, most, &pool).is_none());
        assert!(
            filling.reserve_apart(BLOCK + 1, most, most, &pool).is_none(),
            "no whole blocks"
        );
        assert_eq!((filling.len(), filling.excess()), (HEADER_BYTES + 100, 0));
        for _ in 0..SLOTS + 1 {
            pieces.push(filling.reserve_apart(BLOCK, most, 2 * BLOCK, &pool).unwrap());
        }
        pieces.push(filling.reserve(200));
        assert!(filling.excess() <= 2 * BLOCK);
        let heads = [start + BLOCK, start + (2 + SLOTS) * BLOCK];
        for (number, piece) in pieces[1..=SLOTS].iter().enumerate() {
            assert_eq!(piece.offset, start + (2 + number) * BLOCK);
            assert_eq!(piece.head, Some(heads[0] + head_block::slot(number).start));
        }
        assert_eq!(pieces[SLOTS + 1].head, Some(heads[1] + head_block::slot(0).start));
        let last = pieces[SLOTS + 1].offset;
        assert_eq!((last, pieces[SLOTS + 2].offset), (heads[1] + BLOCK, last + BLOCK));

        let mut head = [0; HEADER_BYTES];
        assert_eq!(
            filling.read(heads[1] + head_block::slot(0).start, &mut head),
            None,
            "not yet"
        );
        for (id, mut piece) in pieces.into_iter().enumerate().rev() {
            piece.memory.fill(id as u8);
            // The third payload is given up.
            let content = (id != 3).then(|| content_of(id as u64, &piece));
            filling.put_back(piece, content);
        }
        assert_eq!(
            filling.read(heads[1] + head_block::slot(0).start, &mut head),
            Some(true)
        );
        assert_eq!(ChunkHeader::decode(&head).unwrap().id.0, SLOTS as u64 + 1);
        let (whole, ..) = filling.into_whole();
        assert_eq!(whole.len(), (5 + SLOTS) * BLOCK);
        assert!(
            whole[HEADER_BYTES + 100..BLOCK].iter().all(|byte| *byte == 0),
            "padding"
        );
        let mut found = Vec::new();
        for at in heads {
            let from = at - start;
            let headers = head_block::headers_in(&whole[from..], at, 1 << 24, &pool).unwrap();
            for (offset, header) in headers {
                let payload = header.payload_at(offset);
                let payload = &whole[payload.start - start..payload.end - start];
                assert!(payload.iter().all(|byte| u64::from(*byte) == header.id.0));
                found.push(header.id.0);
            }
        }
        let expected: Vec<u64> = (1..=SLOTS as u64 + 1).filter(|id| *id != 3).collect();
        assert_eq!(found, expected);
    }
}
