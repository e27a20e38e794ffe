//! Hot pieces: of a long chunk whose reads go to few of its blocks only these blocks move up, as chunks of their own
//! (`dataset/src/relayout/split_hot_blocks.rs` does that). It asks nothing of the slow device, where moving the chunk takes a request.
//!
//! Invariants: those of hot chunks (`hot_chunks.rs`), in whose rounds and jobs they come up: marks, exchanges, pins, windows, rates, the
//! courtesy to users. The chunk that they were cut out of is left where it is with their blocks in it, so it costs room: no more than what
//! they take on the faster tiers, and none where the pool is nearly full. Nothing is cut out of what lies on the fastest tier.
//! What was read once comes up only where reads go to single blocks, and nothing has to make way for it.

use std::collections::BTreeMap;

use terrace_cache::{ChunkHeat, HotChunk, LONG_BLOCKS, reads_of_piece};
use terrace_dataset::{Fragment, HotPiece};
use terrace_store::{ChunkId, StoreError, tier_bit};
use terrace_sync::MutexGuard;

use crate::{
    extent::Moving,
    mover::{Guard, Mover, rising_piece_bytes},
    tiers::may_rise,
};

/// Chunks whose blocks are moved in one step.
const STEP_PIECES: usize = 64;
/// What is on its way at most, chunks.
const PIECES_MAX: usize = 4096;
/// Of the pool, one part in so many is left free.
const FREE_PART: u64 = 16;
/// Of a chunk, one part in so many of its blocks is many.
const MANY_PART: u32 = 4;

/// What is to move up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Hot {
    /// A chunk.
    Chunk(Moving),
    /// Some blocks of a chunk.
    Piece(HotPiece),
}

impl Hot {
    pub(crate) fn id(&self) -> ChunkId {
        match self {
            Self::Chunk(moving) => moving.id(),
            Self::Piece(piece) => piece.chunk,
        }
    }

    /// Stored bytes, at most.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Chunk(moving) => moving.bytes(),
            Self::Piece(piece) => piece.bytes(),
        }
    }

    /// What of it is read at least so often now, and how often at least.
    pub(crate) fn still(&self, heat: &ChunkHeat, least: u8) -> Option<(u8, Self)> {
        match self {
            Self::Chunk(moving) => {
                let reads = heat.reads(moving.id(), moving.blocks());
                (reads >= least).then_some((reads, *self))
            }
            Self::Piece(piece) => {
                let least = reads_of_piece(least);
                let (id, hot) = (piece.chunk, heat.hot_blocks(piece.chunk, u32::BITS, least));
                let blocks = piece.blocks & hot;
                let each = (0..u32::BITS).filter(|block| blocks >> block & 1 == 1);
                let reads = each.map(|block| heat.reads_of_block(id, block)).min()?;
                Some((reads, Self::Piece(HotPiece { blocks, ..*piece })))
            }
        }
    }
}

/// Blocks of long chunks on their way up.
#[derive(Default)]
pub(crate) struct HotPieces {
    /// By the tier where they shall lie, each chunk once.
    by_target: BTreeMap<u8, BTreeMap<(Fragment, ChunkId), u32>>,
}

