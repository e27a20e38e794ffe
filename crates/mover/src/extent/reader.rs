//! From region records to chunks that should move: bounded looks at the records of floor 5.

use std::collections::HashSet;

use terrace_codec::{KeyWriter, Reader};
use terrace_dataset::{RegionRecord, decode_region, keys};
use terrace_store::{BLOCK_BYTES, ChunkId, ChunkInfo, Store, StoreError};

/// Chunks and stored bytes, about, that are moved before the mover asks whether it still may.
const SLICE_CHUNKS: usize = 64;
const SLICE_BYTES: u64 = 2 << 20;
/// Stored bytes that one read of a device brings beside users: of a slower tier, and of the fastest, where users wait for
/// less. And what it rather reads than leaves out between two chunks (as the store does).
const REQUEST_BYTES: u64 = 512 << 10;
const REQUEST_BYTES_FASTEST: u64 = 128 << 10;
const GAP_BYTES: u64 = 32 << 10;
/// A chunk that is read with its neighbours rather than with the others of its region: what random writes are cut into.
const SMALL_BYTES: u64 = 16 << 10;

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

/// A chunk that should move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moving {
    id: ChunkId,
    /// Stored bytes, and blocks of content.
    bytes: u64,
    blocks: u32,
    /// Device and segment of its first copy.
    segment: (u16, u32),
    /// And where it begins there.
    offset: u64,
    /// Tier of that device.
    tier: u8,
}

impl Moving {
    pub(crate) fn of(id: ChunkId, info: &ChunkInfo) -> Self {
        Self {
            id,
            bytes: u64::from(info.stored),
            blocks: info.length.div_ceil(BLOCK_BYTES as u32).max(1),
            segment: (info.device, info.segment),
            offset: u64::from(info.offset),
            tier: info.tier,
        }
    }

    pub(crate) fn id(&self) -> ChunkId {
        self.id
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks of content.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The tier that it lies on.
    pub(crate) fn tier(&self) -> u8 {
        self.tier
    }

    /// To sort by: neighbours on a device stand together.
    pub(crate) fn place(&self) -> (u16, u32, u64, ChunkId) {
        (self.segment.0, self.segment.1, self.offset, self.id)
    }

    /// Which read brings it, about, together with its neighbours.
    pub(crate) fn request(&self) -> (u16, u32, u64) {
        (self.segment.0, self.segment.1, self.offset / self.request_bytes())
    }

    /// What one read brings from where it lies, at most, unless it is longer itself.
    fn request_bytes(&self) -> u64 {
        match self.tier {
            0 => REQUEST_BYTES_FASTEST,
            _ => REQUEST_BYTES,
        }
    }
}

/// Chunks that should move, each once, in the order in which their content is read: so they come to lie where they
/// are put, and what random writes have scattered is in order again.
#[derive(Default)]
pub(crate) struct Chosen {
    chunks: Vec<Moving>,
    seen: HashSet<ChunkId>,
    bytes: u64,
}

impl Chosen {
    /// Adds the chunks of a record whose tier passes `wanted`; returns whether some are not there at all.
    pub(crate) fn add(
        &mut self,
        store: &dyn Store,
        record: &RegionRecord,
        wanted: impl Fn(u8) -> bool,
    ) -> Result<bool, StoreError> {
        let mut is_missing = false;
        for run in record.runs() {
            if self.seen.contains(&run.chunk) {
                continue;
            }
            let info = store.chunk_info(run.chunk)?;
            is_missing |= info.is_none();
            if let Some(info) = info.filter(|info| wanted(info.tier)) {
                self.seen.insert(run.chunk);
                let moving = Moving::of(run.chunk, &info);
                self.bytes += moving.bytes;
                self.chunks.push(moving);
            }
        }
        Ok(is_missing)
    }

    /// Stored bytes of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes those out that are so small that of many regions they are read together, in the order in which they lie.
    pub(crate) fn take_small(&mut self) -> Vec<Moving> {
        let (small, rest) = self.chunks.iter().partition(|moving| moving.bytes <= SMALL_BYTES);
        self.chunks = rest;
        self.bytes = self.chunks.iter().map(|moving| moving.bytes).sum();
        small
    }

    /// Takes out all but the first so many.
    pub(crate) fn split_off(&mut self, count: usize) -> Self {
        let chunks = self.chunks.split_off(count.min(self.chunks.len()));
        for moving in &chunks {
            self.seen.remove(&moving.id);
            self.bytes -= moving.bytes;
        }
        Self {
            bytes: chunks.iter().map(|moving| moving.bytes).sum(),
            chunks,
            ..Self::default()
        }
    }

    /// Puts back what was taken out, as far as `keep` does not refuse it.
    pub(crate) fn append(&mut self, taken: Self, keep: impl Fn(&Moving) -> bool) {
        for moving in taken.chunks.into_iter().filter(keep) {
            self.seen.insert(moving.id);
            self.bytes += moving.bytes;
            self.chunks.push(moving);
        }
    }

    /// Leaves those out that `keep` refuses.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Moving) -> bool) {
        self.chunks.retain(keep);
        self.bytes = self.chunks.iter().map(|moving| moving.bytes).sum();
    }

