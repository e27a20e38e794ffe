//! `Salvaged`: the newest state of a store that can be put together from what is left on its devices, for reading.
//!
//! Order of trust: (1) a root – from a root slot, or a copy in a metadata segment – whose tables are all whole, and the
//! log behind it: an exact state; (2) where the log behind it is broken, what it holds behind the gap besides; (3) all
//! tables that are found anywhere and all log entries, the newest word on each key; (4) nothing but chunks.
//! Invariants: nothing is written; a root is not taken for the newest state when a table or a durable log entry knows
//! of something newer; no byte of a chunk is returned that does not match its hash.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use terrace_device::AlignedBuffer;
use terrace_log::HEADER_BYTES as ENTRY_BYTES;
use terrace_meta::{Extent, ExtentError, ExtentStorage, LoggedChange, Operation, Salvage};
use terrace_pool::{Pool, SegmentId};
use terrace_store::{ChunkId, FIRST_USER_TABLE, Store, StoreError};

use super::survey::Survey;
use crate::{
    ChunkStore, Options,
    encoding::{EntryPlace, TablePlace, decode_batches},
    metadata::replay_start,
    reading::read_found,
    recovery::open_for_salvage,
};

/// Roots that are tried, newest first.
const ROOTS_MAX: usize = 64;
/// Memory that changes from the log may take, bytes; the oldest beyond are left out.
const LOG_BYTES_MAX: usize = 512 << 20;
const BLOCK: u32 = 4096;

/// In which way the state was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// A whole root and the log behind it: nothing of the metadata is missing.
    Whole,
    /// A whole root; the log behind it is broken, what is behind the gap was read besides.
    Gap,
    /// Tables without a root, or some of them, and log entries: the newest word on each record.
    Tables,
    /// No metadata at all.
    Chunks,
}

enum Base {
    Store(Box<ChunkStore>),
    Tables(Box<Salvage>),
}

/// A state to be read.
pub struct Salvaged {
    pool: Arc<Pool>,
    survey: Survey,
    base: Base,
    /// Changes behind a gap in the log.
    later: BTreeMap<Bytes, LoggedChange>,
    how: How,
    sequence: u64,
    newest: u64,
    /// Ranges of keys with records that cannot be read, first to last; `None`: any key may lack.
    lacking: Option<Vec<(Vec<u8>, Vec<u8>)>>,
    left_out: bool,
}