impl HotPieces {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_target.is_empty()
    }

    pub(crate) fn admit(&mut self, target: u8, piece: HotPiece) {
        let pieces = self.by_target.entry(target).or_default();
        if pieces.len() < PIECES_MAX {
            *pieces.entry((piece.fragment, piece.chunk)).or_default() |= piece.blocks;
        }
    }

    fn of_target(pieces: &BTreeMap<(Fragment, ChunkId), u32>) -> impl Iterator<Item = HotPiece> + '_ {
        pieces.iter().map(|((fragment, chunk), blocks)| HotPiece {
            fragment: *fragment,
            chunk: *chunk,
            blocks: *blocks,
        })
    }

    pub(crate) fn bytes_for(&self, tier: u8) -> u64 {
        let pieces = self.by_target.get(&tier);
        let pieces = pieces.into_iter().flat_map(Self::of_target);
        pieces.map(|piece| piece.bytes()).sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        let pieces = self.by_target.values().flat_map(Self::of_target);
        pieces.map(|piece| piece.bytes()).sum()
    }

    /// Where the next of them go.
    pub(crate) fn next_target(&self) -> Option<u8> {
        self.by_target.keys().next().copied()
    }

    /// The next of them for a tier, those of a region side by side: at most so many, and about so many bytes.
    fn take(&mut self, target: u8, count: usize, most_bytes: u64) -> Vec<HotPiece> {
        let mut taken = Vec::new();
        let Some(pieces) = self.by_target.get_mut(&target) else {
            return taken;
        };
        let mut bytes = 0;
        let fits = Self::of_target(pieces).take(count).take_while(|piece| {
            let before = bytes;
            bytes += piece.bytes();
            before < most_bytes
        });
        taken.extend(fits);
        for piece in &taken {
            pieces.remove(&(piece.fragment, piece.chunk));
        }
        if pieces.is_empty() {
            self.by_target.remove(&target);
        }
        taken
    }
}

impl Mover {
    /// Whether the pool has room for what pieces leave behind.
    pub(crate) fn may_cut(&self) -> bool {
        let space = self.environment.store.space();
        space.free_bytes() >= space.size_bytes / FREE_PART
    }

    /// What of a hot chunk is to move up: all of it, or those of its blocks that its reads go to, if it may be cut.
    pub(crate) fn as_hot(&self, hot: &HotChunk, moving: Moving, least: u8, may_cut: bool) -> Option<Hot> {
        let heat = &self.environment.chunk_heat;
        let (id, blocks) = (moving.id(), moving.blocks());
        if !heat.is_concentrated(id, blocks) {
            let is_hot = heat.reads(id, blocks) >= least;
            // Reads that are too few to tell, where most go to single blocks: so do these, until many of its blocks were read.
            let read = heat.hot_blocks(id, blocks, 1).count_ones();
            let few = read == 1 || read * MANY_PART < blocks;
            if blocks < LONG_BLOCKS || !few || !heat.goes_to_single_blocks() {
                // What is wanted for one block of it is not hot as a whole.
                return is_hot.then_some(Hot::Chunk(moving));
            }
        }
        if !may_cut {
            return None;
        }
        let fragment = Fragment {
            dataset: hot.dataset,
            body: hot.body,
            region: u64::from(hot.region),
            object: hot.object,
        };
        let mut hot_blocks = heat.hot_blocks(id, blocks, reads_of_piece(least));
        if heat.least_of_piece() == 1 {
            // Once is not worth another read of the device: what RAM has dropped already comes up the next time.
            let cache = &self.environment.cache;
            let here = |block: &u32| cache.block(id, *block as usize).is_some();
            let once = heat.hot_blocks(id, blocks, 1) & !hot_blocks;
            let once = (0..blocks.min(u32::BITS)).filter(|block| once >> block & 1 == 1);
            hot_blocks |= once.filter(here).fold(0, |bits, block| bits | 1 << block);
        }
        if hot_blocks.count_ones() == blocks {
            return Some(Hot::Chunk(moving));
        }
        let (blocks, chunk) = (hot_blocks, id);
        (blocks != 0).then_some(Hot::Piece(HotPiece {
            fragment,
            chunk,
            blocks,
        }))
    }

