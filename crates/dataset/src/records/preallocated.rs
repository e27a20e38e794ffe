//! `Preallocated`: the ranges of a file for which `fallocate` set room aside, and how much of them is written.
//!
//! A block in such a range can always be written, also over and over. What it takes is set aside until it is written; from then on
//! the block itself stands for the promise, as long as writing over it gives back as much as it takes. That holds for blocks that
//! were stored whole since the promise was made: chunks of preallocated ranges are neither compressed, nor shared with others, nor
//! found by the dedup index. Such a block is *own*. It is told by its chunk's number: chunks are numbered as they are made, and those
//! from `since` on are own. What was there before the promise, and all that a newer snapshot has as well, needs its full size again
//! when it is written over (ZFS counts a `refreservation` so).
//!
//! Invariants: ranges ascend, do not touch each other, and are at most [`RANGES_MAX`]; where there would be more, the room of the
//! smallest gap is promised too, and nothing that was promised is given up; `own_blocks` ≤ `mapped_blocks` ≤ [`Preallocated::blocks`].

use std::{iter, ops::Range};

use terrace_codec::{DecodeError, Reader, Writer};

use super::region::{REGION_BLOCKS, RegionRecord};

/// Ranges of a file at most: they lie in its inode.
pub const RANGES_MAX: usize = 256;

const PER_REGION: u64 = REGION_BLOCKS as u64;

/// Blocks of the largest file: no range ends behind it.
const BLOCKS_MAX: u64 = 1 << 40;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preallocated {
    ranges: Vec<Range<u64>>,
    /// Blocks in the ranges that are mapped.
    pub mapped_blocks: u64,
    /// Of these, those that stand for the promise.
    pub own_blocks: u64,
    /// The first chunk whose blocks may.
    pub since: u64,
}

impl Preallocated {
    /// The ranges, blocks.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// How many blocks they are.
    pub fn blocks(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Own blocks, if no snapshot is newer: with one none is, until the file is committed again.
    pub(crate) fn own_blocks_since(&self, newest_snapshot: u64) -> u64 {
        match self.since >= newest_snapshot {
            true => self.own_blocks,
            false => 0,
        }
    }

    /// Whether some of these blocks lie in a range.
    pub(crate) fn intersects(&self, from: u64, to: u64) -> bool {
        let at = self.ranges.partition_point(|range| range.end <= from);
        self.ranges.get(at).is_some_and(|range| range.start < to)
    }

    /// Where the blocks end, at most at `to`, that lie in a range from `from` on; `None` if that one does not.
    pub(crate) fn end_within(&self, from: u64, to: u64) -> Option<u64> {
        let at = self.ranges.partition_point(|range| range.end <= from);
        let range = self.ranges.get(at).filter(|range| range.start <= from)?;
        Some(range.end.min(to))
    }

    /// With these blocks as well, and what is new in it.
    pub(crate) fn with(&self, from: u64, to: u64) -> (Self, Vec<Range<u64>>) {
        let mut ranges = self.ranges.clone();
        let first = ranges.partition_point(|range| range.end < from);
        let last = ranges.partition_point(|range| range.start <= to);
        let start = ranges[first..last]
            .first()
            .map_or(from, |range| range.start.min(from));
        let end = ranges[first..last].last().map_or(to, |range| range.end.max(to));
        ranges.splice(first..last, iter::once(start..end));
        while ranges.len() > RANGES_MAX {
            let gap = |at: &usize| ranges[*at + 1].start - ranges[*at].end;
            let Some(at) = (0..ranges.len() - 1).min_by_key(gap) else {
                break;
            };
            ranges[at].end = ranges[at + 1].end;
            ranges.remove(at + 1);
        }
        let more = Self {
            ranges,
            ..self.clone()
        };
        let added = more.beyond(self);
        (more, added)
    }

    /// Takes these blocks out. Where that makes more ranges than there may be, they stay promised.
    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        // Of a piece of one block nothing goes.
        if from >= to {
            return;
        }
        let mut ranges = Vec::with_capacity(self.ranges.len() + 1);
        for range in &self.ranges {
            let before = range.start..range.end.min(from);
            let behind = range.start.max(to)..range.end;
            ranges.extend([before, behind].into_iter().filter(|part| part.start < part.end));
        }
        if ranges.len() <= RANGES_MAX {
            self.ranges = ranges;
        }
    }

