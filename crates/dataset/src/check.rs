//! A full walk over all records of floor 5: what must be true of them, and how often each chunk must be referenced.
//! For audits and tests; takes time and memory in proportion to the pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use terrace_store::{ChunkId, Store, StoreError};

use crate::{
    counters::Counters,
    dataset_record::DatasetRecord,
    datasets::for_each,
    entry::{EntryRecord, OrphanRecord},
    inode::{FileKind, InodeRecord},
    keys,
    preallocated::{Preallocated, PreallocatedTotals},
    recount::shared_blocks_of,
    region::RegionRecord,
    sweep::{DATASET_TABLES, Job},
    versions::{damaged, decode_region, split_value},
};

const PROBLEMS_MAX: usize = 1000;

/// What a full walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Blocks that records map, live and in history, by chunk: what the store's references must be.
    pub references: BTreeMap<ChunkId, i64>,
    /// Inodes, live.
    pub inodes: u64,
    /// Directory entries, live.
    pub entries: u64,
    /// Region records, live.
    pub regions: u64,
    /// Versions in history.
    pub versions: u64,
    /// Bodies with regions that no inode has and no orphan record names: space that is never freed.
    pub lost_bodies: BTreeSet<(u32, u64)>,
    /// Objects with extended attributes that have no inode: what was deleted and left them behind.
    lost_attributes: BTreeSet<(u32, u64)>,
    /// What is wrong, in words; at most 1000.
    pub problems: Vec<String>,
    /// How many there are.
    pub problem_count: u64,
    /// What the counters of each dataset must be.
    counted: BTreeMap<u32, Counters>,
    /// Volumes, with the newest held checkpoint of those that have one.
    volumes: BTreeMap<u32, Option<u64>>,
    /// Volumes of which it is being counted what they have in common with it.
    recounted: BTreeSet<u32>,
}

impl CheckReport {
    fn problem(&mut self, text: impl FnOnce() -> String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text());
        }
    }

    fn refer(&mut self, record: &RegionRecord) {
        for run in record.runs() {
            *self.references.entry(run.chunk).or_insert(0) += i64::from(run.count);
        }
    }

    /// The counters of a dataset that has an object of this number.
    fn counters(&mut self, dataset: u32, number: u64) -> &mut Counters {
        let counters = self.counted.entry(dataset).or_default();
        counters.next_object = counters.next_object.max(number + 1);
        counters
    }
}

/// Walks over everything. Nothing may be committed meanwhile.
pub fn check(store: &Arc<dyn Store>) -> Result<CheckReport, StoreError> {
    let mut report = CheckReport::default();
    // The records of those that were destroyed are being freed, table by table: they need not agree any more.
    let mut existing = BTreeSet::new();
    for_each(store, keys::TABLE_DATASET, |key, value| {
        let dataset = keys::dataset_of(key)?;
        existing.insert(dataset);
        if DatasetRecord::decode(value).is_ok_and(|record| record.kind.is_volume()) {
            report.volumes.insert(dataset, None);
        }
        Ok(())
    })?;
    for_each(store, keys::TABLE_HELD, |key, _| {
        let mut reader = terrace_codec::Reader::new(key);
        reader.u8("table")?;
        let (dataset, checkpoint) = (reader.key_u32("dataset")?, reader.key_u64("checkpoint")?);
        if let Some(newest) = report.volumes.get_mut(&dataset) {
            *newest = (*newest).max(Some(checkpoint));
        }
        Ok(())
    })?;
    check_regions(store, &mut report)?;
    check_namespace(store, &existing, &mut report)?;
    check_history(store, &existing, &mut report)?;
    check_strays(store, &existing, &mut report)?;
    report
        .lost_bodies
        .retain(|(dataset, _)| existing.contains(dataset));
    for (dataset, object) in std::mem::take(&mut report.lost_attributes) {
        if existing.contains(&dataset) {
            report.problem(|| {
                format!("object {object} of dataset {dataset} is gone and has extended attributes still")
            });
        }
    }
    check_counters(store, &existing, &mut report)?;
    Ok(report)
}