/// A root that was tried.
struct Tried {
    store: Box<ChunkStore>,
    broken: bool,
    lacking: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Salvaged {
    /// Looks for the newest state. The pool must be open for reading only; `progress` gets the bytes read.
    pub fn open(pool: Arc<Pool>, options: &Options, progress: &mut dyn FnMut(u64)) -> Self {
        let survey = Survey::new(&pool, progress);
        let flushed = survey.entries.iter().map(|entry| entry.header.flushed).max();
        let tables = survey.tables.iter().map(|table| table.preface.up_to).max();
        let newest = flushed.max(tables).unwrap_or(0);
        let (slots, sound) = pool.root_payloads();
        // The root that a normal opening would take: no table of a checkpoint that never came to its end counts then.
        let unquestioned = slots.first().cloned().filter(|_| sound);
        let mut roots: Vec<(u64, Vec<u8>)> = slots
            .into_iter()
            .filter_map(|payload| Some((replay_start(&payload).ok()?, payload)))
            .chain(survey.roots.iter().cloned())
            .collect();
        roots.sort_by_key(|(sequence, _)| std::cmp::Reverse(*sequence));
        roots.dedup();
        let mut lacking = None;
        for (_, payload) in roots.iter().take(ROOTS_MAX) {
            let Some(tried) = try_root(&pool, payload, options) else {
                continue;
            };
            let reached = tried.store.salvaged_sequence();
            let newest = if unquestioned.as_ref() == Some(payload) && !tried.broken {
                reached
            } else {
                newest
            };
            if !tried.lacking.is_empty() || reached < newest && !tried.broken {
                if reached >= newest && lacking.is_none() {
                    lacking = Some(tried.lacking);
                }
                continue;
            }
            // With a gap, the tables must not know more than what was reached.
            if tried.broken && tables.unwrap_or(0) > reached {
                continue;
            }
            let mut salvaged = Self {
                pool: pool.clone(),
                survey,
                base: Base::Store(tried.store),
                later: BTreeMap::new(),
                how: How::Whole,
                sequence: reached,
                newest: newest.max(reached),
                lacking: Some(Vec::new()),
                left_out: false,
            };
            if tried.broken {
                (salvaged.later, salvaged.left_out) =
                    read_log(&salvaged.pool, &salvaged.survey.entries, reached);
                salvaged.how = How::Gap;
                salvaged.lacking = None;
            }
            return salvaged;
        }
        let (log, left_out) = read_log(&pool, &survey.entries, 0);
        let empty = log.is_empty();
        let storage = FoundExtents::new(pool.clone(), &survey.tables);
        let found: Vec<_> = survey
            .tables
            .iter()
            .enumerate()
            .map(|(index, table)| (table.preface, FoundExtents::extent(index, table)))
            .collect();
        let tables = Salvage::open(Arc::new(storage), &found, log, options.block_cache_bytes);
        Self {
            pool,
            how: if tables.tables() == 0 && empty {
                How::Chunks
            } else {
                How::Tables
            },
            sequence: tables.newest_sequence(),
            newest: newest.max(tables.newest_sequence()),
            base: Base::Tables(Box::new(tables)),
            later: BTreeMap::new(),
            survey,
            lacking,
            left_out,
        }
    }

    /// In which way the state was found.
    pub fn how(&self) -> How {
        self.how
    }

    /// The newest batch in the state.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The newest batch that anything on the devices shows to have been there.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// What was found in the segments.
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Tables that the state is read from without a root, and those found whose keys are not known.
    pub fn tables(&self) -> (usize, u64) {
        match &self.base {
            Base::Store(_) => (0, 0),
            Base::Tables(tables) => (tables.tables(), tables.unusable()),
        }
    }

    /// About how many bytes of content there are.
    pub fn content_bytes(&self) -> u64 {
        match &self.base {
            Base::Store(store) => u64::try_from(store.totals().unique).unwrap_or(0),
            Base::Tables(_) => {
                let mut last = None;
                let first_of_id = self
                    .survey
                    .chunks
                    .iter()
                    .filter(|place| last.replace(place.id) != Some(place.id));
                first_of_id.map(|place| u64::from(place.length)).sum()
            }
        }
    }

    /// Whether changes from the log were left out because they would take too much memory.
    pub fn left_out(&self) -> bool {
        self.left_out
    }

    /// Whether records of a table (first byte of the key) may be missing.
    pub fn may_lack(&self, table: u8) -> bool {
        self.lacking.as_ref().is_none_or(|ranges| {
            let inside = |(first, last): &(Vec<u8>, Vec<u8>)| {
                first.first().is_none_or(|first| *first <= table)
                    && last.first().is_some_and(|last| *last >= table)
            };
            ranges.iter().any(inside)
        })
    }

    /// The records with `from <= key < to` (an empty `to`: no upper bound), ascending, at most `limit`.
    ///
    /// # Errors
    /// Of a state with a root, what the tables say.
    pub fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let base = match &self.base {
            Base::Tables(tables) => return Ok(tables.scan(from, to, limit)),
            Base::Store(store) => store.scan(from, to, limit)?,
        };
        if self.later.is_empty() {
            return Ok(base);
        }
        // As far as the base was read: beyond that the next call goes on.
        let whole = base.len() < limit;
        let end = base.last().map(|(key, _)| key.clone());
        let mut merged: BTreeMap<Bytes, Bytes> = base.into_iter().collect();
        let later = self
            .later
            .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        for (key, (_, value)) in later {
            if !to.is_empty() && &**key >= to || !whole && end.as_ref().is_some_and(|end| key > end) {
                break;
            }
            match value {
                Some(value) => merged.insert(key.clone(), value.clone()),
                None => merged.remove(key),
            };
        }
        Ok(merged.into_iter().collect())
    }