    /// What of it lies in no range of `other`.
    pub(crate) fn beyond(&self, other: &Self) -> Vec<Range<u64>> {
        let mut beyond = Vec::new();
        for range in &self.ranges {
            let mut from = range.start;
            let at = other.ranges.partition_point(|range| range.end <= from);
            for there in other.ranges[at..]
                .iter()
                .take_while(|there| there.start < range.end)
            {
                if from < there.start {
                    beyond.push(from..there.start);
                }
                from = there.end;
            }
            if from < range.end {
                beyond.push(from..range.end);
            }
        }
        beyond
    }

    /// Mapped blocks of a region in the ranges, and how many of them are own.
    pub(crate) fn count(&self, region: u64, record: &RegionRecord) -> (u64, u64) {
        let (first, end) = (region * PER_REGION, (region + 1) * PER_REGION);
        let (mut mapped, mut own) = (0, 0);
        let at = self.ranges.partition_point(|range| range.end <= first);
        for range in self.ranges[at..].iter().take_while(|range| range.start < end) {
            let (from, to) = (range.start.max(first) - first, range.end.min(end) - first);
            for run in record.range(from as u32, to as u32) {
                mapped += u64::from(run.count);
                if run.chunk.0 >= self.since {
                    own += u64::from(run.count);
                }
            }
        }
        (mapped, own)
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.varint(self.ranges.len() as u64);
        let mut end = 0;
        for range in &self.ranges {
            writer.varint(range.start - end).varint(range.end - range.start);
            end = range.end;
        }
        writer
            .varint(self.mapped_blocks)
            .varint(self.own_blocks)
            .varint(self.since);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const RANGE: DecodeError = DecodeError::Invalid("preallocated range");
        let count = reader.varint("number of preallocated ranges")?;
        if count == 0 || count > RANGES_MAX as u64 {
            return Err(DecodeError::Invalid("number of preallocated ranges"));
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for _ in 0..count {
            let gap = reader.varint("preallocated range")?;
            let length = reader.varint("preallocated range")?;
            let touches = ranges.last().is_some() && gap == 0;
            let start = ranges
                .last()
                .map_or(0, |range| range.end)
                .checked_add(gap)
                .ok_or(RANGE)?;
            let end = start
                .checked_add(length)
                .filter(|end| *end <= BLOCKS_MAX)
                .ok_or(RANGE)?;
            if touches || length == 0 {
                return Err(RANGE);
            }
            ranges.push(start..end);
        }
        let preallocated = Self {
            ranges,
            mapped_blocks: reader.varint("mapped preallocated blocks")?,
            own_blocks: reader.varint("own preallocated blocks")?,
            since: reader.varint("first own chunk")?,
        };
        let (own, mapped) = (preallocated.own_blocks, preallocated.mapped_blocks);
        match own <= mapped && mapped <= preallocated.blocks() {
            true => Ok(preallocated),
            false => Err(DecodeError::Invalid("preallocated blocks")),
        }
    }
}

/// What the files of a dataset have preallocated, in blocks, as of its newest commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreallocatedTotals {
    /// In ranges.
    pub blocks: u64,
    /// Of these, mapped.
    pub mapped_blocks: u64,
    /// Of these, own of files that were committed since the newest snapshot.
    pub own_blocks: u64,
    /// The first chunk that no snapshot has.
    pub since: u64,
}

impl PreallocatedTotals {
    /// What writing all of it needs beyond what it takes now.
    pub(crate) fn lacking_blocks(&self) -> u64 {
        self.blocks.saturating_sub(self.own_blocks)
    }

    /// What quotas do not count yet.
    pub(crate) fn unmapped_blocks(&self) -> u64 {
        self.blocks.saturating_sub(self.mapped_blocks)
    }

