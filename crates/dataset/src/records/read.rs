//! Reading records: of a dataset ([`Records`]), as they are now and as they were in a held checkpoint; of a table or a range, whose ever
//! they are ([`PoolRecords`]).
//!
//! Invariant: outside this folder all records are read through these two. The check, the look for dead blocks and the opening of a pool
//! walk over the records of all datasets as they lie; all others know of which dataset they read.

use super::{
    counters::Counters,
    dataset_record::DatasetRecord,
    held::{Held, HeldRecord},
    inode::InodeRecord,
    region::RegionRecord,
    versioned_batch::{Versioned, after, damaged, split_value, version_after},
};
use crate::records::keys;
use std::collections::BTreeMap;

use bytes::Bytes;
use terrace_codec::{DecodeError, KeyWriter};
use terrace_store::{Store, StoreError};

/// The records of one dataset: the door through which they are read.
#[derive(Clone, Copy)]
pub(crate) struct Records<'a> {
    store: &'a dyn Store,
    dataset: u32,
}

impl<'a> Records<'a> {
    pub(crate) fn of(store: &'a dyn Store, dataset: u32) -> Self {
        Self { store, dataset }
    }

    /// The record with this key, as of the newest commit.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.expect_own(key);
        self.store.get(key)
    }

    /// Those with `from <= key < to`, as of the newest commit, ascending, at most `limit`.
    pub(crate) fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.expect_own(from);
        self.store.scan(from, to, limit)
    }

    /// Those with `from <= key < to`, as of the newest commit, ascending, read `page` at a time as they are asked for.
    pub(crate) fn each(
        self,
        mut from: Vec<u8>,
        to: Vec<u8>,
        page: usize,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), StoreError>> {
        let mut is_over = false;
        let pages = std::iter::from_fn(move || {
            if is_over {
                return None;
            }
            let found = self.scan(&from, &to, page);
            match found.as_deref() {
                Ok(records @ [.., (last, _)]) if records.len() == page => from = after(last),
                _ => is_over = true,
            }
            Some(match found {
                Ok(records) => records.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            })
        });
        pages.flatten()
    }

    /// Its counters, if it has any.
    pub(crate) fn counters(&self) -> Result<Option<Counters>, StoreError> {
        let value = self.get(&keys::counters(self.dataset))?;
        let decoded = value.map(|value| Counters::decode(&value)).transpose();
        decoded.map_err(|cause| damaged("a dataset's counters", &cause))
    }

    /// Its held checkpoints.
    pub(crate) fn held(&self) -> Result<Held, StoreError> {
        let mut held = Held::default();
        let (from, to) = keys::dataset_range(keys::TABLE_HELD, self.dataset);
        PoolRecords::of(self.store).for_range(from, &to, |key, value| {
            let (_, checkpoint) = keys::parse_held(key)?;
            held.insert(checkpoint, HeldRecord::decode(value)?);
            Ok(())
        })?;
        Ok(held)
    }

    /// A region; `None` if it is all holes.
    pub(crate) fn region(
        &self,
        body: u64,
        region: u64,
    ) -> Result<Option<Versioned<RegionRecord>>, StoreError> {
        read_region(self.store, self.dataset, body, region)
    }

    /// An inode with its birth.
    pub(crate) fn inode(&self, object: u64) -> Result<Option<(u64, InodeRecord)>, StoreError> {
        let Some(value) = self.get(&keys::inode(self.dataset, object))? else {
            return Ok(None);
        };
        let decoded = split_value(&value)
            .and_then(|(birth, payload)| InodeRecord::decode(payload).map(|inode| (birth, inode)));
        Ok(Some(decoded.map_err(|cause| damaged("an inode record", &cause))?))
    }

    /// See [`read_as_of`].
    pub(crate) fn get_as_of(
        &self,
        key: &[u8],
        checkpoint: u64,
    ) -> Result<Option<Versioned<Bytes>>, StoreError> {
        self.expect_own(key);
        read_as_of(self.store, key, checkpoint)
    }

    /// See [`scan_as_of`].
    #[allow(clippy::type_complexity)]
    pub(crate) fn scan_as_of(
        &self,
        from: &[u8],
        to: &[u8],
        checkpoint: u64,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Versioned<Bytes>)>, StoreError> {
        self.expect_own(from);
        scan_as_of(self.store, from, to, checkpoint, limit)
    }

    /// The first key with `from <= key < to` of which there is a version of any time.
    pub(crate) fn first_key_of_any_time(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.expect_own(from);
        first_of_any_time(self.store, from, to)
    }

    /// What a held checkpoint sees of a region, if that is not the live record.
    pub(crate) fn past_region(&self, key: &[u8], held: u64) -> Result<Option<RegionRecord>, StoreError> {
        self.expect_own(key);
        held_region(self.store, key, held)
    }

    fn expect_own(&self, key: &[u8]) {
        debug_assert_eq!(
            key.get(1..5),
            Some(&self.dataset.to_be_bytes()[..]),
            "a key of another dataset"
        );
    }
}

