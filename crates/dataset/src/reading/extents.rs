//! Where a file has data and where holes, and the chunks that it maps: for seeking, sharing and counting, without its content.
//!
//! Invariants: what is in RAM hides what records map; what was written ahead is shared with nobody before it is committed.

use super::{
    layers::{Look, Source, is_ahead, look},
    lookup::{BLOCK, PER_REGION},
};
use crate::{
    live::{DatasetState, ObjectTable},
    objects::Object,
    posix::{FsError, SeekTarget},
    records::{FileKind, RegionRecord, keys},
};
use std::sync::Arc;

use terrace_store::ChunkId;

/// See the module.
pub(crate) struct Extents {
    dataset: Arc<DatasetState>,
    table: Arc<ObjectTable>,
}

impl Extents {
    pub(crate) fn new(dataset: &Arc<DatasetState>, table: &Arc<ObjectTable>) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
        })
    }

    pub(crate) fn is_hole(&self, object: &Arc<Object>, block: u64) -> Result<bool, FsError> {
        let body = {
            let state = object.state();
            match look(&state, block) {
                Look::Ram => return Ok(false),
                Look::Void => return Ok(true),
                Look::Source(Source::Chunk { .. }) => return Ok(false),
                Look::Source(Source::Below) => state.inode.body,
            }
        };
        let cached = self.table.region(body, block / PER_REGION)?;
        Ok(cached
            .record
            .as_ref()
            .is_none_or(|record| record.lookup((block % PER_REGION) as u32).is_none()))
    }

    /// SEEK_DATA and SEEK_HOLE in units of blocks.
    pub(crate) fn seek_object(
        &self,
        object: &Arc<Object>,
        offset: u64,
        target: SeekTarget,
    ) -> Result<u64, FsError> {
        let size = object.state().inode.size;
        if offset >= size {
            return Err(FsError::NoData);
        }
        let end = size.div_ceil(BLOCK);
        let mut block = offset / BLOCK;
        while block < end {
            let region = block / PER_REGION;
            let mapped = self.mapped_blocks(object, region)?;
            let first = (block % PER_REGION) as usize;
            let want = target == SeekTarget::Data;
            if let Some(found) = mapped[first..].iter().position(|is_mapped| *is_mapped == want) {
                let at = (block + found as u64) * BLOCK;
                return match target {
                    _ if at < size => Ok(at.max(offset)),
                    SeekTarget::Data => Err(FsError::NoData),
                    SeekTarget::Hole => Ok(size),
                };
            }
            block = match target {
                SeekTarget::Hole => (region + 1) * PER_REGION,
                SeekTarget::Data => match self.next_region(object, region + 1, end.div_ceil(PER_REGION))? {
                    Some(next) => next * PER_REGION,
                    None => return Err(FsError::NoData),
                },
            };
        }
        if target == SeekTarget::Data {
            Err(FsError::NoData)
        } else {
            Ok(size)
        }
    }

    /// Which blocks of a region are not holes.
    pub(crate) fn mapped_blocks(
        &self,
        object: &Arc<Object>,
        region: u64,
    ) -> Result<[bool; PER_REGION as usize], FsError> {
        let mut mapped = [false; PER_REGION as usize];
        let mut below = Vec::new();
        let body = {
            let state = object.state();
            for at in 0..PER_REGION {
                match look(&state, region * PER_REGION + at) {
                    Look::Ram | Look::Source(Source::Chunk { .. }) => mapped[at as usize] = true,
                    Look::Void => {}
                    Look::Source(Source::Below) => below.push(at as usize),
                }
            }
            state.inode.body
        };
        if !below.is_empty() {
            let cached = self.table.region(body, region)?;
            if let Some(record) = &cached.record {
                for at in below {
                    mapped[at] = record.lookup(at as u32).is_some();
                }
            }
        }
        Ok(mapped)
    }

    /// The first region from `from` up to `to` in which something may be mapped.
    pub(crate) fn next_region(
        &self,
        object: &Arc<Object>,
        from: u64,
        to: u64,
    ) -> Result<Option<u64>, FsError> {
        let (live, frozen, body) = {
            let state = object.state();
            let frozen = state.frozen.as_ref().and_then(|layer| layer.next_region(from));
            (state.data.next_region(from), frozen, state.inode.body)
        };
        let dataset = self.dataset.number();
        let start = keys::region(dataset, body, from);
        let end = keys::region(dataset, body, to);
        let found = if start < end {
            self.dataset.records().scan(&start, &end, 1)?
        } else {
            Vec::new()
        };
        let recorded = match found.first() {
            Some((key, _)) => Some(keys::parse_region(key)?.2),
            None => None,
        };
        Ok([live, frozen, recorded]
            .into_iter()
            .flatten()
            .filter(|region| *region < to)
            .min())
    }

    /// The mapping of a region if nothing of it is in RAM only: for sharing chunks. `None`: it has dirty pages.
    pub(crate) fn sharable(
        &self,
        object: &Arc<Object>,
        from: u64,
        to: u64,
    ) -> Result<Option<RegionRecord>, FsError> {
        let region = from / PER_REGION;
        let mut record = RegionRecord::new();
        let mut below = Vec::new();
        let body = {
            let state = object.state();
            for block in from..to {
                let at = (block % PER_REGION) as u32;
                match look(&state, block) {
                    Look::Ram => return Ok(None),
                    Look::Void => {}
                    // Only this object holds what was written ahead: nobody else may refer to it before the commit.
                    Look::Source(Source::Chunk { chunk, .. }) if is_ahead(&state, chunk) => return Ok(None),
                    Look::Source(Source::Chunk { chunk, index }) => record.overwrite(at, 1, chunk, index),
                    Look::Source(Source::Below) => below.push(at),
                }
            }
            state.inode.body
        };
        // After the look at what is in RAM: a commit puts its records here before it lets that go, and what an older one maps is
        // not the content any more, nor anybody's.
        let cached = self.table.region(body, region)?;
        if let Some(recorded) = &cached.record {
            for at in below {
                if let Some((chunk, index)) = recorded.lookup(at) {
                    record.overwrite(at, 1, chunk, index);
                }
            }
        }
        Ok(Some(record))
    }

    /// The chunks that a region maps, as of the newest commit.
    pub(crate) fn chunks(&self, object: &Arc<Object>, region: u64) -> Result<Vec<ChunkId>, FsError> {
        if !matches!(object.kind, FileKind::File | FileKind::Volume) {
            return Ok(Vec::new());
        }
        let body = object.state().inode.body;
        let cached = self.table.region(body, region)?;
        let mut chunks: Vec<ChunkId> = cached
            .record
            .iter()
            .flat_map(|record| record.runs().iter().map(|run| run.chunk))
            .collect();
        chunks.sort_unstable();
        chunks.dedup();
        Ok(chunks)
    }

    /// How much of these blocks is mapped and clean, bytes: writing over it makes the dataset no larger. What cannot be looked
    /// up counts as new.
    pub(crate) fn mapped_bytes(&self, object: &Arc<Object>, first: u64, last: u64) -> u64 {
        let regions = first / PER_REGION..last.div_ceil(PER_REGION);
        let mapped: usize = regions
            .filter_map(|region| {
                let mapped = self.mapped_blocks(object, region).ok()?;
                let state = object.state();
                let blocks = mapped.iter().zip(region * PER_REGION..);
                let clean = blocks.filter(|(mapped, block)| {
                    **mapped && (first..last).contains(block) && !state.data.is_dirty(*block)
                });
                Some(clean.count())
            })
            .sum();
        mapped as u64 * BLOCK
    }
}
