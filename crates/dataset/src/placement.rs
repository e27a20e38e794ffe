//! Where content lies: bytes per tier of one object or a whole dataset, from region records and chunk records.

use std::{collections::HashMap, sync::Arc};

use terrace_store::{BLOCK_BYTES, ChunkId, Store, StoreError};

use crate::{
    inode::InodeRecord,
    keys,
    region::RegionRecord,
    versions::{damaged, decode_region, split_value},
};

/// Content by tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierBytes {
    /// Content mapped, bytes, by tier number (fastest 0).
    pub by_tier: Vec<u64>,
    /// What that takes on devices, bytes, by tier: the object's share of each chunk, by blocks.
    pub stored_by_tier: Vec<u64>,
    /// Chunks that have no record: lost.
    pub missing: u64,
}

impl TierBytes {
    fn add(&mut self, tier: u8, content: u64, stored: u64) {
        let tier = usize::from(tier);
        if self.by_tier.len() <= tier {
            self.by_tier.resize(tier + 1, 0);
            self.stored_by_tier.resize(tier + 1, 0);
        }
        self.by_tier[tier] += content;
        self.stored_by_tier[tier] += stored;
    }

    /// Counts the content of one region record.
    pub fn add_region(&mut self, store: &dyn Store, record: &RegionRecord) -> Result<(), StoreError> {
        let mut known: HashMap<ChunkId, Option<(u8, u64, u64)>> = HashMap::new();
        for run in record.runs() {
            let info = match known.get(&run.chunk) {
                Some(info) => *info,
                None => {
                    let info = store.chunk_info(run.chunk)?;
                    let info = info.map(|info| (info.tier, u64::from(info.length), u64::from(info.stored)));
                    known.insert(run.chunk, info);
                    info
                }
            };
            match info {
                Some((tier, length, stored)) => {
                    let content = u64::from(run.count) * BLOCK_BYTES as u64;
                    let blocks = length.div_ceil(BLOCK_BYTES as u64).max(1);
                    self.add(tier, content, stored * u64::from(run.count) / blocks);
                }
                None => self.missing += 1,
            }
        }
        Ok(())
    }
}

/// The number under which the regions and the heat of an object stand; `None` if it is gone or was never committed.
pub fn body_of_object(store: &Arc<dyn Store>, dataset: u32, object: u64) -> Result<Option<u64>, StoreError> {
    let Some(value) = store.get(&keys::inode(dataset, object))? else {
        return Ok(None);
    };
    let inode = split_value(&value).and_then(|(_, payload)| InodeRecord::decode(payload));
    Ok(Some(inode.map_err(|cause| damaged("an inode", &cause))?.body))
}

/// The content of an object; committed content only.
pub fn bytes_of_object(store: &Arc<dyn Store>, dataset: u32, object: u64) -> Result<TierBytes, StoreError> {
    let Some(value) = store.get(&keys::inode(dataset, object))? else {
        return Ok(TierBytes::default());
    };
    let inode = split_value(&value).and_then(|(_, payload)| InodeRecord::decode(payload));
    let inode = inode.map_err(|cause| damaged("an inode", &cause))?;
    let (from, to) = (
        keys::region(dataset, inode.body, 0),
        keys::region_end(dataset, inode.body),
    );
    bytes_of_range(store, from, &to)
}

/// The live content of a dataset: a walk over its region records.
pub fn bytes_of_dataset(store: &Arc<dyn Store>, dataset: u32) -> Result<TierBytes, StoreError> {
    let (from, to) = keys::dataset_range(keys::TABLE_REGION, dataset);
    bytes_of_range(store, from, &to)
}

fn bytes_of_range(store: &Arc<dyn Store>, mut from: Vec<u8>, to: &[u8]) -> Result<TierBytes, StoreError> {
    const PAGE: usize = 256;
    let mut bytes = TierBytes::default();
    loop {
        let page = store.scan(&from, to, PAGE)?;
        for (_, value) in &page {
            bytes.add_region(store.as_ref(), &decode_region(value)?.record)?;
        }
        match page.last() {
            Some((last, _)) if page.len() == PAGE => from = last.iter().copied().chain([0]).collect(),
            _ => return Ok(bytes),
        }
    }
}
