//! `Survey`: everything in all segments of a pool that describes itself – chunks, metadata tables, copies of roots, log
//! entries – found without any table.
//!
//! Invariants: what is listed passed its own sum (of a chunk and of a table: the sum of its header; their content is
//! verified when it is read); memory is in proportion to what is found, never to what a header claims; a segment is
//! read a small number of times at most, whatever its bytes claim, so that a hostile image cannot hold the survey up.

use std::collections::{BTreeMap, HashMap};

use terrace_device::AlignedBuffer;
use terrace_log::{EntryHeader, HEADER_BYTES as ENTRY_BYTES};
use terrace_meta::{PREFACE_BYTES, Preface};
use terrace_pool::{Pool, PoolId, SegmentId};
use terrace_store::{ChunkId, Owner};

use super::stored_bytes::read_stored;
use crate::encoding::{
    Ahead, BLOCK, ChunkHeader, HEADER_BYTES, JOINED, Location, ROOT_COPY_HEADER_BYTES, announced_length,
    decode_root_copy, head_block,
};

/// Read at once, bytes.
const WINDOW_BYTES: usize = 1024 * 1024;
/// What is read by itself of a window that cannot be read as a whole, bytes.
const PIECE_BYTES: usize = 64 * 1024;
/// Copies of roots that are kept: the newest ones.
const ROOTS_MAX: usize = 256;

/// A chunk that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The chunk.
    pub id: ChunkId,
    /// For whom it was first written.
    pub owner: Owner,
    /// Its segment.
    pub segment: SegmentId,
    /// Of its header, in the segment, bytes.
    pub offset: u32,
    /// Of its payload, in the segment, bytes.
    pub payload: u32,
    /// Content, bytes.
    pub length: u32,
}

impl ChunkPlace {
    fn new(header: &ChunkHeader, segment: SegmentId, offset: u32) -> Self {
        Self {
            id: header.id,
            owner: header.owner,
            segment,
            offset,
            payload: offset + header.distance,
            length: header.length,
        }
    }

    /// Where a record would say that it lies.
    pub(crate) fn location(&self) -> Location {
        Location {
            segment: self.segment,
            offset: self.offset,
            payload: self.payload,
        }
    }
}

/// A log entry that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPlace {
    /// What stands before its payload.
    pub header: EntryHeader,
    /// Where it lies, in each copy.
    pub copies: Vec<(SegmentId, u32)>,
}

/// A metadata table that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePlace {
    /// What it says of itself.
    pub preface: Preface,
    /// Where it lies, in each copy.
    pub copies: Vec<(SegmentId, u32)>,
}

/// What was found in the segments of a pool.
#[derive(Debug, Default)]
pub struct Survey {
    /// Chunks, those of earlier uses of a segment included; ascending by id.
    pub chunks: Vec<ChunkPlace>,
    /// Metadata tables, those given up included.
    pub tables: Vec<TablePlace>,
    /// Payloads of copies of roots, with the sequence at which each starts its replay; the newest 256.
    pub roots: Vec<(u64, Vec<u8>)>,
    /// Log entries.
    pub entries: Vec<EntryPlace>,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes that no read returned.
    pub unreadable_bytes: u64,
}

/// One thing in a segment, or several of which one block tells.
enum Thing {
    Chunk(ChunkHeader),
    Heads(Vec<(usize, ChunkHeader)>),
    Table(Preface),
    Root(Vec<u8>),
    Entry(EntryHeader),
}

impl Survey {
    /// Bytes that a survey of a pool reads.
    pub fn total_bytes(pool: &Pool) -> u64 {
        let segments: u64 = pool
            .devices()
            .iter()
            .map(|device| u64::from(device.segments))
            .sum();
        segments * u64::from(pool.segment_bytes())
    }

