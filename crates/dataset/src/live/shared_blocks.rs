//! `Shared`: which blocks of a volume's region the newest held checkpoint has as well, so that it is known how much of a volume
//! is its own: what it writes over of the rest goes on taking room, and a reservation has to set aside as much.
//!
//! A block is shared when the live record maps it to the same block of the same chunk as the version that the newest held
//! checkpoint sees. The sum is kept with the dataset's counters: all that is mapped when a checkpoint is held, less what each
//! commit writes over or drops. When the newest held checkpoint goes and an older one becomes it, the regions are counted again
//! in the background (`sweep.rs`), in the order of their keys: commits count what lies before the place that was reached.
//!
//! Invariants: the sum is that of a walk (`check.rs`), whatever order commits, relayouts and crashes come in; a commit reads the
//! held version of a region at most once, and only if it was written before since and is not in RAM.

use terrace_store::StoreError;

use super::{dataset_state::DatasetState, object_table::CachedRegion};
use crate::{
    posix::FsError,
    records::{REGION_BLOCKS, RegionRecord, VersionedBatch, keys},
};

const WORDS: usize = REGION_BLOCKS as usize / 64;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shared {
    /// With which checkpoint.
    held: u64,
    blocks: [u64; WORDS],
    /// The newest chunk of what that one sees: what is mapped to a newer one is not shared.
    newest_chunk: u64,
}

/// Chunk and index of each block.
type Mapped = [Option<(u64, u32)>; REGION_BLOCKS as usize];

fn mapped(record: Option<&RegionRecord>) -> Mapped {
    let mut blocks = [None; REGION_BLOCKS as usize];
    for run in record.map_or(&[][..], RegionRecord::runs) {
        for at in 0..run.count {
            if let Some(block) = blocks.get_mut((run.block + at) as usize) {
                *block = Some((run.chunk.0, run.index + at));
            }
        }
    }
    blocks
}

impl Shared {
    /// Of what a held checkpoint sees of a region and what is there now.
    pub(crate) fn between(held: u64, seen: Option<&RegionRecord>, now: Option<&RegionRecord>) -> Self {
        let newest_chunk = seen.map_or(&[][..], RegionRecord::runs).iter();
        let mut shared = Self {
            held,
            blocks: [0; WORDS],
            newest_chunk: newest_chunk.map(|run| run.chunk.0).max().unwrap_or(0),
        };
        let both = mapped(seen).into_iter().zip(mapped(now));
        for (block, (seen, now)) in both.enumerate() {
            if seen.is_some() && seen == now {
                shared.set(block);
            }
        }
        shared
    }

    fn set(&mut self, block: usize) {
        self.blocks[block / 64] |= 1 << (block % 64);
    }

    fn is_set(&self, block: usize) -> bool {
        self.blocks[block / 64] >> (block % 64) & 1 == 1
    }

    /// Counts in `batch` what the change of a region from `cached` (`None`: it is not there) to `new` makes of the blocks that
    /// the newest held checkpoint has as well; what they are then, to be kept with the new record. The commit lock is held.
    pub(crate) fn note(
        dataset: &DatasetState,
        batch: &mut VersionedBatch,
        body: u64,
        region: u64,
        cached: Option<&CachedRegion>,
        new: &RegionRecord,
    ) -> Result<Option<Self>, FsError> {
        let Some(held) = batch.newest_held().filter(|_| dataset.kind().is_volume()) else {
            return Ok(None);
        };
        let key = keys::region(dataset.number(), body, region);
        let look = || -> Result<_, StoreError> { dataset.records().past_region(&key, held) };
        let old = cached.and_then(|cached| cached.record.as_ref());
        let known = cached
            .and_then(|cached| cached.shared)
            .filter(|shared| shared.held == held);
        let before = match (cached, known) {
            (Some(cached), _) if old.is_some() && cached.birth <= held => Shared::between(held, old, old),
            (_, Some(known)) => known,
            _ => Shared::between(held, look()?.as_ref(), old),
        };
        let mut after = Shared {
            blocks: [0; WORDS],
            ..before
        };
        let mut is_back = false;
        for (block, (old, new)) in mapped(old).into_iter().zip(mapped(Some(new))).enumerate() {
            match new {
                Some(_) if new == old && before.is_set(block) => after.set(block),
                // What was written over may have been written over again with what was there before.
                Some((chunk, _)) if new != old => is_back |= chunk <= before.newest_chunk,
                _ => {}
            }
        }
        if is_back {
            let seen = match cached {
                Some(cached) if old.is_some() && cached.birth <= held => old.cloned(),
                _ => look()?,
            };
            after = Shared::between(held, seen.as_ref(), Some(new));
        }
        if dataset.counts_shared(&key) {
            batch.count_shared(i64::from(after.count()) - i64::from(before.count()));
        }
        Ok(Some(after))
    }

    /// How many.
    pub(crate) fn count(&self) -> u32 {
        self.blocks.iter().map(|word| word.count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use terrace_store::ChunkId;

    use super::*;

    fn record(runs: &[(u32, u32, u64, u32)]) -> RegionRecord {
        let mut record = RegionRecord::new();
        for &(block, count, chunk, index) in runs {
            record.overwrite(block, count, ChunkId(chunk), index);
        }
        record
    }

    #[test]
    fn what_is_mapped_to_the_same_blocks_of_the_same_chunks_is_shared() {
        let seen = record(&[(0, 4, 7, 0), (8, 4, 9, 0), (252, 4, 8, 0)]);
        let count =
            |now: &[(u32, u32, u64, u32)]| Shared::between(1, Some(&seen), Some(&record(now))).count();
        assert_eq!(count(&[(0, 4, 7, 0), (8, 4, 9, 0), (252, 4, 8, 0)]), 12);
        assert_eq!(count(&[(0, 4, 7, 0), (2, 1, 20, 0), (255, 1, 8, 3)]), 4);
        assert_eq!(
            count(&[(1, 3, 7, 0), (8, 4, 21, 0)]),
            0,
            "other places, other chunks"
        );
        assert_eq!(Shared::between(1, None, Some(&seen)).count(), 0);
        let shared = Shared::between(1, Some(&seen), Some(&seen));
        assert_eq!(
            (shared.newest_chunk, shared.is_set(255), shared.is_set(251)),
            (9, true, false)
        );
    }
}
