//! Hot pieces: single blocks of long chunks that are read often get chunks of their own on a faster tier. The others stay where they
//! are.
//!
//! Invariants: those of a relayout (`relayout.rs`), by which the records are replaced: same content and birth, only blocks that are
//! still mapped as they were read, old or new after a crash, no version moves to history, a record that a past state has taken
//! over meanwhile is left alone. Other than there, the chunk may be shared: the piece is a copy then, as are the blocks that nothing maps
//! any more in a chunk that is not; who asks bounds that by the room on the tier. Content comes from RAM, where the reads have put it
//! that made it hot; of what is not there, one read of each chunk brings what lies between.

use super::{
    layout::Cut,
    relayout::{Anew, Relaid, Relayouter},
};
use crate::{
    commit::{compression_of, dedup_of},
    live::Fragment,
    posix::FsError,
    records::{CHUNK_BLOCKS, REGION_BLOCKS, RegionRecord},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use bytes::Bytes;
use terrace_store::{BLOCK_BYTES, ChunkId, ChunkPart, Owner, Piece, Placement, StoreError, Trial};

/// Neighbours that go together, blocks: more of them sink together as well.
const PIECE_BLOCKS: u32 = 4;

/// Blocks of a chunk that are to get chunks of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotPiece {
    /// The region that maps them.
    pub fragment: Fragment,
    /// The chunk.
    pub chunk: ChunkId,
    /// Which of its blocks, as bits.
    pub blocks: u32,
}

impl HotPiece {
    /// What they take, bytes, before compression.
    pub fn bytes(&self) -> u64 {
        u64::from(self.blocks.count_ones()) * BLOCK_BYTES as u64
    }
}

/// Blocks of a region that go together, and where they come from.
struct Cutting {
    blocks: Range<u32>,
    chunk: ChunkId,
    index: u32,
}

/// What is to be cut out of a record for some pieces of its region.
fn cuttings(record: &RegionRecord, pieces: &[HotPiece]) -> Vec<Cutting> {
    let mut found: Vec<Cutting> = Vec::new();
    for run in record.runs() {
        let Some(piece) = pieces.iter().find(|piece| piece.chunk == run.chunk) else {
            continue;
        };
        for at in (0..run.count).filter(|at| piece.blocks >> ((run.index + at) % CHUNK_BLOCKS) & 1 == 1) {
            let (block, index) = (run.block + at, run.index + at);
            match found.last_mut() {
                Some(last)
                    if last.chunk == run.chunk
                        && last.blocks.end == block
                        && last.index + last.blocks.len() as u32 == index
                        && (last.blocks.len() as u32) < PIECE_BLOCKS =>
                {
                    last.blocks.end += 1;
                }
                _ => found.push(Cutting {
                    blocks: block..block + 1,
                    chunk: run.chunk,
                    index,
                }),
            }
        }
    }
    found
}

impl Relayouter {
    /// Writes these pieces, those of a region side by side, as chunks of their own to this tier, and maps them there, all in one batch;
    /// returns how many bytes of content that were.
    pub(crate) fn raise_pieces(&self, pieces: &[HotPiece], tier: u8) -> Result<u64, FsError> {
        if self.dataset.is_gone() {
            return Ok(0);
        }
        let mut regions = Vec::new();
        for pieces in pieces.chunk_by(|one, next| one.fragment == next.fragment) {
            let fragment = pieces[0].fragment;
            if !self.is_body_of(&fragment)? {
                continue;
            }
            let seen = self.table.region(fragment.body, fragment.region)?;
            let cut = seen.record.as_ref().map(|record| cuttings(record, pieces));
            let plain = match &seen.record {
                Some(record) => self.stored_plain(&fragment, record)?,
                None => None,
            };
            if let (Some(cut), Some(plain)) = (cut.filter(|cut| !cut.is_empty()), plain) {
                regions.push((fragment, seen, plain, cut));
            }
        }
        let content = self.content_of_blocks(regions.iter().flat_map(|(.., cut)| cut));
        let (mut places, mut contents) = (Vec::new(), Vec::new());
        for (at, (.., cut)) in regions.iter().enumerate() {
            for cutting in cut {
                let blocks = (0..cutting.blocks.len() as u32)
                    .map(|block| content.get(&(cutting.chunk, cutting.index + block)));
                let Some(blocks) = blocks.collect::<Option<Vec<&Bytes>>>() else {
                    continue;
                };
                let bytes = match blocks.as_slice() {
                    [one] => (*one).clone(),
                    more => Bytes::from(more.iter().map(|block| &block[..]).collect::<Vec<_>>().concat()),
                };
                // Only the last of a file is shorter; zeroes make no chunk.
                let whole = (cutting.blocks.len() - 1) * BLOCK_BYTES;
                if bytes.len() > whole && bytes.iter().any(|byte| *byte != 0) {
                    places.push((at, cutting));
                    contents.push(bytes);
                }
            }
        }
        if contents.is_empty() {
            return Ok(0);
        }
        let (store, settings) = (self.dataset.store(), self.dataset.settings());
        let _room = store.reserve(contents.iter().map(|bytes| bytes.len() as u64).sum())?;
        let of_place = places.iter().zip(&contents);
        let chunks = of_place.map(|((at, cutting), bytes)| {
            let (fragment, seen, plain, _) = &regions[*at];
            Piece {
                content: bytes,
                compression: compression_of(&settings, *plain),
                trial: Trial::Untried,
                dedup: dedup_of(&settings, *plain),
                placement: Placement::Tier { tier, strict: true },
                owner: Owner {
                    dataset: self.dataset.number(),
                    object: fragment.object,
                    block: fragment.region * u64::from(REGION_BLOCKS) + u64::from(cutting.blocks.start),
                    checkpoint: seen.birth,
                },
                privileged: true,
            }
        });
        let written = store.write_chunks(&chunks.collect::<Vec<_>>())?;
        let mut anew = Vec::with_capacity(regions.len());
        for (at, (fragment, seen, ..)) in regions.iter().enumerate() {
            let of_region = places.iter().zip(&written).filter(|((of, _), _)| *of == at);
            let places: Vec<_> = of_region
                .map(|((_, cutting), chunk)| (cutting.blocks.clone(), chunk.clone()))
                .collect();
            if !places.is_empty() {
                let (fragment, seen, done) = (*fragment, seen.clone(), Relaid::Left);
                anew.push((
                    at,
                    Anew {
                        fragment,
                        seen,
                        places,
                        done,
                        _room: None,
                    },
                ));
            }
        }
        let replaced = self.replace_records(&anew, Cut::InOrder)?;
        let there: BTreeSet<usize> = anew
            .iter()
            .zip(replaced)
            .filter_map(|((at, _), replaced)| replaced.then_some(*at))
            .collect();
        let mut raised = 0;
        for (((at, cutting), chunk), bytes) in places.iter().zip(&written).zip(contents) {
            if there.contains(at) {
                raised += bytes.len() as u64;
                self.note_raised(cutting, chunk.id, bytes, tier);
            }
        }
        Ok(raised)
    }

