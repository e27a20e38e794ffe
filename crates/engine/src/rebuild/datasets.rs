//! Which datasets there are, and the records that hold them together.
//!
//! Invariants: a dataset that was being destroyed stays so; one whose record is lost gets a made-up name; names are
//! valid, differ, and have their parents; what is counted is counted from what was placed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use terrace_chunk::Salvaged;
use terrace_codec::{DecodeError, Reader};
use terrace_dataset::{
    Counters, DatasetRecord, Facts, Held, HeldRecord, InodeRecord, Kind, Time, VOLUME_BYTES_MAX,
    check_dataset, keys, settings, split_value,
};
use terrace_store::{Batch, Compression};

use super::{
    LINES_MAX, Progress, RebuildOptions, RebuildReport, RebuiltDataset, content::Content, objects::Objects,
    regions,
};
use crate::{EngineError, floors::Floors};

/// Records read at once.
const SCAN: usize = 1024;
/// Datasets that are made up at most.
const MADE_UP_MAX: usize = 4096;

/// A dataset on its way into the new pool.
pub(super) struct Known {
    pub(super) number: u32,
    pub(super) record: DatasetRecord,
    pub(super) made_up: bool,
    pub(super) held: Held,
    pub(super) compression: Compression,
    /// Above all checkpoints of the dataset's records: what is mended is born in it.
    pub(super) checkpoint: u64,
    pub(super) next_object: u64,
}

impl Known {
    /// The name of something in it.
    pub(super) fn path(&self, inside: &str) -> String {
        match (self.record.name.is_empty(), inside.is_empty()) {
            (true, _) => format!("/{inside}"),
            (false, true) => self.record.name.clone(),
            (false, false) => format!("{}/{inside}", self.record.name),
        }
    }
}

/// Calls `take` for each record of a range.
pub(super) fn each(
    salvaged: &Salvaged,
    (mut from, to): (Vec<u8>, Vec<u8>),
    mut take: impl FnMut(&[u8], &Bytes) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    loop {
        let records = salvaged.scan(&from, &to, SCAN)?;
        let Some((last, _)) = records.last() else {
            return Ok(());
        };
        from = last.to_vec();
        from.push(0);
        for (key, value) in &records {
            take(key, value)?;
        }
    }
}

/// Places everything.
pub(super) fn run<'a>(
    salvaged: &'a Salvaged,
    target: Option<&'a Floors>,
    options: RebuildOptions,
    progress: &'a mut Progress<'a>,
    report: &mut RebuildReport,
) -> Result<(), EngineError> {
    let mut all = read(salvaged, report)?;
    let store = target.map(|target| &*target.chunks);
    let mut content = Content::new(salvaged, store, progress);
    let tiers: BTreeSet<String> = target
        .map(|target| {
            target
                .pool
                .tiers()
                .into_iter()
                .map(|tier| tier.settings.name)
                .collect()
        })
        .unwrap_or_default();
    if let Some(target) = target {
        clear(target, &mut all)?;
    }
    let mut checkpoint = all.iter().map(|known| known.checkpoint).max().unwrap_or(1);
    for known in &mut all {
        let mut batch = Batch::new();
        batch.put(keys::dataset(known.number), known.record.encode());
        for (held, record) in known.held.iter() {
            batch.put(keys::held(known.number, held), record.encode());
        }
        content.commit(batch)?;
        let mut objects = Objects::read(salvaged, known, report)?;
        let placed = regions::place(salvaged, known, &objects, &mut content, report)?;
        let counted = objects.place(salvaged, known, &placed, &tiers, options, &mut content, report)?;
        checkpoint = checkpoint
            .max(placed.newest_checkpoint.saturating_add(1))
            .max(known.checkpoint);
        let counters = Counters {
            live_blocks: placed.live_blocks,
            history_blocks: placed.history_blocks,
            objects: counted.objects,
            next_object: known.next_object.max(counted.next_object),
            newest_checkpoint: known.checkpoint,
            // Counted when the pool is opened.
            shared_blocks: None,
            ..Counters::default()
        };
        let mut batch = Batch::new();
        batch.put(keys::counters(known.number), counters.encode());
        content.commit(batch)?;
        report.datasets.push(RebuiltDataset {
            name: known.record.name.clone(),
            kind: if known.record.kind.is_volume() {
                "volume"
            } else {
                "filesystem"
            }
            .into(),
            objects: counted.objects,
            bytes: counters.referenced_bytes(),
            snapshots: known.held.len() as u64,
            made_up: known.made_up,
        });
    }
    let facts = Facts {
        checkpoint: checkpoint.saturating_add(1),
        next_dataset: all
            .iter()
            .map(|known| known.number)
            .max()
            .unwrap_or(0)
            .saturating_add(1),
        next_sweep: 1,
    };
    let mut batch = Batch::new();
    batch.put(keys::pool("facts"), facts.encode());
    content.commit(batch)?;
    content.finish()?;
    (report.placed_chunks, report.placed_bytes) = (content.chunks, content.bytes);
    report.lost_chunks = content.lost;
    let room = LINES_MAX.saturating_sub(report.problems.len());
    report
        .problems
        .extend(content.causes.drain(..).take(room.min(100)));
    if let Some(target) = target {
        target.chunks.close()?;
    }
    Ok(())
}

