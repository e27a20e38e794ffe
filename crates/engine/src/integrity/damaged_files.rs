//! Which files damaged chunks belong to: a walk over the records of floor 5, in bounded steps.
//!
//! Invariants: one step reads a bounded number of records (finding a directory's name reads that directory); memory is
//! proportional to what is damaged; a table that cannot be read is passed over, and then the list says that it may not
//! be whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use terrace_chunk::ChunkStore;
use terrace_codec::{DecodeError, Reader};
use terrace_dataset::{
    DatasetRecord, EntryRecord, FileKind, HeldRecord, InodeRecord, RegionRecord,
    keys::{self, ROOT_OBJECT, TABLE_ENTRY, TABLE_HELD, TABLE_HISTORY, TABLE_INODE, TABLE_REGION},
    split_value,
};
use terrace_store::{ChunkId, Store, StoreError};

/// Files that are kept at most.
const FILES_MAX: usize = 100_000;
/// Snapshots that are named of one file at most.
const SNAPSHOTS_MAX: usize = 10;
/// Bodies that are told apart at most.
const BODIES_MAX: usize = 1_000_000;
/// Deepest path that is put together.
const DEPTH_MAX: usize = 4096;

/// A file or volume with damaged content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFile {
    /// `POOL/DATASET/PATH`.
    pub path: String,
    /// Damaged blocks of 4 KiB, over all of its versions.
    pub blocks: u64,
    /// Only snapshots or the history have them.
    pub only_history: bool,
    /// Snapshots that hold some of them, the oldest ten.
    pub snapshots: Vec<String>,
}

/// Which chunks are damaged.
pub(crate) enum Damaged {
    /// These.
    Chunks(BTreeSet<ChunkId>),
    /// Those whose copies were all on devices that are not there.
    Gone(Arc<ChunkStore>),
}

impl Damaged {
    fn contains(&self, id: ChunkId) -> Result<bool, StoreError> {
        match self {
            Self::Chunks(chunks) => Ok(chunks.contains(&id)),
            Self::Gone(chunks) => match chunks.is_gone(id) {
                // Whose record is out of reach cannot be read either.
                Err(_) if chunks.metadata_out_of_reach() > 0 => Ok(true),
                told => told,
            },
        }
    }

    /// The next keys from `from` on, up to `end`, whose records are out of reach: first and last.
    fn gap(&self, from: &[u8], end: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let Self::Gone(chunks) = self else { return None };
        let gaps = chunks.keys_out_of_reach().into_iter();
        let ahead = gaps.filter(|(first, last)| &last[..] >= from && &first[..] < end);
        ahead.min()
    }
}

/// What is damaged of a body.
#[derive(Default)]
struct Body {
    blocks: u64,
    /// The live version has some.
    live: bool,
    /// Checkpoints of snapshots that hold some.
    held: BTreeSet<u64>,
}

type Place = (u32, u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Regions,
    Inodes(u32),
    Entries(u32),
    Versions(u8, u32),
}

/// The walk.
pub(crate) struct DamageWalk {
    pool: String,
    damaged: Damaged,
    /// Bodies with damaged blocks.
    bodies: BTreeMap<Place, Body>,
    /// Names of snapshots by checkpoint, of the datasets that are damaged.
    snapshots: BTreeMap<u32, BTreeMap<u64, String>>,
    /// Objects with these bodies.
    objects: BTreeMap<Place, Place>,
    names: BTreeMap<Place, (u64, Vec<u8>)>,
    phases: Vec<Phase>,
    datasets_known: bool,
    from: Vec<u8>,
    whole: bool,
}

impl DamageWalk {
    /// Looks for what refers to these chunks.
    pub(crate) fn new(pool: &str, damaged: Damaged) -> Self {
        Self {
            pool: pool.to_owned(),
            damaged,
            bodies: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            objects: BTreeMap::new(),
            names: BTreeMap::new(),
            phases: vec![Phase::Versions(TABLE_REGION, 0), Phase::Regions],
            datasets_known: false,
            from: Vec::new(),
            whole: true,
        }
    }

