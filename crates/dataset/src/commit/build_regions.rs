//! Building the region records of an object: what was written and what became holes, over what is recorded.
//!
//! Invariant: what was written ahead is only referred to.

use super::{
    build::{Builder, Outcome},
    content::Placed,
    freeze::FrozenObject,
    preallocated_count::Counting,
};
use crate::{
    live::{CachedRegion, Fragment, Shared, part_of},
    objects::Layer,
    posix::FsError,
    records::{REGION_BLOCKS, RegionRecord, VersionedBatch, keys},
};
use std::collections::BTreeMap;
use terrace_cache::{Access, LONG_BLOCKS};
use terrace_store::{BLOCK_BYTES, ChunkId};

const BLOCK: u64 = BLOCK_BYTES as u64;
const PER_REGION: u64 = REGION_BLOCKS as u64;
/// Void regions up to which each is looked up; above, the records that exist are listed.
const FEW_REGIONS: u64 = 16;

/// A change of some blocks of one region (numbers within the region).
enum Edit {
    Void(u32, u32),
    Map {
        block: u32,
        count: u32,
        chunk: ChunkId,
        index: u32,
    },
}

impl Builder {
    /// The region records of one object; returns the change of its mapped blocks.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn build_regions(
        &self,
        batch: &mut VersionedBatch,
        frozen: &FrozenObject,
        layer: &Layer,
        placed: &[Placed],
        fresh: bool,
        recorded_size: u64,
        counting: &mut Option<Counting>,
        outcome: &mut Outcome,
    ) -> Result<i64, FsError> {
        let (dataset, body) = (self.dataset.number(), frozen.inode.body);
        let edits = self.edits(body, layer, placed, (!fresh).then_some(recorded_size))?;
        let mut change = 0i64;
        let minutes = self.dataset.minutes();
        let environment = self.dataset.environment();
        let heat = &environment.heat;
        let chunk_bytes = self.dataset.settings().chunk_bytes;
        for (region, edits) in edits {
            let cached = if fresh {
                None
            } else {
                Some(self.table.region(body, region)?)
            };
            let old = cached
                .as_ref()
                .and_then(|cached| Some((cached.birth, cached.record.as_ref()?)));
            let mut record = old.map_or_else(RegionRecord::new, |(_, record)| record.clone());
            let mut overwritten = Vec::new();
            for edit in edits {
                match edit {
                    Edit::Void(from, to) => record.punch(from, to),
                    Edit::Map {
                        block,
                        count,
                        chunk,
                        index,
                    } => {
                        // Else what is written over would be the coldest of all.
                        for at in 0..count {
                            if let Some(before) = record.lookup(block + at) {
                                overwritten.push(before.0);
                                let long = at == 0 && count >= LONG_BLOCKS;
                                environment.chunk_heat.inherit(before, (chunk, index + at), long);
                            }
                        }
                        record.overwrite(block, count, chunk, index);
                    }
                }
            }
            let before = old.map_or(0, |(_, record)| record.mapped_blocks());
            if old.map_or_else(|| record.is_empty(), |(_, old)| *old == record) {
                continue;
            }
            change += i64::from(record.mapped_blocks()) - i64::from(before);
            if let Some(counting) = counting {
                counting.change(region, old.map(|(_, record)| record), &record);
            }
            let shared = Shared::note(&self.dataset, batch, body, region, cached.as_deref(), &record)?;
            batch.put_region(body, region, old, Some(&record));
            heat.record(dataset, body, region as u32, Access::Write, 1.0, minutes);
            if old.is_some() && record.is_in_pieces(chunk_bytes) {
                let fragment = Fragment {
                    dataset,
                    body,
                    region,
                    object: frozen.object.number,
                };
                // Of a chunk of which nothing is left its blocks come back by themselves.
                let dead = overwritten
                    .chunk_by(|one, next| one == next)
                    .filter(|same| record.maps(same[0]))
                    .map(|same| same.len() as u32);
                outcome.fragments.push((fragment, part_of(dead.sum(), before)));
            }
            let record = (!record.is_empty()).then_some(record);
            outcome.regions.push((
                (body, region),
                CachedRegion {
                    birth: batch.checkpoint(),
                    record,
                    shared,
                },
            ));
        }
        Ok(change)
    }

    /// What changes, by region; nothing goes of an object that has no records yet, which are of so many bytes otherwise.
    fn edits(
        &self,
        body: u64,
        layer: &Layer,
        placed: &[Placed],
        recorded_size: Option<u64>,
    ) -> Result<BTreeMap<u64, Vec<Edit>>, FsError> {
        let mut edits: BTreeMap<u64, Vec<Edit>> = BTreeMap::new();
        if let Some(recorded_size) = recorded_size {
            let recorded_blocks = recorded_size.div_ceil(BLOCK);
            for (from, to) in layer.void() {
                self.void_edits(body, from, to.min(recorded_blocks), &mut edits)?;
            }
        }
        for (region, record) in layer.mapped() {
            for run in record.runs() {
                edits.entry(*region).or_default().push(Edit::Map {
                    block: run.block,
                    count: run.count,
                    chunk: run.chunk,
                    index: run.index,
                });
            }
        }
        for place in placed {
            let block = (place.block % PER_REGION) as u32;
            let edit = match place.chunk {
                Some(chunk) => Edit::Map {
                    block,
                    count: place.count,
                    chunk,
                    index: 0,
                },
                None => Edit::Void(block, block + place.count),
            };
            edits.entry(place.block / PER_REGION).or_default().push(edit);
        }
        Ok(edits)
    }

    fn void_edits(
        &self,
        body: u64,
        from: u64,
        to: u64,
        edits: &mut BTreeMap<u64, Vec<Edit>>,
    ) -> Result<(), FsError> {
        if from >= to {
            return Ok(());
        }
        let mut push = |region: u64| {
            let first = from.max(region * PER_REGION) - region * PER_REGION;
            let last = to.min((region + 1) * PER_REGION) - region * PER_REGION;
            edits
                .entry(region)
                .or_default()
                .push(Edit::Void(first as u32, last as u32));
        };
        let (first, last) = (from / PER_REGION, (to - 1) / PER_REGION);
        if last - first < FEW_REGIONS {
            (first..=last).for_each(push);
            return Ok(());
        }
        let start = keys::region(self.dataset.number(), body, first);
        let end = keys::region(self.dataset.number(), body, last + 1);
        for found in self.dataset.records().each(start, end, 1024) {
            push(keys::parse_region(&found?.0)?.2);
        }
        Ok(())
    }
}