/// Takes the records of the empty pool away; what was set on its own dataset is kept.
fn clear(target: &Floors, all: &mut [Known]) -> Result<(), EngineError> {
    let store = &target.store;
    let mut batch = Batch::new();
    for table in keys::TABLE_POOL..=keys::TABLE_HOLDER {
        let (from, to) = keys::table_range(table);
        for (key, value) in store.scan(&from, &to, SCAN)? {
            if table == keys::TABLE_DATASET
                && let Ok(own) = DatasetRecord::decode(&value)
                && let Some(root) = all.iter_mut().find(|known| known.record.name.is_empty())
            {
                root.record.properties.extend(own.properties);
            }
            batch.delete(key.to_vec());
        }
    }
    store.commit(batch)?;
    Ok(())
}

/// The datasets of the damaged pool, parents first.
fn read(salvaged: &Salvaged, report: &mut RebuildReport) -> Result<Vec<Known>, EngineError> {
    let mut records: BTreeMap<u32, DatasetRecord> = BTreeMap::new();
    let mut damaged = BTreeSet::new();
    each(salvaged, keys::table_range(keys::TABLE_DATASET), |key, value| {
        match (keys::dataset_of(key), DatasetRecord::decode(value)) {
            (Ok(number), Ok(record)) => drop(records.insert(number, record)),
            (Ok(number), Err(_)) => drop(damaged.insert(number)),
            (Err(_), _) => {}
        }
        Ok(())
    })?;
    let mut going = BTreeSet::new();
    each(salvaged, keys::table_range(keys::TABLE_SWEEP), |_, value| {
        going.extend(destroyed_dataset(value).ok().flatten());
        Ok(())
    })?;
    let mut made_up: BTreeSet<u32> = damaged;
    if salvaged.may_lack(keys::TABLE_DATASET) {
        made_up.extend(numbers_in_use(salvaged)?);
        made_up.retain(|number| !records.contains_key(number) && !going.contains(number));
    }
    while made_up.len() > MADE_UP_MAX {
        made_up.pop_last();
        report.lists_complete = false;
    }
    for number in &made_up {
        let record = made_up_record(salvaged, *number)?;
        report.problems.push(format!(
            "the record of dataset {number} is lost: it is called '{}' now, its properties are the defaults",
            record.name
        ));
        records.insert(*number, record);
    }
    name_all(&mut records, &mut made_up, report);
    let mut all = Vec::new();
    for (number, record) in records {
        all.push(known(
            salvaged,
            number,
            record,
            made_up.contains(&number),
            report,
        )?);
    }
    all.sort_by(|a, b| a.record.name.cmp(&b.record.name));
    let chain_of = |name: &str| -> Vec<(String, BTreeMap<String, String>)> {
        let above = |other: &&Known| {
            let other = &other.record.name;
            other.is_empty() || name == other || name.starts_with(&format!("{other}/"))
        };
        let mut chain: Vec<_> = all
            .iter()
            .filter(above)
            .map(|known| (known.record.name.clone(), known.record.properties.clone()))
            .collect();
        chain.reverse();
        chain
    };
    let compressions: Vec<Compression> = all
        .iter()
        .map(|known| settings(&chain_of(&known.record.name), &[]).compression)
        .collect();
    for (known, compression) in all.iter_mut().zip(compressions) {
        known.compression = compression;
    }
    Ok(all)
}

/// The dataset that a sweep job destroys, if it destroys one.
fn destroyed_dataset(value: &[u8]) -> Result<Option<u32>, DecodeError> {
    let mut reader = Reader::new(value);
    if reader.u8("kind of sweep")? != 2 {
        return Ok(None);
    }
    Ok(u32::try_from(reader.varint("dataset")?).ok())
}

