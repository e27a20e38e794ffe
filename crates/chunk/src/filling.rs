//! `Filling`: a buffer for one write to a device, into which several threads copy chunks at the same time.
//!
//! Invariants: room is reserved in order and without gaps, each piece of memory belongs to one thread until it comes back; a
//! sealed buffer takes no more; what is written out is whole: every piece that was reserved has come back.

use std::ops::Range;

use bytes::BytesMut;
use terrace_device::{DEVICE_BLOCK_BYTES, HUGE_PAGE_BYTES, prefer_huge_pages};

use crate::appender::{BUFFER_BYTES, Content};

/// What a buffer takes, bytes: a huge page, so that the device gets it in one piece and nobody looks hundreds of pages up.
pub(crate) const MEMORY_BYTES: usize = HUGE_PAGE_BYTES;

/// Memory for one buffer, of [`BUFFER_BYTES`], at the beginning of a huge page.
pub(crate) fn memory() -> BytesMut {
    const { assert!(BUFFER_BYTES <= MEMORY_BYTES) };
    // (What is asked for beyond it is never touched.)
    let mut all = BytesMut::zeroed(2 * MEMORY_BYTES);
    let skip = all.as_ptr().align_offset(MEMORY_BYTES).min(MEMORY_BYTES);
    let mut aligned = all.split_off(skip);
    prefer_huge_pages(&mut aligned);
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
}

/// See the module.
pub(crate) struct Filling {
    /// Numbers the buffers of a segment.
    pub(crate) number: u64,
    /// Where it starts in the segment.
    pub(crate) start: usize,
    /// Bytes reserved.
    fill: usize,
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

    /// The next `length` bytes.
    pub(crate) fn reserve(&mut self, length: usize) -> Piece {
        let offset = self.start + self.fill;
        self.fill += length;
        self.copying.push(offset..offset + length);
        // Beyond the room of a buffer no chunk goes; if one did, joining would copy.
        let memory = match length <= self.free.len() {
            true => self.free.split_to(length),
            false => BytesMut::zeroed(length),
        };
        Piece {
            buffer: self.number,
            offset,
            memory,
        }
    }

    /// Takes a piece back, filled with a chunk; or with none, if whoever had it gave it up.
    pub(crate) fn put_back(&mut self, piece: Piece, content: Option<Content>) {
        self.contents.extend(content);
        self.copying.retain(|range| range.start != piece.offset);
        // Mostly the last one.
        let at = self.pieces.iter().rposition(|(offset, _)| *offset < piece.offset);
        let at = at.map_or(0, |before| before + 1);
        self.pieces.insert(at, (piece.offset, piece.memory));
    }

    /// Copies what is at `offset` in the segment; `None` if it is being copied in, `Some(false)` if it is not here.
    pub(crate) fn read(&self, offset: usize, output: &mut [u8]) -> Option<bool> {
        if self.copying.iter().any(|range| range.contains(&offset)) {
            return None;
        }
        let after = self.pieces.partition_point(|(start, _)| *start <= offset);
        let piece = after.checked_sub(1).and_then(|at| self.pieces.get(at));
        let bytes =
            piece.and_then(|(start, memory)| memory.get(offset - start..offset - start + output.len()));
        if let Some(bytes) = bytes {
            output.copy_from_slice(bytes);
        }
        Some(bytes.is_some())
    }

    /// All of it in one piece, filled up to a whole block with zeroes; the memory that was not needed; the chunks in it.
    pub(crate) fn into_whole(self) -> (BytesMut, BytesMut, Vec<Content>) {
        debug_assert!(self.copying.is_empty(), "every piece has come back");
        let mut pieces = self.pieces.into_iter().map(|(_, memory)| memory);
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
    use terrace_store::ChunkId;

    use super::*;

    #[test]
    fn pieces_come_back_in_any_order_and_make_one_aligned_whole() {
        let mut filling = Filling::new(3, 8192);
        let mut used = memory();
        used.fill(0xff);
        filling.give(used);
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
            let content = Content {
                id: ChunkId(number as u64),
                offset: piece.offset as u32,
                stored: lengths[number] as u32,
            };
            filling.put_back(piece, Some(content));
            assert_eq!(filling.read(offsets[number], &mut byte), Some(true));
            assert_eq!(byte[0], number as u8 + 1);
        }
        assert!(!filling.is_copied_into());
        let end = 8192 + filling.len();
        assert_eq!(filling.read(end, &mut byte), Some(false));
        assert_eq!(filling.read(8191, &mut byte), Some(false));
        let mut two = vec![0; 5001];
        assert_eq!(filling.read(8192, &mut two), Some(false), "more than one chunk");
        let (mut whole, free, contents) = filling.into_whole();
        assert_eq!(contents.len(), lengths.len());
        let expected: Vec<u8> = lengths
            .iter()
            .enumerate()
            .flat_map(|(number, length)| vec![number as u8 + 1; *length])
            .collect();
        assert_eq!(&whole[..expected.len()], &expected[..]);
        assert_eq!(whole.len(), expected.len().next_multiple_of(4096));
        assert!(whole[expected.len()..].iter().all(|byte| *byte == 0));
        assert_eq!(whole.as_ptr().align_offset(MEMORY_BYTES), 0);
        let address = whole.as_ptr();
        whole.unsplit(free);
        assert_eq!(
            (whole.len(), whole.as_ptr()),
            (BUFFER_BYTES, address),
            "the same memory again"
        );
    }
}
