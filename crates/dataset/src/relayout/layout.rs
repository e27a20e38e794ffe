//! `Layout`: how the content of a region lies in chunks, and how it would lie if it were written anew: what a relayout is
//! decided by, and what it writes.
//!
//! Invariants: only blocks count whose chunk nothing but this record refers to (its references are as many as the blocks
//! that the record maps, each once), so that what is written anew sets the old chunk free as a whole: content that a snapshot, a
//! retained past, a reflink or an equal file needs as well is left where it is, since a second copy of it would take room
//! and give none back. A chunk is written anew with all of its blocks that are mapped, or not at all. Content stays on the
//! tier where it lies. Holes stay holes. A whole chunk at its place that is no longer than the dataset has them lies as well as can be. What is cut to leave no dead blocks behind ([`Cut::Survivors`]) touches no chunk that has none.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use terrace_store::{BLOCK_BYTES, ChunkId, ChunkInfo, Store, StoreError};

use crate::{
    commit::blocks_of,
    records::{CHUNK_BLOCKS, REGION_BLOCKS, RegionRecord, Run},
    settings::Settings,
};

/// The part of the stored bytes that must be dead, one in this many: as with garbage in segments, what comes back is at
/// least a third of what is written.
const DEAD_PART: u64 = 4;
/// Dead bytes that are not worth a write.
const DEAD_BYTES_MIN: u64 = 32 << 10;
/// Pieces of a region from which on it is put in order, if that makes them a quarter or less, or places at which they lie: no more
/// is written then than eight times of what was overwritten. Below the fastest tier, where each piece may be a request of a device that
/// serves few, fewer pieces do: there lies what was raised by itself and has sunk again.
const PIECES_MIN: u32 = 64;
const PIECES_MIN_BELOW: u32 = 16;
const FEWER: u32 = 4;

/// Requests to a device that a reader in order makes for a region, from which on it is put in order for him. (Content that
/// was written in order takes one or two.)
const PLACES_MIN: u32 = 32;
/// Bytes between two chunks that are rather read than left out.
const GAP_BYTES: u64 = 32 << 10;

/// Into what a region is cut when it is written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Chunks as long as the dataset has them, in order: for what rests.
    InOrder,
    /// Only what is left of chunks with dead blocks, in chunks of at most 16 KiB: for what is still being overwritten at random,
    /// where each long chunk would have dead blocks again a moment later.
    Survivors,
    /// The same for those who find no room in the pool: in its reserve if need be, on any tier.
    ForRoom,
}

/// The longest chunk of [`Cut::Survivors`].
const SURVIVORS_BYTES: u32 = 16 << 10;

/// What could be written anew of a region on one tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Where it lies.
    pub tier: u8,
    /// Pieces that it lies in.
    pub pieces: u32,
    /// Chunks that it would be.
    pub pieces_after: u32,
    /// Places on the device at which its chunks lie: how often it is asked by who reads them in order.
    pub places: u32,
    /// What its chunks take, bytes.
    pub stored_bytes: u64,
    /// What it would take, bytes, about.
    pub stored_after_bytes: u64,
    stretches: Vec<Range<u32>>,
}

struct Seen {
    info: ChunkInfo,
    /// Blocks of it that the record maps.
    blocks: u32,
    /// Which.
    mask: u32,
    /// One of them more than once.
    twice: bool,
}

impl Seen {
    fn new(info: ChunkInfo) -> Self {
        Self {
            info,
            blocks: 0,
            mask: 0,
            twice: false,
        }
    }

    fn add(&mut self, run: &Run) {
        let bits = (u32::MAX >> (CHUNK_BLOCKS - run.count)) << run.index;
        self.twice |= self.mask & bits != 0;
        self.mask |= bits;
        self.blocks += run.count;
    }

    fn is_own(&self) -> bool {
        self.info.references == i64::from(self.blocks) && !self.twice
    }

    fn blocks_in_all(&self) -> u32 {
        self.info.length.div_ceil(BLOCK_BYTES as u32).max(1)
    }

    fn has_dead_blocks(&self) -> bool {
        self.blocks < self.blocks_in_all()
    }

