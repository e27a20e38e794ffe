//! `RegionRecord`: which chunk holds which block of one region (1 MiB, 256 blocks) of one object.
//!
//! Invariants: runs are ascending, do not overlap, lie within the region and within what a chunk can hold, and two
//! neighbours that continue each other are one run; thus equal mappings are equal records and there are at most 256
//! runs. A block without a run is a hole.

use std::collections::BTreeMap;

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId};

/// Blocks of a region.
pub const REGION_BLOCKS: u32 = 256;
/// Bytes of a region.
pub const REGION_BYTES: u64 = REGION_BLOCKS as u64 * BLOCK_BYTES as u64;
/// Blocks that a chunk can hold.
pub const CHUNK_BLOCKS: u32 = (CHUNK_BYTES_MAX / BLOCK_BYTES) as u32;

/// `count` blocks from `block` of the region on: blocks `index..` of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First block in the region, 0–255.
    pub block: u32,
    /// Blocks, at least 1.
    pub count: u32,
    /// The chunk.
    pub chunk: ChunkId,
    /// First block in the chunk, 0–31.
    pub index: u32,
}

impl Run {
    /// The first block behind it.
    pub fn end(&self) -> u32 {
        self.block + self.count
    }

    fn is_continued_by(&self, next: &Run) -> bool {
        self.end() == next.block && self.chunk == next.chunk && self.index + self.count == next.index
    }

    /// The part of it from `from` to `to` (blocks of the region); `None` if that is empty.
    fn part(&self, from: u32, to: u32) -> Option<Run> {
        let (from, to) = (from.max(self.block), to.min(self.end()));
        (from < to).then(|| Run {
            block: from,
            count: to - from,
            chunk: self.chunk,
            index: self.index + from - self.block,
        })
    }
}

/// The runs of one region.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RegionRecord {
    runs: Vec<Run>,
}

impl RegionRecord {
    /// All holes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The runs, ascending.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether nothing is mapped; such a record is not stored.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many blocks are mapped.
    pub fn mapped_blocks(&self) -> u32 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// Whether it shows that content was overwritten in part, or came bit by bit: it is in more pieces than chunks of
    /// `chunk_bytes` would be, or does not begin where a chunk does.
    pub fn is_in_pieces(&self, chunk_bytes: u32) -> bool {
        let blocks = (chunk_bytes / BLOCK_BYTES as u32).clamp(1, REGION_BLOCKS);
        self.runs.len() as u32 > REGION_BLOCKS / blocks || self.runs.iter().any(|run| run.index > 0)
    }

    /// Chunk and index of a block; `None` for a hole.
    pub fn lookup(&self, block: u32) -> Option<(ChunkId, u32)> {
        let after = self.runs.partition_point(|run| run.end() <= block);
        let run = self.runs.get(after).filter(|run| run.block <= block)?;
        Some((run.chunk, run.index + block - run.block))
    }

    /// Whether any block is mapped to this chunk.
    pub fn maps(&self, chunk: ChunkId) -> bool {
        self.runs.iter().any(|run| run.chunk == chunk)
    }