    /// The content of a chunk, from wherever it is: as the tables say, or from any place where the survey found it.
    /// `owner` (dataset, object) decides between chunks that bear one number.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn read_chunk(&self, id: ChunkId, owner: (u32, u64)) -> Result<Bytes, String> {
        let mut cause = format!("chunk {id} is nowhere");
        let mut expected = None;
        if let Base::Store(store) = &self.base {
            match store.read_chunk(id) {
                Ok(content) => return Ok(content),
                Err(error) => cause = error.to_string(),
            }
            expected = store.chunk_info(id).ok().flatten().map(|info| info.hash);
        }
        let mut places = self.survey.places(id).to_vec();
        places.sort_by_key(|place| {
            let own = (place.owner.dataset, place.owner.object) == owner;
            (!own, std::cmp::Reverse(place.owner.checkpoint))
        });
        for place in places {
            match read_found(&self.pool, &place) {
                Ok((hash, content)) if expected.is_none_or(|expected| expected == hash) => {
                    return Ok(content.into());
                }
                Ok(_) => {}
                Err(error) => cause = error,
            }
        }
        Err(cause)
    }
}

/// Opens the store as a root says; `None` when that is impossible.
fn try_root(pool: &Arc<Pool>, payload: &[u8], options: &Options) -> Option<Tried> {
    let (handles, start, broken) = open_for_salvage(pool.clone(), options.clone(), payload).ok()?;
    let store = Box::new(ChunkStore::assemble(handles, start));
    let lacking = store
        .handles()
        .tree
        .unreadable()
        .into_iter()
        .map(|(first, last, _)| (first, last));
    Some(Tried {
        lacking: lacking.collect(),
        broken,
        store,
    })
}

/// What log entries behind batch `after` say, the newest word on each key; and whether some had to be left out.
fn read_log(pool: &Pool, entries: &[EntryPlace], after: u64) -> (BTreeMap<Bytes, LoggedChange>, bool) {
    let by_sum: HashMap<[u8; 32], &EntryPlace> =
        entries.iter().map(|entry| (entry.header.sum, entry)).collect();
    // From the newest back: the entry that was written after most had become durable is on the branch that won.
    let mut last_parts: Vec<&EntryPlace> = entries.iter().filter(|entry| !entry.header.continues).collect();
    last_parts.sort_by_key(|entry| (entry.header.last, entry.header.flushed, entry.header.sum));
    let mut changes: BTreeMap<Bytes, LoggedChange> = BTreeMap::new();
    let (mut bytes, mut left_out) = (0, false);
    let mut taken: BTreeSet<u64> = BTreeSet::new();
    let start = entries
        .iter()
        .filter(|entry| !entry.header.continues)
        .max_by_key(|entry| (entry.header.flushed, entry.header.last));
    // The chain of the newest entry first, then whatever else fills its gaps.
    let mut order: Vec<&EntryPlace> = Vec::new();
    let mut at = start;
    while let Some(entry) = at {
        order.push(entry);
        at = first_part(&by_sum, entry)
            .and_then(|first| by_sum.get(&first.header.previous).copied())
            .filter(|previous| previous.header.last < entry.header.last);
    }
    order.extend(last_parts.into_iter().rev());
    for entry in order {
        let header = &entry.header;
        if header.last <= after || header.last < header.first || !taken.insert(header.last) {
            continue;
        }
        let Some(payload) = payload_of(pool, &by_sum, entry) else {
            continue;
        };
        let Ok(batches) = decode_batches(&payload) else {
            continue;
        };
        for batch in batches.into_iter().filter(|batch| batch.sequence > after) {
            for (key, operation) in batch.operations {
                let value = match operation {
                    Operation::Put(value) => Some(value),
                    Operation::Delete => None,
                    // Counts are made anew; so is all that the store keeps for itself.
                    Operation::Add(_) => continue,
                };
                if key.first().is_none_or(|table| *table < FIRST_USER_TABLE) {
                    continue;
                }
                if bytes > LOG_BYTES_MAX {
                    left_out = true;
                    continue;
                }
                let known = changes.get(&key[..]).map(|(sequence, _)| *sequence);
                // Operations of one batch count in order.
                if known.is_none_or(|known| known <= batch.sequence) {
                    bytes += key.len() + value.as_ref().map_or(0, |value| value.len()) + 96;
                    let value = value.map(|value| Bytes::copy_from_slice(&value));
                    changes.insert(Bytes::copy_from_slice(&key), (batch.sequence, value));
                }
            }
        }
    }
    (changes, left_out)
}

