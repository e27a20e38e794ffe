//! `Directories`: names as they are, from RAM or from the records, and their listing.
//!
//! Invariant: what is in RAM hides what the records have; a removal that is committed during a listing is not missed.

use crate::{
    live::{DatasetState, ObjectTable},
    objects::{Found, NameKey, Object, Target, name_bytes},
    posix::{Attributes, DirectoryEntry, FsError},
    records::{EntryRecord, damaged, keys, split_value},
};
use std::sync::Arc;

/// Directories up to this many names are read as a whole when a name is not in RAM.
const SMALL_DIRECTORY: u64 = 256;
/// Records of one scan.
const SCAN: usize = 4096;

fn decode_entry(value: &[u8]) -> Result<(u64, Target), FsError> {
    let decoded = split_value(value)
        .and_then(|(birth, payload)| EntryRecord::decode(payload).map(|entry| (birth, entry)))
        .map_err(|cause| damaged("a directory entry", &cause))?;
    Ok((
        decoded.0,
        Target {
            object: decoded.1.object,
            kind: decoded.1.kind,
        },
    ))
}

/// See the module.
pub(crate) struct Directories {
    dataset: Arc<DatasetState>,
    table: Arc<ObjectTable>,
}

impl Directories {
    pub(crate) fn new(dataset: &Arc<DatasetState>, table: &Arc<ObjectTable>) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
        })
    }

    /// What a name is, from RAM or from the records.
    pub(crate) fn find(&self, directory: &Arc<Object>, name: &[u8]) -> Result<Option<Target>, FsError> {
        let hash = keys::entry_hash(name);
        let (version, small) = {
            let state = directory.state();
            let Some(entries) = &state.entries else {
                return Err(FsError::NotDirectory);
            };
            match entries.find(hash, name) {
                Found::Target(target) => return Ok(Some(target)),
                Found::Absent => return Ok(None),
                Found::Unknown => (entries.version, state.inode.size <= SMALL_DIRECTORY),
            }
        };
        if small && self.read_all(directory)? {
            let state = directory.state();
            if let Some(entries) = &state.entries {
                match entries.find(hash, name) {
                    Found::Target(target) => return Ok(Some(target)),
                    Found::Absent => return Ok(None),
                    Found::Unknown => {}
                }
            }
        }
        let key = keys::entry(self.dataset.number(), directory.number, name);
        let Some(value) = self.dataset.records().get(&key)? else {
            return Ok(None);
        };
        let (birth, target) = decode_entry(&value)?;
        let mut state = directory.state();
        if let Some(entries) = &mut state.entries
            && entries.version == version
        {
            entries.cache(
                &NameKey {
                    hash,
                    name: name.into(),
                },
                target,
                birth,
            );
            drop(state);
            self.dataset.environment().caches.relieve();
        }
        Ok(Some(target))
    }

    /// Brings all names of a directory into RAM, if there is room. Whether they are.
    fn read_all(&self, directory: &Arc<Object>) -> Result<bool, FsError> {
        let version = {
            let state = directory.state();
            let Some(entries) = &state.entries else {
                return Err(FsError::NotDirectory);
            };
            if entries.complete {
                return Ok(true);
            }
            if self.table.name_count().bytes() + state.inode.size * name_bytes(0) > self.table.names_limit() {
                return Ok(false);
            }
            entries.version
        };
        let mut from = keys::entry_from(self.dataset.number(), directory.number, 0);
        let to = keys::entry_end(self.dataset.number(), directory.number);
        let mut read = Vec::new();
        loop {
            let records = self.dataset.records().scan(&from, &to, SCAN)?;
            for (key, value) in &records {
                let (hash, name) = keys::parse_entry(key)?;
                let (birth, target) = decode_entry(value)?;
                read.push((
                    NameKey {
                        hash,
                        name: name.into(),
                    },
                    target,
                    birth,
                ));
            }
            if read.len() as u64 * name_bytes(0) > self.table.names_limit() {
                return Ok(false);
            }
            match records.last() {
                Some((key, _)) if records.len() == SCAN => {
                    from = key.to_vec();
                    from.push(0);
                }
                _ => break,
            }
        }
        let mut state = directory.state();
        let Some(entries) = &mut state.entries else {
            return Ok(false);
        };
        if entries.version != version {
            return Ok(entries.complete);
        }
        for (key, target, birth) in read {
            entries.cache(&key, target, birth);
        }
        entries.complete = true;
        drop(state);
        self.dataset.environment().caches.relieve();
        Ok(true)
    }

    /// `stat`.
    pub(crate) fn attributes_of(&self, number: u64) -> Result<Attributes, FsError> {
        let object = self.table.object(number)?;
        let state = object.state();
        if state.freed {
            Err(FsError::Stale)
        } else {
            Ok(state.attributes(number))
        }
    }

    /// At most `limit` names behind cookie `from`.
    pub(crate) fn list(
        &self,
        directory: u64,
        from: u64,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>, FsError> {
        let directory = self.table.directory(directory)?;
        if limit == 0 {
            return Ok(Vec::new());
        }
        if from == 0 {
            self.read_all(&directory)?;
        }
        let mut from = from;
        loop {
            let (found, to) = self.list_page(&directory, from, limit)?;
            match to {
                // A whole page of names that were just removed.
                Some(to) if found.is_empty() => from = to,
                _ => return Ok(found),
            }
        }
    }

    /// The same of the names up to a cookie that is returned; without one it is all names.
    fn list_page(
        &self,
        directory: &Arc<Object>,
        from: u64,
        limit: usize,
    ) -> Result<(Vec<DirectoryEntry>, Option<u64>), FsError> {
        let entry = |key: &NameKey, target: Target| DirectoryEntry {
            name: key.name.to_vec(),
            object: target.object,
            kind: target.kind,
            cookie: key.hash,
        };
        // What is in RAM first, then the records: a removal that is committed in between must not be missed.
        let mut cached = Vec::new();
        let mut cached_to = u64::MAX;
        {
            let state = directory.state();
            let Some(entries) = &state.entries else {
                return Err(FsError::NotDirectory);
            };
            if entries.complete {
                let names = entries
                    .after(from)
                    .filter_map(|(key, slot)| slot.target.map(|target| entry(key, target)));
                return Ok((names.take(limit).collect(), None));
            }
            for (key, slot) in entries.after(from) {
                if cached.len() >= limit.saturating_mul(2) {
                    cached_to = key.hash - 1;
                    break;
                }
                cached.push((key.clone(), slot.target));
            }
        }
        let start = keys::entry_from(self.dataset.number(), directory.number, from.saturating_add(1));
        let end = keys::entry_end(self.dataset.number(), directory.number);
        let records = self.dataset.records().scan(&start, &end, limit)?;
        let mut listed = std::collections::BTreeMap::new();
        let mut scanned_to = u64::MAX;
        for (key, value) in &records {
            let (hash, name) = keys::parse_entry(key)?;
            if records.len() == limit {
                scanned_to = hash;
            }
            listed.insert(
                NameKey {
                    hash,
                    name: name.into(),
                },
                decode_entry(value)?.1,
            );
        }
        for (key, target) in cached {
            match target {
                Some(target) => listed.insert(key, target),
                None => listed.remove(&key),
            };
        }
        let to = cached_to.min(scanned_to);
        let found: Vec<_> = listed
            .into_iter()
            .filter(|(key, _)| key.hash <= to)
            .take(limit)
            .map(|(key, target)| entry(&key, target))
            .collect();
        Ok((found, (to != u64::MAX).then_some(to)))
    }
}