    /// The piece is read where it is now, and is as hot there.
    fn note_raised(&self, cutting: &Cutting, new: ChunkId, bytes: Bytes, tier: u8) {
        let environment = self.dataset.environment();
        let (heat, cache) = (&environment.chunk_heat, &environment.cache);
        let mut cached = false;
        for at in 0..cutting.blocks.len() as u32 {
            let old = (cutting.chunk, cutting.index + at);
            heat.inherit(old, (new, at), false);
            cached |= cache.block(old.0, old.1 as usize).is_some();
        }
        if cached {
            cache.moved((cutting.chunk, cutting.index as usize), new, bytes);
        }
        // Equal content may have been there already, and lie elsewhere.
        if matches!(self.dataset.store().chunk_tier(new), Ok(Some(there)) if there == tier) {
            heat.rose(new);
        }
    }

    /// Content of blocks by chunk and place in it, as far as it can be had: what cannot be read stays where it is, for readers and for
    /// the scrub to tell of.
    fn content_of_blocks<'a>(
        &self,
        wanted: impl Iterator<Item = &'a Cutting>,
    ) -> BTreeMap<(ChunkId, u32), Bytes> {
        let cache = &self.dataset.environment().cache;
        let (mut content, mut missing) = (BTreeMap::new(), BTreeMap::<ChunkId, Range<usize>>::new());
        for cutting in wanted {
            for at in 0..cutting.blocks.len() as u32 {
                let index = cutting.index + at;
                if let Some(block) = cache.block(cutting.chunk, index as usize) {
                    content.insert((cutting.chunk, index), block);
                    continue;
                }
                let block = index as usize * BLOCK_BYTES..(index as usize + 1) * BLOCK_BYTES;
                let range = missing.entry(cutting.chunk).or_insert(block.clone());
                *range = range.start.min(block.start)..range.end.max(block.end);
            }
        }
        let parts: Vec<ChunkPart> = missing
            .into_iter()
            .map(|(id, range)| ChunkPart {
                id,
                range: Some(range),
            })
            .collect();
        if parts.is_empty() {
            return content;
        }
        let store = self.dataset.store();
        for (part, found) in parts.iter().zip(store.read_chunk_parts(&parts)) {
            let start = part.range.as_ref().map_or(0, |range| range.start);
            let (start, found) = match found {
                Ok(found) => (start, found),
                // The last chunk of a file is shorter than its blocks.
                Err(StoreError::Invalid(_)) => match store.read_chunk(part.id) {
                    Ok(found) => (0, found),
                    Err(_) => continue,
                },
                Err(_) => continue,
            };
            for from in (0..found.len()).step_by(BLOCK_BYTES) {
                let index = ((start + from) / BLOCK_BYTES) as u32;
                let block = found.slice(from..(from + BLOCK_BYTES).min(found.len()));
                content.entry((part.id, index)).or_insert(block);
            }
        }
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_out_is_what_is_mapped_of_it_neighbours_together() {
        let (one, two) = (ChunkId(7), ChunkId(8));
        let mut record = RegionRecord::new();
        record.overwrite(32, 32, one, 0);
        record.overwrite(64, 32, two, 0);
        // Written over.
        record.overwrite(40, 1, ChunkId(9), 0);
        let fragment = Fragment {
            dataset: 1,
            body: 2,
            region: 3,
            object: 2,
        };
        let piece = |chunk, blocks| HotPiece {
            fragment,
            chunk,
            blocks,
        };
        let pieces = [piece(one, 0x0000_0382), piece(two, 0x8000_003f)];
        let found = cuttings(&record, &pieces);
        let found: Vec<_> = found
            .iter()
            .map(|cutting| (cutting.blocks.clone(), cutting.chunk, cutting.index))
            .collect();
        assert_eq!(
            found,
            [
                (33..34, one, 1),
                (39..40, one, 7),
                (41..42, one, 9),
                (64..68, two, 0),
                (68..70, two, 4),
                (95..96, two, 31)
            ]
        );
        assert_eq!(pieces.map(|piece| piece.bytes() / BLOCK_BYTES as u64), [4, 7]);
    }
}