    /// Reads all segments of all devices that are there; `progress` gets the bytes done.
    pub fn new(pool: &Pool, progress: &mut dyn FnMut(u64)) -> Self {
        let mut survey = Self::default();
        let mut tables: BTreeMap<(u64, u64, u64), TablePlace> = BTreeMap::new();
        let mut entries: HashMap<[u8; 32], EntryPlace> = HashMap::new();
        let mut roots: BTreeMap<(u64, [u8; 32]), Vec<u8>> = BTreeMap::new();
        let mut done = 0;
        for device in pool.devices() {
            for index in 0..device.segments {
                let segment = SegmentId {
                    device: device.number,
                    index,
                };
                let mut take = |offset: u32, thing: Thing| match thing {
                    Thing::Chunk(_) | Thing::Heads(_) => survey.chunks.extend(thing.chunks(segment, offset)),
                    Thing::Table(preface) => {
                        let key = (preface.number, preface.head_sum, preface.up_to);
                        let found = tables.entry(key).or_insert_with(|| TablePlace {
                            preface,
                            copies: Vec::new(),
                        });
                        if found.preface == preface {
                            found.copies.push((segment, offset));
                        }
                    }
                    Thing::Root(payload) => {
                        if let Ok(sequence) = crate::encoding::replay_start(&payload) {
                            let sum = *blake3::hash(&payload).as_bytes();
                            roots.insert((sequence, sum), payload);
                            if roots.len() > ROOTS_MAX {
                                roots.pop_first();
                            }
                        }
                    }
                    Thing::Entry(header) => entries
                        .entry(header.sum)
                        .or_insert_with(|| EntryPlace {
                            header,
                            copies: Vec::new(),
                        })
                        .copies
                        .push((segment, offset)),
                };
                let walked = Walk::new(pool, segment).run(&mut take);
                survey.bytes += walked.0;
                survey.unreadable_bytes += walked.1;
                done += u64::from(pool.segment_bytes());
                progress(done);
            }
        }
        survey
            .chunks
            .sort_unstable_by_key(|place| (place.id, place.segment, place.offset));
        survey.tables = tables.into_values().collect();
        survey.entries = entries.into_values().collect();
        survey
            .entries
            .sort_by_key(|entry| (entry.header.first, entry.header.last, entry.header.sum));
        survey.roots = roots
            .into_iter()
            .rev()
            .map(|((sequence, _), payload)| (sequence, payload))
            .collect();
        survey
    }

    /// All places of a chunk.
    pub fn places(&self, id: ChunkId) -> &[ChunkPlace] {
        let first = self.chunks.partition_point(|place| place.id < id);
        let count = self.chunks[first..].partition_point(|place| place.id == id);
        &self.chunks[first..first + count]
    }
}

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

impl Thing {
    /// The chunks of which this tells, which lies at `offset`.
    fn chunks(&self, segment: SegmentId, offset: u32) -> Vec<ChunkPlace> {
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

/// The walk through one segment.
struct Walk<'a> {
    pool: &'a Pool,
    id: PoolId,
    segment: SegmentId,
    bytes: u64,
    unreadable: u64,
    /// Bytes that may still be read besides the walk itself.
    budget: usize,
    /// Bytes that are read at once.
    window_bytes: usize,
    /// What is done between two windows.
    rest: Option<&'a dyn Fn()>,
}

impl<'a> Walk<'a> {
    fn new(pool: &'a Pool, segment: SegmentId) -> Self {
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
    fn run(mut self, take: &mut dyn FnMut(u32, Thing)) -> (u64, u64) {
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
    fn fill(&mut self, start: usize, window: &mut [u8]) {
        if let Some(rest) = self.rest.filter(|_| start > 0) {
            rest();
        }
        self.bytes += window.len() as u64;
        self.unreadable += read_in_pieces(self.pool, self.segment, start, window);
    }

    /// What starts at this block, and its length.
    fn block(&mut self, offset: usize, here: &[u8]) -> Option<(usize, Thing)> {
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

    fn read(&mut self, offset: usize, length: usize) -> Option<Vec<u8>> {
        self.budget = self.budget.checked_sub(length)?;
        self.bytes += length as u64;
        read_stored(self.pool, self.segment, offset as u32, length as u32).ok()
    }
}