    fn is_meant(&self, cut: Cut) -> bool {
        self.is_own() && (cut == Cut::InOrder || self.has_dead_blocks())
    }
}

impl Layout {
    /// What could be written anew in the chunks that the dataset has, by tier; none if a chunk is not there any more.
    pub fn of(
        store: &dyn Store,
        record: &RegionRecord,
        settings: &Settings,
        cut: Cut,
    ) -> Result<Vec<Self>, StoreError> {
        let ids: BTreeSet<ChunkId> = record.runs().iter().map(|run| run.chunk).collect();
        let ids: Vec<ChunkId> = ids.into_iter().collect();
        let mut seen: BTreeMap<ChunkId, Seen> = BTreeMap::new();
        for (id, info) in ids.iter().zip(store.chunk_infos(&ids)?) {
            let Some(info) = info else { return Ok(Vec::new()) };
            seen.insert(*id, Seen::new(info));
        }
        for run in record.runs() {
            if let Some(seen) = seen.get_mut(&run.chunk) {
                seen.add(run);
            }
        }
        let meant = seen.values().filter(|seen| seen.is_meant(cut));
        let tiers: BTreeSet<u8> = meant.map(|seen| seen.info.tier).collect();
        let layouts = tiers
            .into_iter()
            .map(|tier| Self::on(tier, record, &seen, settings, cut));
        Ok(layouts.filter(|layout| !layout.stretches.is_empty()).collect())
    }

    fn on(
        tier: u8,
        record: &RegionRecord,
        seen: &BTreeMap<ChunkId, Seen>,
        settings: &Settings,
        cut: Cut,
    ) -> Self {
        // As with what is written: cut as if it compressed, and joined afterwards where it does not.
        let (chunk_bytes, longest) = match cut {
            Cut::InOrder => (settings.chunk_bytes, blocks_of(settings.raw_chunk_bytes)),
            Cut::Survivors | Cut::ForRoom => (settings.chunk_bytes.min(SURVIVORS_BYTES), 0),
        };
        let usual = blocks_of(chunk_bytes);
        let mut layout = Self {
            tier,
            pieces: 0,
            pieces_after: 0,
            places: 0,
            stored_bytes: 0,
            stored_after_bytes: 0,
            stretches: Vec::new(),
        };
        let mut taken = [false; REGION_BLOCKS as usize];
        let runs = record.runs().iter().filter_map(|run| {
            let seen = seen.get(&run.chunk)?;
            (seen.is_meant(cut) && seen.info.tier == tier).then_some((run, seen))
        });
        for (run, _) in runs.clone() {
            taken[run.block as usize..run.end() as usize].fill(true);
        }
        let longer = |from: u32| {
            let run = record.runs().iter().find(|run| run.block == from)?;
            let seen = seen.get(&run.chunk).filter(|seen| !seen.has_dead_blocks())?;
            let is_whole = run.index == 0 && run.count == seen.blocks && run.count > usual;
            let lies_within = from % longest.max(1) + run.count <= longest;
            (is_whole && lies_within && from.is_multiple_of(usual)).then(|| run.end())
        };
        let mut next = 0;
        while let Some(from) = (next..REGION_BLOCKS).find(|block| taken[*block as usize]) {
            if let Some(end) = longer(from) {
                next = end;
                continue;
            }
            let limit = ((from / usual + 1) * usual).min(REGION_BLOCKS);
            let to = (from..limit).find(|block| !taken[*block as usize]);
            next = to.unwrap_or(limit);
            let mut here = record.range(from, next);
            let (first, second) = (here.next(), here.next());
            // A whole chunk at its place, all of it mapped, could not lie better.
            let whole = first.filter(|_| second.is_none()).is_some_and(|run| {
                let seen = seen.get(&run.chunk);
                seen.is_some_and(|seen| seen.blocks == run.count && !seen.has_dead_blocks())
            });
            if !whole {
                layout.stretches.push(from..next);
            }
        }
        let within = |block: u32| {
            let after = layout.stretches.partition_point(|stretch| stretch.end <= block);
            let stretch = layout.stretches.get(after);
            stretch.is_some_and(|stretch| stretch.start <= block)
        };
        let mut counted = BTreeSet::new();
        let mut places = Vec::new();
        for (run, seen) in runs {
            if !within(run.block) {
                continue;
            }
            layout.pieces += 1;
            if counted.insert(run.chunk) {
                let stored = u64::from(seen.info.stored);
                let offset = u64::from(seen.info.offset);
                places.push((seen.info.device, seen.info.segment, offset, offset + stored));
                layout.stored_bytes += stored;
                layout.stored_after_bytes +=
                    stored * u64::from(seen.blocks) / u64::from(seen.blocks_in_all());
            }
        }
        layout.pieces_after = layout.stretches.len() as u32;
        layout.places = count_places(places);
        layout
    }