/// Records of datasets that are neither there nor being freed.
fn check_strays(
    store: &Arc<dyn Store>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut known = existing.clone();
    for_each(store, keys::TABLE_SWEEP, |_, value| {
        match Job::decode(value)? {
            Job::Dataset { dataset, .. } => drop(known.insert(dataset)),
            // One that a newer checkpoint has overtaken counts nothing any more.
            Job::Recount { dataset, held, .. } if report.volumes.get(&dataset) == Some(&Some(held)) => {
                report.recounted.insert(dataset);
            }
            Job::Recount { .. } => {}
            Job::Snapshot { .. } => {}
        }
        Ok(())
    })?;
    for table in DATASET_TABLES {
        let mut next = Some(0);
        while let Some(dataset) = next {
            let (from, _) = keys::dataset_range(table, dataset);
            let page = store.scan(&from, &[table + 1], 1)?;
            let Some((key, _)) = page.first() else { break };
            let found = keys::dataset_of(key).map_err(|cause| damaged("a key", &cause))?;
            if !known.contains(&found) {
                report.problem(|| {
                    format!("table {table} has records of dataset {found}, which does not exist")
                });
            }
            next = found.checked_add(1);
        }
    }
    Ok(())
}

fn check_counters(
    store: &Arc<dyn Store>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut counted = std::mem::take(&mut report.counted);
    for_each(store, keys::TABLE_COUNTERS, |key, value| {
        let dataset = keys::dataset_of(key)?;
        let says = Counters::decode(value)?;
        let is = counted.remove(&dataset).unwrap_or_default();
        let differs = |says: &Counters| {
            (says.live_blocks, says.history_blocks, says.objects)
                != (is.live_blocks, is.history_blocks, is.objects)
                || PreallocatedTotals {
                    since: 0,
                    ..says.preallocated
                } != is.preallocated
        };
        let shared = is.shared_blocks.unwrap_or(0);
        if let Some(says) = says.shared_blocks
            && existing.contains(&dataset)
            && !report.recounted.contains(&dataset)
            && says != shared
        {
            report.problem(|| {
                format!(
                    "volume {dataset} has {shared} blocks in common with its newest held checkpoint, its counters say {says}"
                )
            });
        }
        // Of a destroyed one nothing is counted any more while it is freed.
        if existing.contains(&dataset) && (differs(&says) || says.next_object < is.next_object) {
            report.problem(|| format!("dataset {dataset} has {is:?}, its counters say {says:?}"));
        }
        Ok(())
    })?;
    for dataset in counted.keys().filter(|dataset| existing.contains(dataset)) {
        report.problem(|| format!("dataset {dataset} has no counters"));
    }
    Ok(())
}

fn check_regions(store: &Arc<dyn Store>, report: &mut CheckReport) -> Result<(), StoreError> {
    let mut unknown = None;
    for_each(store, keys::TABLE_REGION, |key, value| {
        report.regions += 1;
        let (dataset, body, _) = keys::parse_region(key)?;
        report.lost_bodies.insert((dataset, body));
        match split_value(value).and_then(|(_, payload)| RegionRecord::decode(payload)) {
            Ok(record) if record.is_empty() => report.problem(|| format!("region {key:02x?} maps nothing")),
            Ok(record) => {
                let shared = match report.volumes.get(&dataset) {
                    Some(Some(held)) => shared_blocks_of(store.as_ref(), key, value, *held),
                    _ => Ok(0),
                };
                let counters = report.counters(dataset, 0);
                counters.live_blocks += u64::from(record.mapped_blocks());
                match shared {
                    Ok(shared) => *counters.shared_blocks.get_or_insert(0) += shared,
                    Err(error) => unknown = unknown.take().or(Some(error)),
                }
                report.refer(&record);
            }
            Err(error) => report.problem(|| format!("region {key:02x?}: {error}")),
        }
        Ok(())
    })?;
    unknown.map_or(Ok(()), Err)
}