    pub(crate) fn apply(&mut self, change: PreallocatedChange) {
        self.blocks = self.blocks.saturating_add_signed(change.blocks);
        self.mapped_blocks = self.mapped_blocks.saturating_add_signed(change.mapped_blocks);
        self.own_blocks = self.own_blocks.saturating_add_signed(change.own_blocks);
    }
}

/// What a commit changes in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct PreallocatedChange {
    pub blocks: i64,
    pub mapped_blocks: i64,
    pub own_blocks: i64,
}

impl PreallocatedChange {
    /// One file's, from what was recorded to what is.
    pub(crate) fn add(
        &mut self,
        was: Option<&Preallocated>,
        now: Option<&Preallocated>,
        newest_snapshot: u64,
    ) {
        for (of, sign) in [(was, -1), (now, 1)] {
            let Some(of) = of else { continue };
            self.blocks += sign * of.blocks() as i64;
            self.mapped_blocks += sign * of.mapped_blocks as i64;
            self.own_blocks += sign * of.own_blocks_since(newest_snapshot) as i64;
        }
    }
}

/// What is promised before a commit counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Promised {
    /// Blocks that are set aside.
    pub(crate) blocks: u64,
    /// Of these, blocks that quotas count already.
    pub(crate) mapped_blocks: u64,
}

impl Promised {
    pub(crate) fn add(&mut self, more: Self) {
        self.blocks += more.blocks;
        self.mapped_blocks += more.mapped_blocks;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use terrace_store::ChunkId;

    use super::*;

    fn of(ranges: &[(u64, u64)]) -> Preallocated {
        let mut all = Preallocated::default();
        for (from, to) in ranges {
            all = all.with(*from, *to).0;
        }
        all
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert!(of(&[(0, 4), (4, 8)]).ranges().iter().eq([&(0..8)]));
        assert!(of(&[(0, 4), (8, 12), (2, 9)]).ranges().iter().eq([&(0..12)]));
        assert_eq!(of(&[(8, 12), (0, 4)]).ranges(), &[0..4, 8..12]);
        let (_, added) = of(&[(2, 4), (6, 8)]).with(0, 10);
        assert_eq!(added, vec![0..2, 4..6, 8..10]);
    }

    #[test]
    fn taking_out_gives_up_nothing_else() {
        let mut some = of(&[(0, 10), (20, 30)]);
        some.remove(5, 25);
        assert_eq!(some.ranges(), &[0..5, 25..30]);
        some.remove(2, 3);
        assert_eq!(some.ranges(), &[0..2, 3..5, 25..30]);
        assert!(some.intersects(0, 1) && some.intersects(2, 4) && !some.intersects(2, 3));
        assert_eq!(
            (some.end_within(3, 100), some.end_within(2, 100)),
            (Some(5), None)
        );
        some.remove(1, 0);
        assert_eq!(some.blocks(), 9);
        some.remove(0, u64::MAX);
        assert_eq!(some.blocks(), 0);
    }

    #[test]
    fn too_many_ranges_promise_gaps_and_give_up_none() {
        let many: Vec<(u64, u64)> = (0..300).map(|at| (at * 100, at * 100 + 50 + at % 3)).collect();
        let mut all = of(&many);
        assert_eq!(all.ranges().len(), RANGES_MAX);
        assert!(
            many.iter()
                .all(|(from, to)| all.end_within(*from, *to) == Some(*to))
        );
        let before = all.blocks();
        all.remove(10, 20);
        assert_eq!(all.blocks(), before, "one more range than there may be");
    }

    #[test]
    fn blocks_of_older_chunks_are_mapped_and_not_own() {
        let mut record = RegionRecord::new();
        record.overwrite(0, 4, ChunkId(5), 0);
        record.overwrite(4, 4, ChunkId(9), 0);
        let mut some = of(&[(258, 262)]);
        some.since = 9;
        assert_eq!(some.count(1, &record), (4, 2));
        assert_eq!(some.count(0, &record), (0, 0));
    }
}
