//! Regions: what maps content to objects, live and in history, with its chunks; and what chunks say of themselves where
//! a region record is lost.
//!
//! Invariants: a version goes into the new history only under a checkpoint that is still held; blocks whose chunk is
//! lost are counted for the body that they belong to; a region that has a record is never put together from chunks.

use std::collections::{BTreeMap, BTreeSet};

use terrace_chunk::{ChunkPlace, Salvaged};
use terrace_dataset::{REGION_BLOCKS, REGION_BYTES, RegionRecord, Run, join_value, keys, split_value};
use terrace_store::{BLOCK_BYTES, Batch, ChunkId, Owner};

use super::{RebuildReport, content::Content, datasets::Known, objects::Objects};
use crate::EngineError;

/// Region records that are placed in one batch.
const RECORDS: usize = 256;

/// What is known of the content of one body.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Body {
    /// Blocks that records map.
    pub(super) mapped: u64,
    /// Of these, blocks whose chunk is lost.
    pub(super) lost: u64,
    /// Blocks put together from chunks, without a record.
    pub(super) made_up: u64,
    /// Where the last mapped block ends, bytes.
    pub(super) end: u64,
    /// Blocks lost in versions that only held checkpoints see.
    pub(super) lost_in_history: u64,
}

/// What was placed of a dataset.
#[derive(Debug, Default)]
pub(super) struct Placed {
    pub(super) bodies: BTreeMap<u64, Body>,
    pub(super) live_blocks: u64,
    pub(super) history_blocks: u64,
    pub(super) newest_checkpoint: u64,
}

/// A region record to be placed.
struct Waiting {
    key: Vec<u8>,
    /// Checkpoint of death and of the holder, for a version.
    history: Option<(u64, u64)>,
    birth: u64,
    body: u64,
    region: u64,
    record: RegionRecord,
    made_up: bool,
}

struct Placer<'a, 'b, 'c> {
    salvaged: &'a Salvaged,
    known: &'a Known,
    objects: &'a Objects,
    content: &'b mut Content<'c>,
    placed: Placed,
    waiting: Vec<Waiting>,
    /// Versions of other records, and how many.
    others: (Batch, usize),
}

/// Places all region records of a dataset and the history of its other records.
pub(super) fn place(
    salvaged: &Salvaged,
    known: &Known,
    objects: &Objects,
    content: &mut Content<'_>,
    report: &mut RebuildReport,
) -> Result<Placed, EngineError> {
    let mut placer = Placer {
        salvaged,
        known,
        objects,
        content,
        placed: Placed::default(),
        waiting: Vec::new(),
        others: (Batch::new(), 0),
    };
    let mut unreadable = 0u64;
    super::datasets::each(
        salvaged,
        keys::dataset_range(keys::TABLE_REGION, known.number),
        |key, value| {
            let decoded = split_value(value).and_then(|(birth, payload)| {
                let (_, body, region) = keys::parse_region(key)?;
                Ok((birth, body, region, RegionRecord::decode(payload)?))
            });
            match decoded {
                Ok((birth, body, region, record)) if !record.is_empty() => placer.add(Waiting {
                    key: key.to_vec(),
                    history: None,
                    birth,
                    body,
                    region,
                    record,
                    made_up: false,
                }),
                _ => {
                    unreadable += 1;
                    Ok(())
                }
            }
        },
    )?;
    placer.place()?;
    if salvaged.may_lack(keys::TABLE_REGION) {
        placer.make_up()?;
        placer.place()?;
    }
    super::datasets::each(
        salvaged,
        keys::dataset_range(keys::TABLE_HISTORY, known.number),
        |key, value| match placer.version(key, value) {
            Some(result) => result,
            None => {
                unreadable += 1;
                Ok(())
            }
        },
    )?;
    placer.place()?;
    if unreadable > 0 {
        let name = known.path("");
        report.problems.push(format!(
            "{unreadable} records of the content of '{name}' cannot be read"
        ));
    }
    Ok(placer.placed)
}