    /// What its chunks hold that nothing maps, bytes as stored.
    pub fn dead_bytes(&self) -> u64 {
        self.stored_bytes.saturating_sub(self.stored_after_bytes)
    }

    /// Whether so much of it is dead that it pays to write the rest anew.
    pub fn is_wasteful(&self) -> bool {
        self.dead_bytes() >= DEAD_BYTES_MIN && self.dead_bytes() * DEAD_PART >= self.stored_bytes
    }

    /// Whether it lies in so many pieces, or at so many places, that it pays to put it in order.
    pub fn is_scattered(&self) -> bool {
        let least = match self.tier {
            0 => PIECES_MIN,
            _ => PIECES_MIN_BELOW,
        };
        let in_pieces = self.pieces >= least && self.pieces_after * FEWER <= self.pieces;
        in_pieces || self.places >= PIECES_MIN
    }

    /// Whether it lies at so many places that it pays to put it in order for who reads it so.
    pub fn is_slow_in_order(&self) -> bool {
        self.places >= PLACES_MIN
    }

    /// Whether anything gets better at all: for what has been begun.
    pub fn is_gain(&self) -> bool {
        self.dead_bytes() > 0 || self.pieces_after < self.pieces
    }

    /// The blocks to be written anew as one chunk each, ascending: the first of them, of `most_bytes` about; and whether
    /// that is all.
    pub(crate) fn first(&self, most_bytes: u64) -> (&[Range<u32>], bool) {
        let mut bytes = 0;
        let fits = self.stretches.iter().take_while(|stretch| {
            let before = bytes;
            bytes += stretch.len() as u64 * BLOCK_BYTES as u64;
            before < most_bytes
        });
        let count = fits.count().max(1).min(self.stretches.len());
        (&self.stretches[..count], count == self.stretches.len())
    }
}

/// How many requests fetch what lies here: device, segment, and from where to where in it. What lies near is read at once.
fn count_places(mut stored: Vec<(u16, u32, u64, u64)>) -> u32 {
    stored.sort_unstable();
    let near = |one: &(u16, u32, u64, u64), next: &(u16, u32, u64, u64)| {
        (one.0, one.1) == (next.0, next.1) && next.2 <= one.3 + GAP_BYTES
    };
    stored.chunk_by(near).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_near_is_one_place() {
        let far = 8192 + GAP_BYTES;
        assert_eq!(count_places(Vec::new()), 0);
        let stored = vec![(0, 1, far, far + 4096), (0, 1, 0, 4096), (0, 1, 4096, 8192)];
        assert_eq!(count_places(stored), 1);
        let stored = vec![(0, 1, far + 1, far + 4096), (0, 1, 4096, 8192)];
        assert_eq!(count_places(stored), 2);
        let stored = vec![(0, 1, 0, 4096), (0, 2, 0, 4096), (1, 1, 4096, 8192)];
        assert_eq!(count_places(stored), 3, "other segments and devices");
    }

    #[test]
    fn it_is_slow_where_it_lies_at_many_places_and_not_where_it_lies_in_many_pieces() {
        let at = |places| Layout {
            tier: 0,
            pieces: 128,
            pieces_after: 64,
            places,
            stored_bytes: 1 << 20,
            stored_after_bytes: 1 << 20,
            stretches: Vec::new(),
        };
        let worth = |places| (at(places).is_slow_in_order(), at(places).is_scattered());
        assert_eq!(worth(PLACES_MIN - 1), (false, false));
        assert_eq!(worth(PLACES_MIN), (true, false));
        assert_eq!(worth(PIECES_MIN), (true, true));
    }
}