    /// Reads about `records` more; false at the end.
    pub(crate) fn step(&mut self, store: &dyn Store, records: usize) -> bool {
        let Some(phase) = self.phases.last().copied() else {
            if self.datasets_known {
                return false;
            }
            self.datasets_known = true;
            let datasets: BTreeSet<u32> = self.bodies.keys().map(|(dataset, _)| *dataset).collect();
            for dataset in datasets {
                self.phases.extend([
                    Phase::Versions(TABLE_ENTRY, dataset),
                    Phase::Entries(dataset),
                    Phase::Versions(TABLE_INODE, dataset),
                    Phase::Inodes(dataset),
                ]);
            }
            return !self.phases.is_empty();
        };
        let (start, end) = match phase {
            Phase::Regions => keys::table_range(TABLE_REGION),
            Phase::Inodes(dataset) => keys::dataset_range(TABLE_INODE, dataset),
            Phase::Entries(dataset) => keys::dataset_range(TABLE_ENTRY, dataset),
            Phase::Versions(TABLE_REGION, _) => keys::table_range(TABLE_HISTORY),
            Phase::Versions(_, dataset) => keys::dataset_range(TABLE_HISTORY, dataset),
        };
        let from = if self.from.is_empty() {
            start
        } else {
            std::mem::take(&mut self.from)
        };
        let found = match store.scan(&from, &end, records.max(1)) {
            Err(error) => match self.damaged.gap(&from, &end) {
                Some((first, last)) => {
                    self.whole = false;
                    // Up to where records are out of reach, and then on behind them.
                    let before = first > from;
                    let found = before.then(|| store.scan(&from, &first, records.max(1)));
                    match found {
                        Some(Ok(found)) if !found.is_empty() => Ok(found),
                        Some(Err(error)) => Err(error),
                        _ => {
                            self.from = last;
                            self.from.push(0);
                            return true;
                        }
                    }
                }
                None => Err(error),
            },
            found => found,
        };
        match found {
            Ok(found) => {
                for (key, value) in &found {
                    if self.record(store, phase, key, value).is_err() {
                        self.whole = false;
                    }
                }
                if let Some((last, _)) = found.last() {
                    self.from = last.to_vec();
                    self.from.push(0);
                    return true;
                }
            }
            Err(_) => self.whole = false,
        }
        self.from.clear();
        self.phases.pop();
        true
    }

    fn record(
        &mut self,
        store: &dyn Store,
        phase: Phase,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), DecodeError> {
        let (death, table, key) = match phase {
            Phase::Versions(table, _) => {
                let (key, death) = keys::parse_history(key)?;
                (Some(death), table, key)
            }
            Phase::Regions => (None, TABLE_REGION, key.to_vec()),
            Phase::Inodes(_) => (None, TABLE_INODE, key.to_vec()),
            Phase::Entries(_) => (None, TABLE_ENTRY, key.to_vec()),
        };
        let live = death.is_none();
        if key.first() != Some(&table) {
            return Ok(());
        }
        let (birth, payload) = split_value(value)?;
        let mut reader = Reader::new(&key);
        reader.u8("table")?;
        let place = (reader.key_u32("dataset")?, reader.key_u64("object")?);
        match table {
            TABLE_REGION => {
                let record = RegionRecord::decode(payload)?;
                let mut blocks = 0;
                for run in record.runs() {
                    match self.damaged.contains(run.chunk) {
                        Ok(true) => blocks += u64::from(run.count),
                        Ok(false) => {}
                        Err(_) => self.whole = false,
                    }
                }
                if blocks > 0 && (self.bodies.len() < BODIES_MAX || self.bodies.contains_key(&place)) {
                    let held = self.holding(store, place.0, birth, death.unwrap_or(u64::MAX));
                    let body = self.bodies.entry(place).or_default();
                    body.blocks += blocks;
                    body.live |= live;
                    body.held.extend(held);
                    while body.held.len() > SNAPSHOTS_MAX {
                        body.held.pop_last();
                    }
                } else if blocks > 0 {
                    self.whole = false;
                }
            }
            TABLE_INODE => {
                let body = (place.0, InodeRecord::decode(payload)?.body);
                if self.bodies.contains_key(&body) {
                    self.objects.insert(place, body);
                }
            }
            _ => {
                let object = (place.0, EntryRecord::decode(payload)?.object);
                if self.objects.contains_key(&object) && (live || !self.names.contains_key(&object)) {
                    let name = keys::parse_entry(&key)?.1.to_vec();
                    self.names.insert(object, (place.1, name));
                }
            }
        }
        Ok(())
    }

    /// Checkpoints of the oldest snapshots that hold a version.
    fn holding(&mut self, store: &dyn Store, dataset: u32, birth: u64, death: u64) -> Vec<u64> {
        let whole = &mut self.whole;
        let snapshots = self.snapshots.entry(dataset).or_insert_with(|| {
            snapshots_of(store, dataset).unwrap_or_else(|_| {
                *whole = false;
                BTreeMap::new()
            })
        });
        let held = snapshots.range(birth..death.max(birth));
        held.map(|(checkpoint, _)| *checkpoint)
            .take(SNAPSHOTS_MAX)
            .collect()
    }

