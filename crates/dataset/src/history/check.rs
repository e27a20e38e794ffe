//! A full walk over all records of floor 5: what must be true of them, and how often each chunk must be referenced.
//! For audits and tests; takes time in proportion to the pool.
//!
//! Invariant: what is compared of objects is compared for some of them at a time, by their numbers, so that memory is bounded
//! ([`check_within`]); only who asks for all references at once ([`check`]) has them in memory.

mod preallocated;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use terrace_store::{ChunkId, Store, StoreError};

use self::preallocated::check_preallocated;
use super::recount::shared_blocks_of;
use crate::records::{
    Counters, DATASET_TABLES, DatasetRecord, EntryRecord, FileKind, InodeRecord, Job, OrphanRecord,
    PoolRecords, PreallocatedTotals, RegionRecord, after, damaged, keys, split_value,
};

const PROBLEMS_MAX: usize = 1000;
/// Versions that are looked up together.
const LOOKED_UP_AT_ONCE: usize = 1024;

/// What a full walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Blocks that records map, live and in history, by chunk: what the store's references must be. Empty where memory is bounded:
    /// see [`count_references`].
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
    /// Whether references are kept.
    keeps_references: bool,
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
        if !self.keeps_references {
            return;
        }
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
    let report = CheckReport {
        keeps_references: true,
        ..CheckReport::default()
    };
    walk(PoolRecords::of(store.as_ref()), report, usize::MAX)
}

/// The same with what is known of no more than so many objects in memory at a time, and without references.
pub fn check_within(store: &Arc<dyn Store>, objects_at_once: usize) -> Result<CheckReport, StoreError> {
    let records = PoolRecords::of(store.as_ref());
    walk(records, CheckReport::default(), objects_at_once.max(1))
}

/// Tells of each run of blocks that a record maps, live or in history, what it refers to. Records that do not decode are left out:
/// the check names them.
pub fn count_references(
    store: &Arc<dyn Store>,
    count: &mut dyn FnMut(ChunkId, i64),
) -> Result<(), StoreError> {
    let records = PoolRecords::of(store.as_ref());
    let mut refer = |payload: &[u8]| {
        if let Ok(record) = RegionRecord::decode(payload) {
            let runs = record.runs().iter();
            runs.for_each(|run| count(run.chunk, i64::from(run.count)));
        }
    };
    records.for_each(keys::TABLE_REGION, |_, value| {
        if let Ok((_, payload)) = split_value(value) {
            refer(payload);
        }
        Ok(())
    })?;
    records.for_each(keys::TABLE_HISTORY, |key, value| {
        let (live, _) = keys::parse_history(key)?;
        if live.first() == Some(&keys::TABLE_REGION) {
            refer(split_value(value)?.1);
        }
        Ok(())
    })
}

fn walk(
    records: PoolRecords<'_>,
    mut report: CheckReport,
    objects_at_once: usize,
) -> Result<CheckReport, StoreError> {
    // The records of those that were destroyed are being freed, table by table: they need not agree any more.
    let mut existing = BTreeSet::new();
    records.for_each(keys::TABLE_DATASET, |key, value| {
        let dataset = keys::dataset_of(key)?;
        existing.insert(dataset);
        if DatasetRecord::decode(value).is_ok_and(|record| record.kind.is_volume()) {
            report.volumes.insert(dataset, None);
        }
        Ok(())
    })?;
    records.for_each(keys::TABLE_HELD, |key, _| {
        let (dataset, checkpoint) = keys::parse_held(key)?;
        if let Some(newest) = report.volumes.get_mut(&dataset) {
            *newest = (*newest).max(Some(checkpoint));
        }
        Ok(())
    })?;
    check_regions(records, &mut report)?;
    check_bodies(records, &existing, objects_at_once, &mut report)?;
    check_attributes(records, &existing, &mut report)?;
    let mut from = Some((0, 0));
    while let Some(first) = from {
        from = check_namespace(records, &existing, (first, objects_at_once), &mut report)?;
    }
    check_preallocated(records, &existing, &mut report)?;
    check_history(records, &existing, &mut report)?;
    check_strays(records, &existing, &mut report)?;
    check_counters(records, &existing, &mut report)?;
    Ok(report)
}