impl Placer<'_, '_, '_> {
    fn add(&mut self, waiting: Waiting) -> Result<(), EngineError> {
        self.waiting.push(waiting);
        if self.waiting.len() >= RECORDS {
            self.place()
        } else {
            Ok(())
        }
    }

    /// Copies the chunks of what waits, and commits it.
    fn place(&mut self) -> Result<(), EngineError> {
        let waiting = std::mem::take(&mut self.waiting);
        let (mut batch, _) = std::mem::take(&mut self.others);
        let mut wanted: Vec<(ChunkId, Owner)> = Vec::new();
        for region in &waiting {
            for run in region.record.runs() {
                let start = region.region.saturating_mul(u64::from(REGION_BLOCKS));
                let block = start.saturating_add(u64::from(run.block));
                let owner = Owner {
                    dataset: self.known.number,
                    object: self.objects.object_of(region.body),
                    block: block.saturating_sub(u64::from(run.index)),
                    checkpoint: region.birth,
                };
                wanted.push((run.chunk, owner));
            }
        }
        self.content.place(&wanted, self.known.compression, &mut batch)?;
        for region in waiting {
            let (record, lost) = self.content.renumber(&region.record, &mut batch);
            let blocks = u64::from(record.mapped_blocks());
            let end = region
                .record
                .runs()
                .last()
                .map_or(0, |run| self.end_of(region.region, run));
            let body = self.placed.bodies.entry(region.body).or_default();
            match region.history {
                None => {
                    body.mapped += u64::from(region.record.mapped_blocks());
                    body.lost += lost;
                    body.made_up += if region.made_up { blocks } else { 0 };
                    body.end = body.end.max(end);
                    self.placed.live_blocks += blocks;
                }
                Some(_) => {
                    body.lost_in_history += lost;
                    self.placed.history_blocks += blocks;
                }
            }
            self.placed.newest_checkpoint = self.placed.newest_checkpoint.max(region.birth);
            if record.is_empty() && region.history.is_none() {
                continue;
            }
            let value = join_value(region.birth, &record.encode());
            match region.history {
                None => batch.put(region.key, value),
                Some((death, holder)) => {
                    self.placed.newest_checkpoint = self.placed.newest_checkpoint.max(death);
                    batch.put(keys::holder(&region.key, holder, region.birth, death), Vec::new());
                    batch.put(keys::history(&region.key, death), value);
                }
            }
        }
        self.content.commit(batch)
    }

    /// Where the content of a run ends in its object, bytes.
    fn end_of(&self, region: u64, run: &Run) -> u64 {
        let start = region
            .saturating_mul(REGION_BYTES)
            .saturating_add(u64::from(run.block) * BLOCK_BYTES as u64);
        let whole = u64::from(run.count) * BLOCK_BYTES as u64;
        let length = self
            .salvaged
            .survey()
            .places(run.chunk)
            .first()
            .map_or(whole, |place| {
                u64::from(place.length).saturating_sub(u64::from(run.index) * BLOCK_BYTES as u64)
            });
        start.saturating_add(whole.min(length))
    }

    /// Takes a version from the history; `None` if it cannot be read.
    fn version(&mut self, key: &[u8], value: &[u8]) -> Option<Result<(), EngineError>> {
        let (live, death) = keys::parse_history(key).ok()?;
        let (birth, payload) = split_value(value).ok()?;
        let Some(holder) = self
            .known
            .held
            .newest_before(death)
            .filter(|holder| birth <= *holder)
        else {
            // Nothing holds it any more.
            return Some(Ok(()));
        };
        if live.first() == Some(&keys::TABLE_REGION) {
            let (_, body, region) = keys::parse_region(&live).ok()?;
            let record = RegionRecord::decode(payload).ok()?;
            return Some(self.add(Waiting {
                key: live,
                history: Some((death, holder)),
                birth,
                body,
                region,
                record,
                made_up: false,
            }));
        }
        self.placed.newest_checkpoint = self.placed.newest_checkpoint.max(death);
        let (batch, count) = &mut self.others;
        batch.put(keys::holder(&live, holder, birth, death), Vec::new());
        batch.put(key.to_vec(), value.to_vec());
        *count += 1;
        Some(if *count >= RECORDS { self.place() } else { Ok(()) })
    }

    /// Puts regions without a record together from the chunks that say they belong there, the newest on top.
    fn make_up(&mut self) -> Result<(), EngineError> {
        let mut places: Vec<&ChunkPlace> = self
            .salvaged
            .survey()
            .chunks
            .iter()
            .filter(|place| place.owner.dataset == self.known.number && place.owner.object != 0)
            .collect();
        places.sort_by_key(|place| (place.owner.object, place.owner.checkpoint, place.id));
        places.dedup_by_key(|place| (place.owner.object, place.owner.checkpoint, place.id));
        for group in places.chunk_by(|a, b| a.owner.object == b.owner.object) {
            let Some(object) = group.first().map(|place| place.owner.object) else {
                continue;
            };
            let (body, expected) = self.objects.content_of(object);
            let has = self.placed.bodies.get(&body).map_or(0, |body| body.mapped);
            // An object without an inode was deleted, unless inodes may be missing.
            let wanted = match expected {
                Some(blocks) => has < blocks,
                None => self.salvaged.may_lack(keys::TABLE_INODE),
            };
            if !wanted {
                continue;
            }
            let mut regions: BTreeMap<u64, (u64, RegionRecord)> = BTreeMap::new();
            let mut taken: BTreeSet<u64> = BTreeSet::new();
            for place in group {
                let blocks = u64::from(place.length).div_ceil(BLOCK_BYTES as u64);
                for index in 0..blocks {
                    let Some(block) = place.owner.block.checked_add(index) else {
                        break;
                    };
                    let (region, inside) =
                        (block / u64::from(REGION_BLOCKS), block % u64::from(REGION_BLOCKS));
                    if block >= u64::MAX / (2 * BLOCK_BYTES as u64) {
                        break;
                    }
                    if !regions.contains_key(&region) && !taken.contains(&region) {
                        let key = keys::region(self.known.number, body, region);
                        let mut end = key.clone();
                        end.push(0);
                        if !self.salvaged.scan(&key, &end, 1)?.is_empty() {
                            taken.insert(region);
                        }
                    }
                    if taken.contains(&region) {
                        continue;
                    }
                    let (birth, record) = regions.entry(region).or_default();
                    *birth = (*birth).max(place.owner.checkpoint).min(self.known.checkpoint);
                    record.overwrite(inside as u32, 1, place.id, index as u32);
                }
            }
            for (region, (birth, record)) in regions {
                self.add(Waiting {
                    key: keys::region(self.known.number, body, region),
                    history: None,
                    birth,
                    body,
                    region,
                    record,
                    made_up: true,
                })?;
            }
        }
        Ok(())
    }
}