    /// Moves some of the blocks that are to rise; how many bytes, `None` if there are none.
    pub(crate) fn raise_pieces(
        &self,
        inner: &mut Guard<'_>,
        is_open: &[bool],
        now: u64,
    ) -> Result<Option<u64>, StoreError> {
        let Some(target) = inner.hot_chunks.pieces.next_target() else {
            return Ok(None);
        };
        let most_bytes = rising_piece_bytes(inner, target);
        let pieces = inner.hot_chunks.pieces.take(target, STEP_PIECES, most_bytes);
        let at = usize::from(target);
        let bytes = pieces.iter().map(HotPiece::bytes).sum();
        // Others have written since.
        let tiers = self.usage(inner);
        let has_room = tiers.get(at).is_some_and(|tier| {
            let policy = inner.policies.get(at);
            may_rise(tier, policy, bytes)
        });
        let same_tiers = self.tiers_generation.load(std::sync::atomic::Ordering::SeqCst) == inner.generation;
        if !has_room || !same_tiers || is_open.get(at) != Some(&true) || !self.is_enabled() {
            return Ok(Some(0));
        }
        self.show_hot_chunks(inner, target)?;
        let foreground = &self.environment.foreground;
        let (raised, mut moved) = MutexGuard::unlocked(inner, || {
            let _disturbed = foreground.disturb();
            let (below, bytes) = self.still_below(pieces, target);
            (self.datasets.raise(&below, target), bytes)
        });
        let ended = self.environment.clock.monotonic_nanoseconds();
        let owed = now + inner.courtesy.wait(now);
        inner.courtesy.worked(foreground, now, ended);
        if self.environment.chunk_heat.least_of_piece() == 1 {
            inner.courtesy.owe(owed);
        }
        // What finds no room, or cannot be had now, is found again when it is read; what ails the store others tell.
        let raised = raised.unwrap_or(0);
        if raised > 0 {
            moved.insert(target, raised);
            inner.rising_from = moved.keys().fold(0, |tiers, tier| tiers | tier_bit(*tier));
            inner.rates.take(&moved);
        }
        Ok(Some(raised))
    }

    /// Those of which the chunk has not come up as a whole meanwhile, and what of them lies on each tier, bytes.
    fn still_below(&self, mut pieces: Vec<HotPiece>, target: u8) -> (Vec<HotPiece>, BTreeMap<u8, u64>) {
        let mut bytes = BTreeMap::new();
        pieces.retain(|piece| match self.environment.store.chunk_tier(piece.chunk) {
            Ok(Some(tier)) if tier > target => {
                *bytes.entry(tier).or_default() += piece.bytes();
                true
            }
            _ => false,
        });
        (pieces, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_chunk_go_together_and_no_more_wait_than_there_is_room_for() {
        let mut pieces = HotPieces::default();
        let piece = |region, chunk, blocks| HotPiece {
            fragment: Fragment {
                dataset: 1,
                body: 2,
                region,
                object: 2,
            },
            chunk: ChunkId(chunk),
            blocks,
        };
        pieces.admit(0, piece(5, 7, 1));
        pieces.admit(0, piece(4, 9, 3));
        pieces.admit(0, piece(5, 7, 4));
        pieces.admit(1, piece(5, 8, 1));
        assert_eq!((pieces.bytes_for(0), pieces.bytes()), (4 * 4096, 5 * 4096));
        let mut next = |count, most_bytes| {
            let target = pieces.next_target()?;
            Some((target, pieces.take(target, count, most_bytes)))
        };
        assert_eq!(next(1, u64::MAX), Some((0, vec![piece(4, 9, 3)])));
        assert_eq!(next(9, u64::MAX), Some((0, vec![piece(5, 7, 5)])));
        assert_eq!(next(9, u64::MAX), Some((1, vec![piece(5, 8, 1)])));
        assert_eq!(next(9, u64::MAX), None);
        assert!(pieces.is_empty());
        // By bytes, but at least one.
        (0..3).for_each(|chunk| pieces.admit(0, piece(0, chunk, 3)));
        assert_eq!(pieces.take(0, 9, 1), [piece(0, 0, 3)]);
        assert_eq!(pieces.take(0, 9, 3 * 4096), [piece(0, 1, 3), piece(0, 2, 3)]);
        for chunk in 0..2 * PIECES_MAX as u64 {
            pieces.admit(0, piece(0, chunk, 1));
        }
        assert_eq!(pieces.bytes(), PIECES_MAX as u64 * 4096);
    }
}