/// Records of datasets that are neither there nor being freed.
fn check_strays(
    records: PoolRecords<'_>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut known = existing.clone();
    records.for_each(keys::TABLE_SWEEP, |_, value| {
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
            let page = records.scan(&from, &[table + 1], 1)?;
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
    records: PoolRecords<'_>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut counted = std::mem::take(&mut report.counted);
    records.for_each(keys::TABLE_COUNTERS, |key, value| {
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

fn check_regions(records: PoolRecords<'_>, report: &mut CheckReport) -> Result<(), StoreError> {
    let mut unknown = None;
    records.for_each(keys::TABLE_REGION, |key, value| {
        report.regions += 1;
        let (dataset, ..) = keys::parse_region(key)?;
        match split_value(value).and_then(|(_, payload)| RegionRecord::decode(payload)) {
            Ok(record) if record.is_empty() => report.problem(|| format!("region {key:02x?} maps nothing")),
            Ok(record) => {
                let shared = match report.volumes.get(&dataset) {
                    Some(Some(held)) => shared_blocks_of(records.dataset(dataset), key, value, *held),
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

/// An object, or a body, of a dataset.
type Place = (u32, u64);

/// Bodies with regions that belong to nothing.
fn check_bodies(
    records: PoolRecords<'_>,
    existing: &BTreeSet<u32>,
    bodies_at_once: usize,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut from = Some((0, 0));
    while let Some(first) = from {
        // Those that regions name, ascending; from each the next is looked for, whatever it has itself.
        let mut bodies: Vec<(Place, bool)> = Vec::new();
        from = None;
        let mut last = None;
        records.for_range(
            keys::region(first.0, first.1, 0),
            &[keys::TABLE_REGION + 1],
            |key, _| {
                let (dataset, body, _) = keys::parse_region(key)?;
                let place = (dataset, body);
                if from.is_none() && last.replace(place) != Some(place) {
                    match bodies.len() < bodies_at_once {
                        true => bodies.push((place, false)),
                        false => from = Some(place),
                    }
                }
                Ok(())
            },
        )?;
        let mut belongs = |place: Place| {
            if let Ok(at) = bodies.binary_search_by_key(&place, |(place, _)| *place) {
                bodies[at].1 = true;
            }
        };
        records.for_each(keys::TABLE_ORPHAN, |key, value| {
            let place = keys::parse_orphan(key)?;
            if let OrphanRecord::Freed { .. } = OrphanRecord::decode(value)? {
                belongs(place);
            }
            Ok(())
        })?;
        records.for_each(keys::TABLE_INODE, |key, value| {
            let place = object_of(key)?;
            if let Ok(inode) = split_value(value).and_then(|(_, payload)| InodeRecord::decode(payload)) {
                belongs((place.0, inode.body));
            }
            Ok(())
        })?;
        let lost = bodies
            .iter()
            .filter(|(place, found)| !found && existing.contains(&place.0));
        report.lost_bodies.extend(lost.map(|(place, _)| *place));
    }
    Ok(())
}

/// Objects with extended attributes that have no inode: what was deleted and left them behind.
fn check_attributes(
    records: PoolRecords<'_>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    // Looked up one by one rather than kept: there may be as many as there are files.
    let mut owner = None;
    let mut unknown = None;
    records.for_each(keys::TABLE_XATTR, |key, _| {
        let place = object_of(key)?;
        if owner.replace(place) == Some(place) {
            return Ok(());
        }
        match records.get(&keys::inode(place.0, place.1)) {
            Ok(Some(_)) => {}
            Ok(None) if existing.contains(&place.0) => {
                let (dataset, object) = place;
                report.problem(|| {
                    format!("object {object} of dataset {dataset} is gone and has extended attributes still")
                });
            }
            Ok(None) => {}
            Err(error) => unknown = unknown.take().or(Some(error)),
        }
        Ok(())
    })?;
    unknown.map_or(Ok(()), Err)
}

/// The object of an inode's, an attribute's or an entry's key: of the latter the directory.
fn object_of(key: &[u8]) -> Result<Place, terrace_codec::DecodeError> {
    let mut reader = terrace_codec::Reader::new(key);
    reader.u8("table")?;
    Ok((reader.key_u32("dataset")?, reader.key_u64("object")?))
}

/// What names say of one object.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// Names of it; names in it, and those of directories among them.
    links: u32,
    inside: u32,
    directories: u32,
    is_orphan: bool,
}

/// Of the objects of one pass, ascending, what is known of each.
struct Objects {
    all: Vec<(Place, Counted)>,
    first: Place,
    /// The first one of the next pass.
    end: Option<Place>,
    /// Objects that have names or are named, and no inode: the first few.
    strangers: BTreeSet<(Place, bool)>,
}

impl Objects {
    /// Those that have inodes, so many at most.
    fn read(records: PoolRecords<'_>, first: Place, most: usize) -> Result<Self, StoreError> {
        let mut objects = Self {
            all: Vec::new(),
            first,
            end: None,
            strangers: BTreeSet::new(),
        };
        let mut from = keys::inode(first.0, first.1);
        loop {
            let page = records.scan(&from, &[keys::TABLE_INODE + 1], 1000)?;
            for (key, _) in &page {
                let place = object_of(key).map_err(|cause| damaged("a key", &cause))?;
                if objects.all.len() >= most {
                    objects.end = Some(place);
                    return Ok(objects);
                }
                objects.all.push((place, Counted::default()));
            }
            let Some((last, _)) = page.last() else {
                return Ok(objects);
            };
            from = after(last);
        }
    }

    /// What is known of one; `is_named`: as one that is named, else as one that has names in it. None of another pass.
    fn get(&mut self, place: Place, is_named: bool) -> Option<&mut Counted> {
        if place < self.first || self.end.is_some_and(|end| place >= end) {
            return None;
        }
        match self.all.binary_search_by_key(&place, |(place, _)| *place) {
            Ok(at) => Some(&mut self.all[at].1),
            Err(_) => {
                if self.strangers.len() < PROBLEMS_MAX {
                    self.strangers.insert((place, is_named));
                }
                None
            }
        }
    }
}

/// Compares names and inodes of the objects from one on, so many at most; where the next ones begin.
fn check_namespace(
    records: PoolRecords<'_>,
    existing: &BTreeSet<u32>,
    (first, most): (Place, usize),
    report: &mut CheckReport,
) -> Result<Option<Place>, StoreError> {
    let is_first = first == (0, 0);
    let mut objects = Objects::read(records, first, most)?;
    records.for_each(keys::TABLE_ENTRY, |key, value| {
        report.entries += u64::from(is_first);
        let decoded = split_value(value).and_then(|(_, payload)| EntryRecord::decode(payload));
        let place = keys::parse_entry(key).and_then(|_| object_of(key));
        match (decoded, place) {
            (Ok(entry), Ok((dataset, directory))) => {
                if let Some(counted) = objects.get((dataset, entry.object), true) {
                    counted.links = counted.links.saturating_add(1);
                }
                if let Some(counted) = objects.get((dataset, directory), false) {
                    counted.inside = counted.inside.saturating_add(1);
                    counted.directories += u32::from(entry.kind == FileKind::Directory);
                }
            }
            (Err(error), _) | (_, Err(error)) if is_first => {
                report.problem(|| format!("entry {key:02x?}: {error}"));
            }
            _ => {}
        }
        Ok(())
    })?;
    records.for_each(keys::TABLE_ORPHAN, |key, value| {
        let place = keys::parse_orphan(key)?;
        if OrphanRecord::decode(value)? == OrphanRecord::Open
            && let Ok(at) = objects.all.binary_search_by_key(&place, |(place, _)| *place)
        {
            objects.all[at].1.is_orphan = true;
        }
        Ok(())
    })?;
    let from = keys::inode(objects.first.0, objects.first.1);
    let to = match objects.end {
        Some(end) => keys::inode(end.0, end.1),
        None => vec![keys::TABLE_INODE + 1],
    };
    let mut counted = objects.all.iter();
    records.for_range(from, &to, |_, value| {
        if let Some((id, counted)) = counted.next() {
            check_inode(*id, value, *counted, existing, report);
        }
        Ok(())
    })?;
    for (id, is_named) in &objects.strangers {
        if existing.contains(&id.0) {
            report.problem(|| match is_named {
                true => format!("an entry names object {id:?}, which has no inode"),
                false => format!("entries lie in directory {id:?}, which has no inode"),
            });
        }
    }
    Ok(objects.end)
}

/// Compares an inode with what names say of it.
fn check_inode(
    id: Place,
    value: &[u8],
    counted: Counted,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) {
    report.inodes += 1;
    let inode = match split_value(value).and_then(|(_, payload)| InodeRecord::decode(payload)) {
        Ok(inode) => inode,
        Err(error) => {
            report.problem(|| format!("inode {id:?}: {error}"));
            return;
        }
    };
    report.counters(id.0, id.1).objects += 1;
    if !existing.contains(&id.0) {
        return;
    }
    let links = counted.links;
    let expected = match inode.kind {
        FileKind::Directory => 2 + counted.directories,
        _ => links,
    };
    if counted.is_orphan && links > 0 {
        report.problem(|| format!("inode {id:?} has {links} names and is noted as an orphan"));
    }
    if inode.kind == FileKind::Volume || (counted.is_orphan && links == 0) {
        return;
    }
    if inode.links != expected {
        report.problem(|| format!("inode {id:?} says {} links, there are {expected}", inode.links));
    }
    if links == 0 && id.1 != keys::ROOT_OBJECT {
        report.problem(|| format!("inode {id:?} has no name and is no orphan"));
    }
    if inode.kind == FileKind::Directory && inode.size != u64::from(counted.inside) {
        report.problem(|| {
            format!(
                "directory {id:?} says {} entries, there are {}",
                inode.size, counted.inside
            )
        });
    }
}

fn check_history(
    records: PoolRecords<'_>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let (mut versions, mut indexed) = (0u64, 0u64);
    records.for_each(keys::TABLE_HISTORY, |key, value| {
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
    let mut unknown = None;
    let mut named = Vec::new();
    let mut look_up = |named: &mut Vec<Vec<u8>>, report: &mut CheckReport| {
        let asked: Vec<&[u8]> = named.iter().map(Vec::as_slice).collect();
        match records.get_many(&asked) {
            Ok(values) => {
                for (key, _) in named.iter().zip(values).filter(|(_, value)| value.is_none()) {
                    report.problem(|| format!("the index names version {key:02x?}, which does not exist"));
                }
            }
            Err(error) => unknown = unknown.take().or(Some(error)),
        }
        named.clear();
    };
    records.for_each(keys::TABLE_HOLDER, |key, _| {
        if !existing.contains(&keys::dataset_of(key)?) {
            return Ok(());
        }
        indexed += 1;
        let holding = keys::parse_holder(key)?;
        if holding.birth > holding.holder || holding.holder >= holding.death {
            report.problem(|| format!("{holding:?} holds nothing"));
        }
        named.push(keys::history(&holding.live, holding.death));
        if named.len() >= LOOKED_UP_AT_ONCE {
            look_up(&mut named, report);
        }
        Ok(())
    })?;
    look_up(&mut named, report);
    if let Some(error) = unknown {
        return Err(error);
    }
    if indexed != versions {
        report.problem(|| format!("{versions} versions, but {indexed} index records"));
    }
    Ok(())
}