    /// The runs in `from..to`, cut to it.
    pub fn range(&self, from: u32, to: u32) -> impl Iterator<Item = Run> + '_ {
        let start = self.runs.partition_point(|run| run.end() <= from);
        self.runs[start..]
            .iter()
            .take_while(move |run| run.block < to)
            .filter_map(move |run| run.part(from, to))
    }

    /// The first mapped block at or behind `block`.
    pub fn next_mapped(&self, block: u32) -> Option<u32> {
        let after = self.runs.partition_point(|run| run.end() <= block);
        self.runs.get(after).map(|run| run.block.max(block))
    }

    /// The first hole at or behind `block`; `None` if the region is mapped to its end.
    pub fn next_hole(&self, block: u32) -> Option<u32> {
        let mut hole = block;
        let after = self.runs.partition_point(|run| run.end() <= block);
        for run in &self.runs[after..] {
            if run.block > hole {
                break;
            }
            hole = run.end();
        }
        (hole < REGION_BLOCKS).then_some(hole)
    }

    /// Maps `count` blocks from `block` on to blocks `index..` of `chunk`, over whatever was there. What does not
    /// lie within the region and the chunk is left out.
    pub fn overwrite(&mut self, block: u32, count: u32, chunk: ChunkId, index: u32) {
        let count = count
            .min(REGION_BLOCKS.saturating_sub(block))
            .min(CHUNK_BLOCKS.saturating_sub(index));
        if count > 0 {
            self.replace(
                block,
                block + count,
                Some(Run {
                    block,
                    count,
                    chunk,
                    index,
                }),
            );
        }
    }

    /// Makes holes of `from..to`.
    pub fn punch(&mut self, from: u32, to: u32) {
        let to = to.min(REGION_BLOCKS);
        if from < to {
            self.replace(from, to, None);
        }
    }

    /// Makes holes of everything from `block` on.
    pub fn truncate(&mut self, block: u32) {
        self.punch(block, REGION_BLOCKS);
    }

    /// Takes everything from `block` on out into a record of its own (blocks keep their numbers).
    pub fn split(&mut self, block: u32) -> RegionRecord {
        let tail = RegionRecord {
            runs: self.range(block, REGION_BLOCKS).collect(),
        };
        self.truncate(block);
        tail
    }

    fn replace(&mut self, from: u32, to: u32, with: Option<Run>) {
        let first = self.runs.partition_point(|run| run.end() <= from);
        let last = self.runs.partition_point(|run| run.block < to);
        let head = self.runs.get(first).and_then(|run| run.part(0, from));
        let tail = last
            .checked_sub(1)
            .and_then(|at| self.runs[at].part(to, REGION_BLOCKS));
        // `first..last` are the runs that touch the range; one on either side may join with the new one.
        let (first, mut last) = (first.saturating_sub(1), (last + 1).min(self.runs.len()));
        let touched = first + usize::from(first < self.runs.len() && self.runs[first].end() <= from);
        let mut patch: Vec<Run> = Vec::with_capacity(5);
        let before = (touched > first).then(|| self.runs[first]);
        let after = last
            .checked_sub(1)
            .map(|at| self.runs[at])
            .filter(|run| run.block >= to);
        for run in [before, head, with, tail, after].into_iter().flatten() {
            match patch.last_mut() {
                Some(open) if open.is_continued_by(&run) => open.count += run.count,
                _ => patch.push(run),
            }
        }
        last = last.max(first);
        self.runs.splice(first..last, patch);
    }

    /// References that change when `old` becomes `new`: chunk → blocks more or fewer; only what changes.
    pub fn difference(old: &RegionRecord, new: &RegionRecord) -> BTreeMap<ChunkId, i64> {
        let mut changes = BTreeMap::new();
        for run in &new.runs {
            *changes.entry(run.chunk).or_insert(0) += i64::from(run.count);
        }
        for run in &old.runs {
            *changes.entry(run.chunk).or_insert(0) -= i64::from(run.count);
        }
        changes.retain(|_, blocks| *blocks != 0);
        changes
    }

    /// The payload of its record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(2 + self.runs.len() * 6);
        writer.varint(self.runs.len() as u64);
        let (mut end, mut chunk) = (0, 0u64);
        for run in &self.runs {
            writer
                .varint(u64::from(run.block - end))
                .varint(u64::from(run.count));
            writer
                .signed_varint(run.chunk.0.wrapping_sub(chunk) as i64)
                .u8(run.index as u8);
            (end, chunk) = (run.end(), run.chunk.0);
        }
        writer.into_bytes()
    }

    /// Reads a payload; refuses whatever breaks an invariant.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let count = reader.varint("number of runs")?;
        if count > u64::from(REGION_BLOCKS) {
            return Err(DecodeError::Invalid("number of runs"));
        }
        let mut runs: Vec<Run> = Vec::with_capacity(count as usize);
        let (mut end, mut chunk) = (0u32, 0u64);
        for _ in 0..count {
            let gap = within(&mut reader, "gap before a run", u64::from(REGION_BLOCKS - end))?;
            let block = end + gap;
            let blocks = within(&mut reader, "length of a run", u64::from(REGION_BLOCKS - block))?;
            chunk = chunk.wrapping_add(reader.signed_varint("chunk of a run")? as u64);
            let index = u32::from(reader.u8("index of a run")?);
            let run = Run {
                block,
                count: blocks,
                chunk: ChunkId(chunk),
                index,
            };
            if blocks == 0 || chunk == 0 || index + blocks > CHUNK_BLOCKS {
                return Err(DecodeError::Invalid("a run"));
            }
            if runs.last().is_some_and(|last| last.is_continued_by(&run)) {
                return Err(DecodeError::Invalid("a run that continues the one before"));
            }
            end = run.end();
            runs.push(run);
        }
        reader.finish()?;
        Ok(Self { runs })
    }
}

fn within(reader: &mut Reader<'_>, field: &'static str, most: u64) -> Result<u32, DecodeError> {
    let value = reader.varint(field)?;
    if value > most {
        Err(DecodeError::Invalid(field))
    } else {
        Ok(value as u32)
    }
}