    /// Leaves those out that are not needed to come to so many bytes, and returns them.
    pub(crate) fn cut(&mut self, bytes: u64) -> Self {
        let mut before = 0;
        let needed = self.chunks.iter().take_while(|moving| {
            let needed = before < bytes;
            before += moving.bytes;
            needed
        });
        let needed = needed.count();
        let mut rest = Self {
            chunks: self.chunks.split_off(needed),
            ..Self::default()
        };
        for chosen in [self, &mut rest] {
            chosen.bytes = chosen.chunks.iter().map(|moving| moving.bytes).sum();
        }
        rest
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The chunks.
    pub(crate) fn chunks(&self) -> &[Moving] {
        &self.chunks
    }
}

/// Takes the next chunks to be moved at once off `rest`, at least one, and about so many bytes at most.
pub(crate) fn slice_of(rest: &mut Vec<Moving>, most_bytes: u64) -> Vec<Moving> {
    let mut bytes = 0;
    let fits = rest.iter().take(SLICE_CHUNKS).take_while(|moving| {
        let before = bytes;
        bytes += moving.bytes;
        before < SLICE_BYTES.min(most_bytes)
    });
    let count = fits.count();
    rest.drain(..count).collect()
}

/// Takes those off `rest` that one read of their device brings together with the first (and one more their headers, if these lie apart): a user who reads there meanwhile
/// waits for no more than that. They stay in the order in which they are read. About so many bytes at most.
pub(crate) fn request_of(rest: &mut Vec<Moving>, most_bytes: u64) -> Vec<Moving> {
    let Some(first) = rest.first().copied() else {
        return Vec::new();
    };
    let most = first.request_bytes().min(most_bytes);
    let mut near: Vec<Moving> = rest
        .iter()
        .filter(|other| other.segment == first.segment && other.offset.abs_diff(first.offset) < most)
        .copied()
        .collect();
    near.sort_unstable_by_key(|moving| moving.offset);
    let (mut start, mut end) = (first.offset, first.offset + first.bytes);
    let behind = near.partition_point(|moving| moving.offset <= first.offset);
    for next in &near[behind..] {
        let reach = end.max(next.offset + next.bytes);
        if next.offset > end + GAP_BYTES || reach - start > most {
            break;
        }
        end = reach;
    }
    for next in near[..behind].iter().rev() {
        if next.offset + next.bytes + GAP_BYTES < start || end - next.offset > most {
            break;
        }
        start = start.min(next.offset);
    }
    let mut taken = Vec::new();
    rest.retain(|moving| {
        let inside =
            moving.segment == first.segment && moving.offset >= start && moving.offset + moving.bytes <= end;
        if inside || moving.id == first.id {
            taken.push(*moving);
        }
        !inside && moving.id != first.id
    });
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_read_brings_is_taken_together() {
        let at = |id, segment, offset, bytes| Moving {
            id: ChunkId(id),
            bytes,
            blocks: bytes.div_ceil(4096) as u32,
            segment: (0, segment),
            offset,
            tier: 1,
        };
        const K: u64 = 1 << 10;
        let chunks = [
            // In order, with a small gap.
            at(1, 0, 0, 128 * K),
            at(2, 0, 140 * K, 128 * K),
            at(3, 0, 268 * K, 128 * K),
            // Too much for one read.
            at(4, 0, 396 * K, 128 * K),
            // Far from the one before; then another segment, and one before the other.
            at(5, 0, 900 * K, 4 * K),
            at(6, 1, 904 * K, 4 * K),
            at(7, 1, 896 * K, 8 * K),
        ];
        let mut rest = chunks.to_vec();
        let mut taken = Vec::new();
        while !rest.is_empty() {
            let ids = request_of(&mut rest, u64::MAX)
                .into_iter()
                .map(|moving| moving.id.0);
            taken.push(ids.collect::<Vec<u64>>());
        }
        assert_eq!(taken, [vec![1, 2, 3], vec![4], vec![5], vec![6, 7]]);
        assert_eq!(request_of(&mut rest, u64::MAX), []);
        // Written by several at once: out of order.
        rest.extend([2, 0, 3, 1, 5].map(|at| chunks[at]));
        let mut next = || {
            request_of(&mut rest, u64::MAX)
                .into_iter()
                .map(|moving| moving.id.0)
        };
        assert!(next().eq([3, 4, 2]) && next().eq([1]));
        let mut rest = chunks.to_vec();
        assert_eq!((slice_of(&mut rest, u64::MAX).len(), rest.len()), (7, 0));
        // Slowly.
        let mut rest = chunks.to_vec();
        assert_eq!(request_of(&mut rest, 300 * K).len(), 2);
        assert_eq!(slice_of(&mut rest, 129 * K).len(), 2);
        assert_eq!(
            (request_of(&mut rest, 1).len(), slice_of(&mut rest, 1).len()),
            (1, 1)
        );
        // Of the fastest tier less at once, but whole chunks.
        let mut rest: Vec<Moving> = chunks.iter().map(|one| Moving { tier: 0, ..*one }).collect();
        let mut next = || {
            request_of(&mut rest, u64::MAX)
                .into_iter()
                .map(|moving| moving.id.0)
        };
        assert!(next().eq([1]) && next().eq([2]) && next().eq([3]));
        assert!(next().eq([4]) && next().eq([5]) && next().eq([6, 7]));
    }
}