/// The first part of the payload that ends with `entry`; `None` if a part is missing.
fn first_part<'a>(
    by_sum: &HashMap<[u8; 32], &'a EntryPlace>,
    entry: &'a EntryPlace,
) -> Option<&'a EntryPlace> {
    let mut first = entry;
    // Each step goes to another entry, and sums cannot form a ring.
    while let Some(previous) = by_sum.get(&first.header.previous).filter(|e| e.header.continues) {
        first = previous;
    }
    Some(first)
}

fn payload_of(pool: &Pool, by_sum: &HashMap<[u8; 32], &EntryPlace>, last: &EntryPlace) -> Option<Vec<u8>> {
    let mut parts = vec![last];
    while let Some(previous) = parts
        .last()
        .and_then(|part| by_sum.get(&part.header.previous))
        .filter(|entry| entry.header.continues && entry.header.first == last.header.first)
    {
        parts.push(previous);
    }
    let mut payload = Vec::new();
    for part in parts.into_iter().rev() {
        let length = (ENTRY_BYTES + part.header.length as usize) as u32;
        let bytes = part.copies.iter().find_map(|(segment, offset)| {
            let bytes = crate::reading::read_stored(pool, *segment, *offset, length).ok()?;
            part.header.verify(bytes.get(ENTRY_BYTES..)?).then_some(bytes)
        })?;
        payload.extend_from_slice(&bytes[ENTRY_BYTES..]);
    }
    Some(payload)
}

/// Tables that were found, as extents: the location is the number in the list.
struct FoundExtents {
    pool: Arc<Pool>,
    places: Vec<Vec<(SegmentId, u32)>>,
}

impl FoundExtents {
    fn new(pool: Arc<Pool>, tables: &[TablePlace]) -> Self {
        Self {
            pool,
            places: tables.iter().map(|table| table.copies.clone()).collect(),
        }
    }

    fn extent(index: usize, table: &TablePlace) -> Extent {
        Extent {
            location: index as u64,
            bytes: table.preface.bytes,
        }
    }
}

impl ExtentStorage for FoundExtents {
    fn write(&self, _: &[u8]) -> Result<Extent, ExtentError> {
        Err(ExtentError::Failed(
            "a pool that is salvaged is not written to".into(),
        ))
    }

    fn read(&self, extent: Extent, offset: u32, length: u32) -> Result<Bytes, ExtentError> {
        self.read_copy(0, extent, offset, length)
            .unwrap_or_else(|| Err(ExtentError::Failed(format!("{extent} has no copy"))))
    }

    fn read_copy(
        &self,
        copy: u32,
        extent: Extent,
        offset: u32,
        length: u32,
    ) -> Option<Result<Bytes, ExtentError>> {
        let places = self.places.get(usize::try_from(extent.location).ok()?)?;
        let (segment, start) = places.get(copy as usize)?;
        let outside = || ExtentError::Failed(format!("{offset}+{length} lies outside of {extent}"));
        let end = offset.checked_add(length).filter(|end| *end <= extent.bytes);
        let at = start.checked_add(offset).filter(|_| end.is_some());
        let Some(at) = at else { return Some(Err(outside())) };
        let first = at / BLOCK * BLOCK;
        let skip = (at - first) as usize;
        let whole = (skip + length as usize).next_multiple_of(BLOCK as usize);
        let mut buffer = AlignedBuffer::with_capacity(whole);
        let read = self.pool.read(*segment, first.into(), buffer.reuse(whole));
        Some(match read {
            Ok(()) => Ok(Bytes::copy_from_slice(&buffer[skip..skip + length as usize])),
            Err(error) => Err(ExtentError::Failed(error.to_string())),
        })
    }

    fn release(&self, _: &[Extent]) {}

    fn sync(&self) -> Result<(), ExtentError> {
        Ok(())
    }
}