/// What a file has preallocated must be what its regions say.
fn check_preallocated(
    store: &Arc<dyn Store>,
    id: (u32, u64),
    body: u64,
    preallocated: &Preallocated,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let newest_snapshot = match store.get(&keys::counters(id.0))? {
        Some(value) => {
            let counters =
                Counters::decode(&value).map_err(|cause| damaged("a dataset's counters", &cause))?;
            counters.preallocated.since
        }
        None => 0,
    };
    let (mut mapped, mut own) = (0, 0);
    let mut from = keys::region(id.0, body, 0);
    let to = keys::region_end(id.0, body);
    loop {
        let records = store.scan(&from, &to, 1024)?;
        for (key, value) in &records {
            let region = keys::parse_region(key)
                .map_err(|cause| damaged("a key", &cause))?
                .2;
            let (of_mapped, of_own) = preallocated.count(region, &decode_region(value)?.record);
            mapped += of_mapped;
            own += of_own;
        }
        let Some((last, _)) = records.last() else { break };
        from = last.to_vec();
        from.push(0);
    }
    if (mapped, own) != (preallocated.mapped_blocks, preallocated.own_blocks) {
        report.problem(|| {
            format!(
                "inode {id:?} has {mapped} blocks mapped of what is preallocated, {own} of them own; it says {} and {}",
                preallocated.mapped_blocks, preallocated.own_blocks
            )
        });
    }
    let totals = &mut report.counters(id.0, id.1).preallocated;
    totals.blocks += preallocated.blocks();
    totals.mapped_blocks += preallocated.mapped_blocks;
    totals.own_blocks += preallocated.own_blocks_since(newest_snapshot);
    Ok(())
}

#[derive(Default)]
struct Counted {
    links: u64,
    directories: u64,
}

fn check_namespace(
    store: &Arc<dyn Store>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut named: BTreeMap<(u32, u64), (Counted, FileKind)> = BTreeMap::new();
    let mut inside: BTreeMap<(u32, u64), Counted> = BTreeMap::new();
    for_each(store, keys::TABLE_ENTRY, |key, value| {
        report.entries += 1;
        let decoded = split_value(value).and_then(|(_, payload)| EntryRecord::decode(payload));
        let place = keys::parse_entry(key).and_then(|_| {
            let mut reader = terrace_codec::Reader::new(key);
            reader.u8("table")?;
            Ok((reader.key_u32("dataset")?, reader.key_u64("directory")?))
        });
        match (decoded, place) {
            (Ok(entry), Ok((dataset, directory))) => {
                let (counted, _) = named
                    .entry((dataset, entry.object))
                    .or_insert((Counted::default(), entry.kind));
                counted.links += 1;
                let counted = inside.entry((dataset, directory)).or_default();
                counted.links += 1;
                counted.directories += u64::from(entry.kind == FileKind::Directory);
            }
            (Err(error), _) | (_, Err(error)) => report.problem(|| format!("entry {key:02x?}: {error}")),
        }
        Ok(())
    })?;
    let mut orphans = Vec::new();
    for_each(store, keys::TABLE_ORPHAN, |key, value| {
        let place = keys::parse_orphan(key)?;
        match OrphanRecord::decode(value)? {
            OrphanRecord::Open => orphans.push(place),
            OrphanRecord::Freed { .. } => drop(report.lost_bodies.remove(&place)),
        }
        Ok(())
    })?;
    // Looked up one by one rather than kept: there may be as many as there are files.
    let mut owner = None;
    let mut unknown = None;
    let mut preallocated_files = Vec::new();
    for_each(store, keys::TABLE_XATTR, |key, _| {
        let mut reader = terrace_codec::Reader::new(key);
        reader.u8("table")?;
        let place = (reader.key_u32("dataset")?, reader.key_u64("object")?);
        if owner.replace(place) != Some(place) {
            match store.get(&keys::inode(place.0, place.1)) {
                Ok(Some(_)) => {}
                Ok(None) => drop(report.lost_attributes.insert(place)),
                Err(error) => unknown = unknown.take().or(Some(error)),
            }
        }
        Ok(())
    })?;
    if let Some(error) = unknown {
        return Err(error);
    }
    for_each(store, keys::TABLE_INODE, |key, value| {
        report.inodes += 1;
        let mut reader = terrace_codec::Reader::new(key);
        reader.u8("table")?;
        let id = (reader.key_u32("dataset")?, reader.key_u64("object")?);
        let inode = match split_value(value).and_then(|(_, payload)| InodeRecord::decode(payload)) {
            Ok(inode) => inode,
            Err(error) => {
                report.problem(|| format!("inode {id:?}: {error}"));
                return Ok(());
            }
        };
        report.lost_bodies.remove(&(id.0, inode.body));
        report.counters(id.0, id.1).objects += 1;
        if let Some(preallocated) = &inode.preallocated {
            preallocated_files.push((id, inode.body, preallocated.clone()));
        }
        if !existing.contains(&id.0) {
            return Ok(());
        }
        let links = named.remove(&id).map_or(0, |(counted, _)| counted.links);
        let inside = inside.remove(&id).unwrap_or_default();
        let expected = match inode.kind {
            FileKind::Directory => 2 + inside.directories,
            _ => links,
        };
        let orphan = orphans.contains(&id);
        if orphan && links > 0 {
            report.problem(|| format!("inode {id:?} has {links} names and is noted as an orphan"));
        }
        if inode.kind == FileKind::Volume || (orphan && links == 0) {
            return Ok(());
        }
        if u64::from(inode.links) != expected {
            report.problem(|| format!("inode {id:?} says {} links, there are {expected}", inode.links));
        }
        if links == 0 && id.1 != keys::ROOT_OBJECT {
            report.problem(|| format!("inode {id:?} has no name and is no orphan"));
        }
        if inode.kind == FileKind::Directory && inode.size != inside.links {
            report.problem(|| {
                format!(
                    "directory {id:?} says {} entries, there are {}",
                    inode.size, inside.links
                )
            });
        }
        Ok(())
    })?;
    for (id, body, preallocated) in preallocated_files {
        if existing.contains(&id.0) {
            check_preallocated(store, id, body, &preallocated, report)?;
        }
    }
    let exists = |id: &&(u32, u64)| existing.contains(&id.0);
    for id in named.keys().filter(exists) {
        report.problem(|| format!("an entry names object {id:?}, which has no inode"));
    }
    for id in inside.keys().filter(exists) {
        report.problem(|| format!("entries lie in directory {id:?}, which has no inode"));
    }
    Ok(())
}