/// The records of all datasets and of the pool itself, as they lie.
#[derive(Clone, Copy)]
pub(crate) struct PoolRecords<'a> {
    store: &'a dyn Store,
}

impl<'a> PoolRecords<'a> {
    pub(crate) fn of(store: &'a dyn Store) -> Self {
        Self { store }
    }

    /// All datasets, by number.
    pub(crate) fn datasets(&self) -> Result<Vec<(u32, DatasetRecord)>, StoreError> {
        let mut datasets = Vec::new();
        self.for_each(keys::TABLE_DATASET, |key, value| {
            datasets.push((keys::dataset_of(key)?, DatasetRecord::decode(value)?));
            Ok(())
        })?;
        Ok(datasets)
    }

    /// Those of one dataset.
    pub(crate) fn dataset(&self, number: u32) -> Records<'a> {
        Records::of(self.store, number)
    }

    /// The record with this key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.store.get(key)
    }

    /// The records with these keys.
    pub(crate) fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.store.get_many(keys)
    }

    /// Those with `from <= key < to`, ascending, at most `limit`.
    pub(crate) fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.store.scan(from, to, limit)
    }

    /// Calls `visit` for each record of a table, in pages.
    pub(crate) fn for_each(
        &self,
        table: u8,
        visit: impl FnMut(&[u8], &[u8]) -> Result<(), DecodeError>,
    ) -> Result<(), StoreError> {
        let (from, to) = keys::table_range(table);
        self.for_range(from, &to, visit)
    }

    /// Calls `visit` for each record of a range, in pages.
    pub(crate) fn for_range(
        &self,
        mut from: Vec<u8>,
        to: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), DecodeError>,
    ) -> Result<(), StoreError> {
        const PAGE: usize = 1000;
        loop {
            let page = self.scan(&from, to, PAGE)?;
            for (key, value) in &page {
                visit(key, value).map_err(|cause| damaged("a dataset's record", &cause))?;
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => from = after(last),
                _ => return Ok(()),
            }
        }
    }
}

/// The live region record, decoded; `None` if the region is all holes.
pub fn read_region(
    store: &dyn Store,
    dataset: u32,
    object: u64,
    region: u64,
) -> Result<Option<Versioned<RegionRecord>>, StoreError> {
    store
        .get(&keys::region(dataset, object, region))?
        .map(|value| decode_region(&value))
        .transpose()
}

/// Decodes the value of a region record.
pub fn decode_region(value: &[u8]) -> Result<Versioned<RegionRecord>, StoreError> {
    let decoded = split_value(value)
        .and_then(|(birth, payload)| RegionRecord::decode(payload).map(|record| Versioned { birth, record }));
    decoded.map_err(|cause| damaged("a region record", &cause))
}

/// The payload of the version of `key` that is visible as of `checkpoint`, with its birth.
pub fn read_as_of(
    store: &dyn Store,
    key: &[u8],
    checkpoint: u64,
) -> Result<Option<Versioned<Bytes>>, StoreError> {
    // The live record first: a version that moves to history in between is then found there.
    if let Some(value) = store.get(key)? {
        let found = versioned(&value)?;
        if found.birth <= checkpoint {
            return Ok(Some(found));
        }
    }
    match version_after(store, key, checkpoint)? {
        Some(value) => Ok(Some(versioned(&value)?).filter(|found| found.birth <= checkpoint)),
        None => Ok(None),
    }
}

/// What a held checkpoint sees of the region with this key, if that is not the live record.
fn held_region(store: &dyn Store, key: &[u8], held: u64) -> Result<Option<RegionRecord>, StoreError> {
    let version = version_after(store, key, held)?;
    let decoded = version.map(|value| decode_region(&value)).transpose()?;
    Ok(decoded
        .filter(|version| version.birth <= held)
        .map(|version| version.record))
}

