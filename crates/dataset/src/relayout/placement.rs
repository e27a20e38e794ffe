//! Where content lies: bytes per tier of one object or a whole dataset, from region records and chunk records.

use crate::records::{REGION_BYTES, Records, RegionRecord, damaged, decode_region, keys};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use terrace_store::{BLOCK_BYTES, ChunkId, ChunkInfo, Store, StoreError};

/// How often a region is looked at again that others write to at the same time.
const LOOKS_MAX: usize = 16;

/// Content by tier, up to the end of its file: what all of it comes to, with the holes, is the file's size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierBytes {
    /// Content mapped, bytes as users read them, by tier number (fastest 0): once for each place that maps it, also where several
    /// share one chunk.
    pub by_tier: Vec<u64>,
    /// What that takes on devices, bytes, by tier: the object's share of each chunk, by blocks.
    pub stored_by_tier: Vec<u64>,
    /// Pieces of chunks that are lost, as they have no record or lie on nothing that is there; and the content that they were,
    /// bytes.
    pub missing: u64,
    /// See [`missing`](Self::missing).
    pub missing_bytes: u64,
}

impl TierBytes {
    /// Counts all of this besides.
    pub fn add(&mut self, other: &Self) {
        let both = other.by_tier.iter().zip(&other.stored_by_tier);
        for (tier, (content, stored)) in (0u8..).zip(both) {
            self.count(tier, *content, *stored);
        }
        self.missing += other.missing;
        self.missing_bytes += other.missing_bytes;
    }

    fn count(&mut self, tier: u8, content: u64, stored: u64) {
        let tier = usize::from(tier);
        if self.by_tier.len() <= tier {
            self.by_tier.resize(tier + 1, 0);
            self.stored_by_tier.resize(tier + 1, 0);
        }
        self.by_tier[tier] += content;
        self.stored_by_tier[tier] += stored;
    }

    /// Counts the content of one region, of which the first `most` bytes belong to the file; `record` is what was just read of it.
    fn add_region(
        &mut self,
        store: &dyn Store,
        place: RegionPlace,
        record: RegionRecord,
        most: u64,
    ) -> Result<(), StoreError> {
        self.add_region_but(store, place, record, most, &mut |_, _| Ok(false))
    }

    /// The same; what `is_lost` says of a chunk, asked with the bytes of content, counts as missing.
    pub fn add_region_but(
        &mut self,
        store: &dyn Store,
        place: RegionPlace,
        record: RegionRecord,
        most: u64,
        is_lost: &mut dyn FnMut(ChunkId, u64) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let (record, infos) = chunks_of_region(store, place, record)?;
        for run in record.runs() {
            let Some(info) = infos.get(&run.chunk) else {
                continue;
            };
            let first = u64::from(run.block) * BLOCK_BYTES as u64;
            let content = (u64::from(run.count) * BLOCK_BYTES as u64).min(most.saturating_sub(first));
            let readable = match info {
                Some(_) if is_lost(run.chunk, content)? => None,
                info => info.as_ref(),
            };
            match readable {
                Some(info) => {
                    let blocks = u64::from(info.length).div_ceil(BLOCK_BYTES as u64).max(1);
                    let stored = u64::from(info.stored) * u64::from(run.count) / blocks;
                    self.count(info.tier, content, stored);
                }
                None => {
                    self.missing += 1;
                    self.missing_bytes += content;
                }
            }
        }
        Ok(())
    }
}

/// Dataset, body, region.
pub type RegionPlace = (u32, u64, u64);

/// What is known of the chunks of a region; `None` of one that is lost.
pub type ChunksOfRegion = HashMap<ChunkId, Option<ChunkInfo>>;

/// Where the chunks of a region lie, of which `record` was just read, and the record that this is true of. A chunk without a record is lost
/// only if the region still names it: a commit may have replaced what was read, and its chunks be gone.
pub fn chunks_of_region(
    store: &dyn Store,
    place: RegionPlace,
    mut record: RegionRecord,
) -> Result<(RegionRecord, ChunksOfRegion), StoreError> {
    let (dataset, body, region) = place;
    let mut infos = ChunksOfRegion::new();
    for _ in 0..LOOKS_MAX {
        let mut all = true;
        for run in record.runs() {
            if let Entry::Vacant(entry) = infos.entry(run.chunk) {
                let info = store.chunk_info(run.chunk)?;
                all &= info.is_some();
                entry.insert(info);
            }
        }
        if all {
            return Ok((record, infos));
        }
        let now = Records::of(store, dataset).region(body, region)?;
        let now = now.map(|found| found.record).unwrap_or_default();
        if now == record {
            return Ok((record, infos));
        }
        record = now;
        infos.retain(|_, info| info.is_some());
    }
    // It changes without end: nothing is said of what could not be seen.
    Ok((record, infos))
}

/// The number under which the regions and the heat of an object stand; `None` if it is gone or was never committed.
pub fn body_of_object(store: &Arc<dyn Store>, dataset: u32, object: u64) -> Result<Option<u64>, StoreError> {
    let inode = Records::of(store.as_ref(), dataset).inode(object)?;
    Ok(inode.map(|(_, inode)| inode.body))
}

/// The content of an object; committed content only.
pub fn bytes_of_object(store: &Arc<dyn Store>, dataset: u32, object: u64) -> Result<TierBytes, StoreError> {
    let Some((_, inode)) = Records::of(store.as_ref(), dataset).inode(object)? else {
        return Ok(TierBytes::default());
    };
    let (from, to) = (
        keys::region(dataset, inode.body, 0),
        keys::region_end(dataset, inode.body),
    );
    bytes_of_range(store, Records::of(store.as_ref(), dataset), from, to)
}

/// The live content of a dataset: a walk over its region records.
pub fn bytes_of_dataset(store: &Arc<dyn Store>, dataset: u32) -> Result<TierBytes, StoreError> {
    let (from, to) = keys::dataset_range(keys::TABLE_REGION, dataset);
    bytes_of_range(store, Records::of(store.as_ref(), dataset), from, to)
}

fn bytes_of_range(
    store: &Arc<dyn Store>,
    records: Records<'_>,
    from: Vec<u8>,
    to: Vec<u8>,
) -> Result<TierBytes, StoreError> {
    let mut bytes = TierBytes::default();
    for found in records.each(from, to, 256) {
        let (key, value) = found?;
        let place = keys::parse_region(&key).map_err(|cause| damaged("the key of a region", &cause))?;
        bytes.add_region(store.as_ref(), place, decode_region(&value)?.record, REGION_BYTES)?;
    }
    Ok(bytes)
}
