//! From region records to chunks that should move: bounded looks at the records of floor 5.

use std::collections::HashSet;

use terrace_codec::{KeyWriter, Reader};
use terrace_dataset::{RegionRecord, decode_region, keys};
use terrace_store::{ChunkId, Store, StoreError};

/// Chunks and stored bytes, about, that are moved before the mover asks whether it still may.
const SLICE_CHUNKS: usize = 64;
const SLICE_BYTES: u64 = 2 << 20;

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

/// Chunks that should move, each once, in the order in which their content is read: so they come to lie where they
/// are put, and what random writes have scattered is in order again.
#[derive(Default)]
pub(crate) struct Chosen {
    chunks: Vec<(ChunkId, u64)>,
    seen: HashSet<ChunkId>,
    bytes: u64,
}

impl Chosen {
    /// Adds the chunks of a record whose tier passes `wanted`.
    pub(crate) fn add(
        &mut self,
        store: &dyn Store,
        record: &RegionRecord,
        wanted: impl Fn(u8) -> bool,
    ) -> Result<(), StoreError> {
        for run in record.runs() {
            if self.seen.contains(&run.chunk) {
                continue;
            }
            if let Some(info) = store.chunk_info(run.chunk)?
                && wanted(info.tier)
            {
                self.seen.insert(run.chunk);
                self.chunks.push((run.chunk, u64::from(info.stored)));
                self.bytes += u64::from(info.stored);
            }
        }
        Ok(())
    }

    /// Stored bytes of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Leaves those out that `keep` refuses.
    pub(crate) fn retain(&mut self, keep: impl Fn(ChunkId) -> bool) {
        self.chunks.retain(|(id, _)| keep(*id));
        self.bytes = self.chunks.iter().map(|(_, bytes)| bytes).sum();
    }

    /// The chunks with their stored bytes.
    pub(crate) fn chunks(&self) -> &[(ChunkId, u64)] {
        &self.chunks
    }
}

/// Takes the next chunks to be moved at once off `rest`, at least one.
pub(crate) fn slice_of(rest: &mut &[(ChunkId, u64)]) -> Vec<ChunkId> {
    let mut bytes = 0;
    let fits = rest.iter().take(SLICE_CHUNKS).take_while(|(_, stored)| {
        let before = bytes;
        bytes += stored;
        before < SLICE_BYTES
    });
    let slice: Vec<ChunkId> = fits.map(|(id, _)| *id).collect();
    *rest = &rest[slice.len()..];
    slice
}