    /// The files, and whether these are surely all of them.
    pub(crate) fn files(&self, store: &dyn Store) -> (Vec<DamagedFile>, bool) {
        let mut known = BTreeMap::new();
        let mut files: Vec<DamagedFile> = Vec::new();
        let mut owned = BTreeSet::new();
        for (object, body) in self.objects.iter().take(FILES_MAX) {
            owned.insert(*body);
            files.push(self.file(self.path(store, *object, &mut known), body));
        }
        for body in self
            .bodies
            .keys()
            .filter(|body| !owned.contains(*body))
            .take(FILES_MAX)
        {
            let path = format!("{}/(deleted object {})", self.dataset(store, body.0), body.1);
            files.push(self.file(path, body));
        }
        (files, self.whole && self.objects.len() <= FILES_MAX)
    }

    fn file(&self, path: String, body: &Place) -> DamagedFile {
        let mut file = DamagedFile {
            path,
            only_history: true,
            ..DamagedFile::default()
        };
        if let Some(found) = self.bodies.get(body) {
            (file.blocks, file.only_history) = (found.blocks, !found.live);
            let names = self.snapshots.get(&body.0);
            let names = found.held.iter().filter_map(|held| names?.get(held));
            file.snapshots = names.cloned().collect();
        }
        file
    }

    fn dataset(&self, store: &dyn Store, number: u32) -> String {
        let record = store.get(&keys::dataset(number)).ok().flatten();
        match record.and_then(|value| DatasetRecord::decode(&value).ok()) {
            Some(record) if record.name.is_empty() => self.pool.clone(),
            Some(record) => format!("{}/{}", self.pool, record.name),
            None => format!("{}/(dataset {number})", self.pool),
        }
    }

    fn path(&self, store: &dyn Store, object: Place, known: &mut BTreeMap<Place, (u64, Vec<u8>)>) -> String {
        let dataset = self.dataset(store, object.0);
        if object.1 == ROOT_OBJECT {
            // The one object of a volume.
            return dataset;
        }
        let Some((directory, name)) = self.names.get(&object) else {
            return format!("{dataset}/(object {})", object.1);
        };
        let mut parts = vec![String::from_utf8_lossy(name).into_owned()];
        let mut at = *directory;
        while at != ROOT_OBJECT && parts.len() < DEPTH_MAX {
            let step = match known.get(&(object.0, at)) {
                Some(step) => step.clone(),
                None => match directory_name(store, object.0, at) {
                    Ok(Some(step)) => step,
                    _ => {
                        parts.push(format!("(directory {at})"));
                        break;
                    }
                },
            };
            known.insert((object.0, at), step.clone());
            parts.push(String::from_utf8_lossy(&step.1).into_owned());
            at = step.0;
        }
        parts.push(dataset);
        parts.reverse();
        parts.join("/")
    }
}

/// The snapshots of a dataset that have names, by checkpoint.
fn snapshots_of(store: &dyn Store, dataset: u32) -> Result<BTreeMap<u64, String>, StoreError> {
    let (mut from, end) = keys::dataset_range(TABLE_HELD, dataset);
    let mut found = BTreeMap::new();
    loop {
        let records = store.scan(&from, &end, 256)?;
        let Some((last, _)) = records.last() else {
            return Ok(found);
        };
        from = last.iter().copied().chain([0]).collect();
        for (key, value) in &records {
            let mut reader = Reader::new(key);
            let checkpoint = reader
                .u8("table")
                .and_then(|_| reader.key_u32("dataset"))
                .and_then(|_| reader.key_u64("checkpoint"));
            if let (Ok(checkpoint), Ok(held)) = (checkpoint, HeldRecord::decode(value))
                && !held.name.is_empty()
            {
                found.insert(checkpoint, held.name);
            }
        }
    }
}

/// The directory that a directory lies in, and its name there.
fn directory_name(
    store: &dyn Store,
    dataset: u32,
    directory: u64,
) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    let inode = store.get(&keys::inode(dataset, directory))?;
    let inode = inode.and_then(|value| {
        let (_, payload) = split_value(&value).ok()?;
        InodeRecord::decode(payload).ok()
    });
    let Some(parent) = inode
        .filter(|inode| inode.kind == FileKind::Directory)
        .map(|inode| inode.parent)
    else {
        return Ok(None);
    };
    let (mut from, end) = (
        keys::entry_from(dataset, parent, 0),
        keys::entry_end(dataset, parent),
    );
    loop {
        let entries = store.scan(&from, &end, 1024)?;
        let Some((last, _)) = entries.last() else {
            return Ok(None);
        };
        for (key, value) in &entries {
            let entry = split_value(value).and_then(|(_, payload)| EntryRecord::decode(payload));
            if let (Ok(entry), Ok((_, name))) = (entry, keys::parse_entry(key))
                && entry.object == directory
            {
                return Ok(Some((parent, name.to_vec())));
            }
        }
        from = last.to_vec();
        from.push(0);
    }
}