fn check_history(
    store: &Arc<dyn Store>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let (mut versions, mut indexed) = (0u64, 0u64);
    for_each(store, keys::TABLE_HISTORY, |key, value| {
        report.versions += 1;
        versions += u64::from(existing.contains(&keys::dataset_of(key)?));
        let (live, death) = keys::parse_history(key)?;
        let (birth, payload) = split_value(value)?;
        if birth >= death {
            report.problem(|| format!("version {key:02x?} was born in {birth} and died in {death}"));
        }
        if live.first() == Some(&keys::TABLE_REGION) {
            match RegionRecord::decode(payload) {
                Ok(record) => {
                    let (dataset, ..) = keys::parse_region(&live)?;
                    report.counters(dataset, 0).history_blocks += u64::from(record.mapped_blocks());
                    report.refer(&record);
                }
                Err(error) => report.problem(|| format!("version {key:02x?}: {error}")),
            }
        }
        Ok(())
    })?;
    let mut missing = Vec::new();
    for_each(store, keys::TABLE_HOLDER, |key, _| {
        if !existing.contains(&keys::dataset_of(key)?) {
            return Ok(());
        }
        indexed += 1;
        let holding = keys::parse_holder(key)?;
        if holding.birth > holding.holder || holding.holder >= holding.death {
            report.problem(|| format!("{holding:?} holds nothing"));
        }
        missing.push(keys::history(&holding.live, holding.death));
        Ok(())
    })?;
    for key in missing {
        if store.get(&key)?.is_none() {
            report.problem(|| format!("the index names version {key:02x?}, which does not exist"));
        }
    }
    if indexed != versions {
        report.problem(|| format!("{versions} versions, but {indexed} index records"));
    }
    Ok(())
}
