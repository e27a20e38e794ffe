//! Segment scan: the chunks of a segment as their headers tell.

use terrace_device::AlignedBuffer;
use terrace_log::{EntryHeader, HEADER_BYTES as ENTRY_BYTES};
use terrace_meta::{PREFACE_BYTES, Preface};
use terrace_pool::{Pool, PoolId, SegmentId};

use super::stored_bytes::read_stored;
use crate::encoding::{
    Ahead, BLOCK, ChunkHeader, ChunkPlace, HEADER_BYTES, JOINED, ROOT_COPY_HEADER_BYTES, announced_length,
    decode_root_copy, head_block,
};

/// The chunks of one segment, those of its earlier uses included; `rest` is called before each large read but the first.
pub(crate) fn chunks_in(
    pool: &Pool,
    segment: SegmentId,
    window_bytes: usize,
    rest: &dyn Fn(),
) -> Vec<ChunkPlace> {
    let mut chunks = Vec::new();
    let mut walk = Walk::new(pool, segment);
    walk.window_bytes = window_bytes.min(WINDOW_BYTES);
    walk.rest = Some(rest);
    walk.run(&mut |offset, thing| chunks.extend(thing.chunks(segment, offset)));
    chunks
}

/// Reads a window of a segment; parts that cannot be read become zeroes. How many bytes these are.
pub(crate) fn read_in_pieces(pool: &Pool, segment: SegmentId, start: usize, window: &mut [u8]) -> u64 {
    if pool.read(segment, start as u64, window).is_ok() {
        return 0;
    }
    let mut unreadable = 0;
    for (index, piece) in window.chunks_mut(PIECE_BYTES).enumerate() {
        let at = (start + index * PIECE_BYTES) as u64;
        if pool.read(segment, at, piece).is_err() {
            piece.fill(0);
            unreadable += piece.len() as u64;
        }
    }
    unreadable
}

/// Read at once, bytes.
pub(crate) const WINDOW_BYTES: usize = 1024 * 1024;

/// What is read by itself of a window that cannot be read as a whole, bytes.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// One thing in a segment, or several of which one block tells.
pub(crate) enum Thing {
    Chunk(ChunkHeader),
    Heads(Vec<(usize, ChunkHeader)>),
    Table(Preface),
    Root(Vec<u8>),
    Entry(EntryHeader),
}

impl Thing {
    /// The chunks of which this tells, which lies at `offset`.
    pub(crate) fn chunks(&self, segment: SegmentId, offset: u32) -> Vec<ChunkPlace> {
        match self {
            Self::Chunk(header) => vec![ChunkPlace::new(header, segment, offset)],
            Self::Heads(headers) => {
                let headers = headers.iter();
                headers
                    .map(|(offset, header)| ChunkPlace::new(header, segment, *offset as u32))
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The walk through one segment.
pub(crate) struct Walk<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) id: PoolId,
    pub(crate) segment: SegmentId,
    pub(crate) bytes: u64,
    pub(crate) unreadable: u64,
    /// Bytes that may still be read besides the walk itself.
    pub(crate) budget: usize,
    /// Bytes that are read at once.
    pub(crate) window_bytes: usize,
    /// What is done between two windows.
    pub(crate) rest: Option<&'a dyn Fn()>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(pool: &'a Pool, segment: SegmentId) -> Self {
        Self {
            pool,
            id: pool.id(),
            segment,
            bytes: 0,
            unreadable: 0,
            budget: 4 * pool.segment_bytes() as usize,
            window_bytes: WINDOW_BYTES,
            rest: None,
        }
    }

    /// Calls `take` for each thing with its offset; returns the bytes read, and those that could not be.
    pub(crate) fn run(mut self, take: &mut dyn FnMut(u32, Thing)) -> (u64, u64) {
        let segment_bytes = self.pool.segment_bytes() as usize;
        let mut window = AlignedBuffer::with_capacity(self.window_bytes);
        let (mut start, mut end) = (0, 0);
        let mut offset = 0;
        let mut ahead = Ahead::default();
        while offset + HEADER_BYTES <= segment_bytes {
            if let Some((after, _)) = ahead.at(offset) {
                offset = after;
                continue;
            }
            // Everything but a chunk starts on a block, and is told by its first bytes.
            if (offset + ENTRY_BYTES).min(segment_bytes) > end {
                start = offset / BLOCK * BLOCK;
                end = (start + self.window_bytes).min(segment_bytes);
                self.fill(start, window.reuse(end - start));
            }
            let here = &window[offset - start..end - start];
            let found = match ChunkHeader::decode(here) {
                Ok(header) if header.distance == JOINED && header.payload_at(offset).end <= segment_bytes => {
                    Some((header.payload_at(0).end, Thing::Chunk(header)))
                }
                _ if offset.is_multiple_of(BLOCK) => self.block(offset, here),
                _ => None,
            };
            match found {
                Some((length, thing)) => {
                    let aligned = !matches!(thing, Thing::Chunk(_));
                    if let Thing::Heads(headers) = &thing {
                        for (offset, header) in headers {
                            ahead.add(header.payload_at(*offset), ());
                        }
                    }
                    take(offset as u32, thing);
                    offset += length.max(1);
                    if aligned {
                        offset = offset.next_multiple_of(BLOCK);
                    }
                }
                None => offset = (offset + 1).next_multiple_of(BLOCK),
            }
        }
        (self.bytes, self.unreadable)
    }

    /// Reads a window; parts that cannot be read become zeroes.
    pub(crate) fn fill(&mut self, start: usize, window: &mut [u8]) {
        if let Some(rest) = self.rest.filter(|_| start > 0) {
            rest();
        }
        self.bytes += window.len() as u64;
        self.unreadable += read_in_pieces(self.pool, self.segment, start, window);
    }

    /// What starts at this block, and its length.
    pub(crate) fn block(&mut self, offset: usize, here: &[u8]) -> Option<(usize, Thing)> {
        if let Some(headers) =
            head_block::headers_in(here, offset, self.pool.segment_bytes() as usize, &self.id)
        {
            return Some((BLOCK, Thing::Heads(headers)));
        }
        let room = self.pool.segment_bytes() as usize - offset;
        if let Ok(preface) = Preface::decode(here.get(..PREFACE_BYTES)?)
            && preface.identity == self.id
            && preface.bytes as usize <= room
        {
            // Its last block must be there too, or it was written over: then what follows is looked at.
            let length = preface.bytes - preface.head_offset;
            let head = self.read(offset + preface.head_offset as usize, length as usize)?;
            return preface
                .has_head(&head)
                .then_some((preface.bytes as usize, Thing::Table(preface)));
        }
        if let Some(length) = announced_length(here, &self.id) {
            let whole = ROOT_COPY_HEADER_BYTES + length;
            let bytes = self.read(offset, whole.min(room))?;
            let payload = decode_root_copy(&bytes, &self.id).ok()?;
            return Some((whole, Thing::Root(payload)));
        }
        let header = EntryHeader::decode(here).ok()?;
        let whole = ENTRY_BYTES + header.length as usize;
        if header.pool != self.id || whole > room {
            return None;
        }
        let bytes = self.read(offset, whole)?;
        let payload = bytes.get(ENTRY_BYTES..)?;
        header.verify(payload).then_some((whole, Thing::Entry(header)))
    }

    pub(crate) fn read(&mut self, offset: usize, length: usize) -> Option<Vec<u8>> {
        self.budget = self.budget.checked_sub(length)?;
        self.bytes += length as u64;
        read_stored(self.pool, self.segment, offset as u32, length as u32).ok()
    }
}