/// Numbers of datasets that have records, or that chunks say they belong to.
fn numbers_in_use(salvaged: &Salvaged) -> Result<BTreeSet<u32>, EngineError> {
    let mut numbers = BTreeSet::new();
    for table in keys::VERSIONED_TABLES {
        let (mut from, to) = keys::table_range(table);
        while let Some((key, _)) = salvaged.scan(&from, &to, 1)?.first() {
            let Ok(number) = keys::dataset_of(key) else { break };
            numbers.insert(number);
            from = keys::dataset_range(table, number).1;
        }
    }
    if salvaged.may_lack(keys::TABLE_REGION) {
        numbers.extend(salvaged.survey().chunks.iter().map(|place| place.owner.dataset));
    }
    // Nothing else than "unknown" has this number.
    numbers.remove(&0);
    Ok(numbers)
}

fn made_up_record(salvaged: &Salvaged, number: u32) -> Result<DatasetRecord, EngineError> {
    let inode = salvaged.scan(
        &keys::inode(number, keys::ROOT_OBJECT),
        &keys::inode(number, 2),
        1,
    )?;
    let inode = inode.first().and_then(|(_, value)| {
        let (_, payload) = split_value(value).ok()?;
        InodeRecord::decode(payload).ok()
    });
    let kind = match inode {
        Some(inode) if inode.kind == terrace_dataset::FileKind::Volume => Kind::Volume {
            size_bytes: inode.size.min(VOLUME_BYTES_MAX).next_multiple_of(4096),
        },
        _ => Kind::Filesystem,
    };
    Ok(DatasetRecord {
        name: format!("recovered-{number}"),
        kind,
        created: Time::default(),
        properties: BTreeMap::new(),
    })
}

/// Makes names valid and different, and adds the datasets above them that are missing.
fn name_all(
    records: &mut BTreeMap<u32, DatasetRecord>,
    made_up: &mut BTreeSet<u32>,
    report: &mut RebuildReport,
) {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for (number, record) in records.iter_mut() {
        // The check wants the name of a pool in front.
        let valid = record.name.is_empty() || check_dataset(&format!("x/{}", record.name)).is_ok();
        if !valid || names.contains(&record.name) {
            let name = format!("recovered-{number}");
            report
                .problems
                .push(format!("dataset '{}' is called '{name}' now", record.name));
            record.name = name;
        }
        names.insert(record.name.clone());
    }
    let mut missing: BTreeSet<String> = BTreeSet::from([String::new()]);
    for name in &names {
        let mut above = name.as_str();
        while let Some((parent, _)) = above.rsplit_once('/') {
            missing.insert(parent.to_owned());
            above = parent;
        }
    }
    for name in missing.difference(&names) {
        let number = records
            .keys()
            .next_back()
            .map_or(1, |last| last.saturating_add(1));
        if !name.is_empty() {
            report
                .problems
                .push(format!("dataset '{name}' is lost; an empty one is in its place"));
        }
        made_up.insert(number);
        records.insert(
            number,
            DatasetRecord {
                name: name.clone(),
                kind: Kind::Filesystem,
                created: Time::default(),
                properties: BTreeMap::new(),
            },
        );
    }
}

fn known(
    salvaged: &Salvaged,
    number: u32,
    record: DatasetRecord,
    made_up: bool,
    report: &mut RebuildReport,
) -> Result<Known, EngineError> {
    let mut held = Held::default();
    let mut checkpoint = 1;
    each(
        salvaged,
        keys::dataset_range(keys::TABLE_HELD, number),
        |key, value| {
            let at = key
                .get(5..)
                .and_then(|rest| rest.try_into().ok())
                .map(u64::from_be_bytes);
            match (at, HeldRecord::decode(value)) {
                (Some(at), Ok(record)) => {
                    checkpoint = checkpoint.max(at.saturating_add(1));
                    held.insert(at, record);
                }
                _ => report
                    .problems
                    .push(format!("a snapshot of '{}' cannot be read", record.name)),
            }
            Ok(())
        },
    )?;
    let key = keys::counters(number);
    let mut end = key.clone();
    end.push(0);
    let counters = salvaged.scan(&key, &end, 1)?;
    let counters = counters
        .first()
        .and_then(|(_, value)| Counters::decode(value).ok());
    let counters = counters.unwrap_or_default();
    Ok(Known {
        number,
        record,
        made_up,
        held,
        compression: Compression::default(),
        checkpoint: checkpoint.max(counters.newest_checkpoint.saturating_add(1)),
        next_object: counters.next_object.max(keys::ROOT_OBJECT + 1),
    })
}
