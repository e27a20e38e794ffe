//! From region records to chunks that should move: bounded looks at the records of floor 5.

use std::collections::HashMap;

use terrace_codec::{KeyWriter, Reader};
use terrace_dataset::{RegionRecord, decode_region, keys};
use terrace_store::{ChunkId, Store, StoreError};

/// One region record, live or in history.
pub(crate) struct Found {
    pub(crate) dataset: u32,
    pub(crate) body: u64,
    pub(crate) region: u64,
    pub(crate) record: RegionRecord,
}

/// A page of region records.
pub(crate) struct Page {
    pub(crate) found: Vec<Found>,
    /// Where to go on; `None` at the end.
    pub(crate) next: Option<Vec<u8>>,
}

/// The next region records of the whole pool: those in history first, since nothing live needs what only they map.
pub(crate) fn next_of_pool(store: &dyn Store, cursor: &[u8], limit: usize) -> Result<Page, StoreError> {
    let from = if cursor.is_empty() {
        vec![keys::TABLE_HISTORY]
    } else {
        cursor.to_vec()
    };
    let history = from.first() == Some(&keys::TABLE_HISTORY);
    let table = if history {
        keys::TABLE_HISTORY
    } else {
        keys::TABLE_REGION
    };
    let records = store.scan(&from, &KeyWriter::after_prefix(&[table]), limit)?;
    let mut page = Page {
        found: Vec::new(),
        next: None,
    };
    for (key, value) in &records {
        let live = if history {
            history_region(key)
        } else {
            Some(key.to_vec())
        };
        let Some(live) = live else {
            // Versions of other records stand before those of regions: skip them.
            page.next = Some(skip_to_regions(key));
            return Ok(page);
        };
        if let Ok((dataset, body, region)) = keys::parse_region(&live) {
            page.found.push(Found {
                dataset,
                body,
                region,
                record: decode_region(value)?.record,
            });
        }
    }
    page.next = match records.last() {
        Some((last, _)) if records.len() == limit => Some(after(last)),
        _ if history => Some(vec![keys::TABLE_REGION]),
        _ => None,
    };
    Ok(page)
}

fn history_region(key: &[u8]) -> Option<Vec<u8>> {
    let (live, _) = keys::parse_history(key).ok()?;
    (live.first() == Some(&keys::TABLE_REGION)).then_some(live)
}

/// The first place behind `key` where versions of regions may stand.
fn skip_to_regions(key: &[u8]) -> Vec<u8> {
    let mut reader = Reader::new(key);
    let _ = reader.u8("table");
    let dataset = reader.key_u32("dataset").unwrap_or(u32::MAX);
    let regions = KeyWriter::table(keys::TABLE_HISTORY)
        .u32(dataset)
        .u8(keys::TABLE_REGION)
        .finish();
    regions.max(after(key))
}

/// The next region records of a dataset, or of one body in it.
pub(crate) fn next_of_dataset(
    store: &dyn Store,
    dataset: u32,
    body: u64,
    cursor: &[u8],
    limit: usize,
) -> Result<Page, StoreError> {
    let (start, end) = match body {
        0 => keys::dataset_range(keys::TABLE_REGION, dataset),
        _ => (keys::region(dataset, body, 0), keys::region_end(dataset, body)),
    };
    let records = store.scan(&start.max(cursor.to_vec()), &end, limit)?;
    let mut page = Page {
        found: Vec::new(),
        next: None,
    };
    for (key, value) in &records {
        if let Ok((dataset, body, region)) = keys::parse_region(key) {
            page.found.push(Found {
                dataset,
                body,
                region,
                record: decode_region(value)?.record,
            });
        }
    }
    if let Some((last, _)) = records.last()
        && records.len() == limit
    {
        page.next = Some(after(last));
    }
    Ok(page)
}

fn after(key: &[u8]) -> Vec<u8> {
    key.iter().copied().chain([0]).collect()
}

/// The chunks of a record whose tier passes `wanted`, with their stored bytes, each once.
pub(crate) fn chunks_where(
    store: &dyn Store,
    record: &RegionRecord,
    seen: &mut HashMap<ChunkId, u64>,
    wanted: impl Fn(u8) -> bool,
) -> Result<(), StoreError> {
    for run in record.runs() {
        if seen.contains_key(&run.chunk) {
            continue;
        }
        if let Some(info) = store.chunk_info(run.chunk)?
            && wanted(info.tier)
        {
            seen.insert(run.chunk, u64::from(info.stored));
        }
    }
    Ok(())
}