/// Takes a value apart without copying its payload.
pub fn versioned(value: &Bytes) -> Result<Versioned<Bytes>, StoreError> {
    let (birth, payload) = split_value(value).map_err(|cause| damaged("a record", &cause))?;
    Ok(Versioned {
        birth,
        record: value.slice(value.len() - payload.len()..),
    })
}

/// The records with `from <= key < to` (live keys of one versioned table and dataset) that are visible as of
/// `checkpoint`, ascending, at most `limit`, with their live keys.
#[allow(clippy::type_complexity)]
pub fn scan_as_of(
    store: &dyn Store,
    from: &[u8],
    to: &[u8],
    checkpoint: u64,
    limit: usize,
) -> Result<Vec<(Vec<u8>, Versioned<Bytes>)>, StoreError> {
    let page = limit.clamp(16, 1024);
    let mut cursor = from.to_vec();
    let mut found: Vec<(Vec<u8>, Versioned<Bytes>)> = Vec::new();
    while found.len() < limit && cursor.as_slice() < to {
        // Live records first: what moves to history in between is then seen twice, never missed.
        let live = store.scan(&cursor, to, page)?;
        let (old, incomplete) = old_versions(store, &cursor, to, page)?;
        let mut visible: BTreeMap<Vec<u8>, Versioned<Bytes>> = BTreeMap::new();
        for (live_key, death, value) in &old {
            let version = versioned(value)?;
            if version.birth <= checkpoint && *death > checkpoint {
                visible.insert(live_key.clone(), version);
            }
        }
        for (key, value) in &live {
            let version = versioned(value)?;
            if version.birth <= checkpoint {
                visible.insert(key.to_vec(), version);
            }
        }
        // Both pages are complete below `end`; a key whose history may go on behind its page is left to the next
        // round, unless it fills the page alone.
        let mut end = to.to_vec();
        if live.len() == page
            && let Some((last, _)) = live.last()
        {
            end = end.min(after(last));
        }
        if let Some(last) = incomplete {
            if last == cursor {
                if let Some(version) = read_as_of(store, &last, checkpoint)? {
                    visible.insert(last.clone(), version);
                } else {
                    visible.remove(&last);
                }
                end = end.min(after(&last));
            } else {
                end = end.min(last);
            }
        }
        let rest = limit - found.len();
        found.extend(visible.into_iter().take_while(|(key, _)| *key < end).take(rest));
        cursor = end;
    }
    Ok(found)
}

/// The first key with `from <= key < to` of which there is a version of any time.
fn first_of_any_time(store: &dyn Store, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
    // Live ones first: see `scan_as_of`.
    let live = store.scan(from, to, 1)?;
    let (old, _) = old_versions(store, from, to, 1)?;
    let live = live.into_iter().map(|(key, _)| key.to_vec());
    Ok(live.chain(old.into_iter().map(|(key, ..)| key)).min())
}

/// Versions in history of the records with `from <= key < to`: live key, death, value; at most `limit`. If there may
/// be more, also the last live key, whose versions may be incomplete.
pub(crate) fn old_versions(
    store: &dyn Store,
    from: &[u8],
    to: &[u8],
    limit: usize,
) -> Result<OldVersions, StoreError> {
    let (mut cursor, end) = (keys::history_prefix(from), keys::history_prefix(to));
    loop {
        let page = store.scan(&cursor, &end, limit)?;
        let full = page.len() == limit;
        let mut found = Vec::with_capacity(page.len());
        let mut last = None;
        for (key, value) in page {
            let (live, death) =
                keys::parse_history(&key).map_err(|cause| damaged("a history key", &cause))?;
            last = Some(live.clone());
            found.push((live, death, value));
        }
        // When `from` is a key with a zero byte behind it, the versions of that key still sort behind it.
        match last {
            Some(last) if full && last.as_slice() < from => {
                cursor = KeyWriter::after_prefix(&keys::history_prefix(&last));
            }
            _ => {
                found.retain(|(live, ..)| live.as_slice() >= from);
                return Ok((found, last.filter(|_| full)));
            }
        }
    }
}

type OldVersions = (Vec<(Vec<u8>, u64, Bytes)>, Option<Vec<u8>>);
