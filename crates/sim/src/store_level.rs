//! The store under the simulator: batches, chunks, flushes, background steps, cuts, kills and failing devices, against
//! a [`StoreModel`].
//!
//! What is checked after every opening: the records are those of a prefix of the batches that contains every flushed
//! one; every chunk that a record refers to has its content; the full walk (`audit`) finds every count exact. While
//! running: every read answers as the model says, or with an error that a fault explains; a full pool refuses new data,
//! lets go of old data, and takes new data again. At the end, everything is deleted and the room must be back.

mod again;
mod holding;
mod loss;
mod recovery;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use terrace_chunk::{ChunkStore, Step};
use terrace_store::{
    Batch, ChunkId, Compression, Flow, Owner, Piece, Placement, Sequence, Store, StoreError, Trial, Written,
};

use self::again::{RECENT_MAX, Recent};
use crate::{
    content::Content,
    ensure,
    fault::{Coverage, FaultKind},
    outcome::{Check, Violation},
    random::Random,
    rig::{Rig, Shape},
    store_model::{ChunkUse, MARKER_KEY, StoreModel, Value},
    trace,
    trace::Trace,
    violation,
};

/// Keys that the workload uses.
const KEYS: u64 = 120;
/// Steps of the background after which it must have come to rest.
const STEPS_MAX: u64 = 20_000;

/// A run of this level; the damage level begins with one too.
pub(crate) struct Run {
    pub(crate) rig: Rig,
    pub(crate) store: Option<Arc<ChunkStore>>,
    pub(crate) model: StoreModel,
    pub(crate) random: Random,
    pub(crate) trace: Trace,
    pub(crate) coverage: Arc<Coverage>,
    /// Chunks written and not yet committed, kept alive for a while.
    pub(crate) held: Vec<(Written, Content)>,
    /// Chance of what came later, apart, so that it does not change what else a seed does.
    aside: Random,
    /// The same for what came after that.
    leaving: Random,
    /// The same for trials in which a disk is lost.
    losing: Random,
    /// Something of the log or of the tables lay on one disk only at some time of the run.
    pub(crate) single: bool,
    /// Chunks that records told of.
    known: BTreeSet<ChunkId>,
    /// Those that batches told of first, and these batches, since the copies of the log were known to be alike.
    told: Vec<(ChunkId, u64)>,
    /// The newest batch when chunks were moved to a slower tier.
    moved_after: u64,
    /// Records are long, so that the log goes through many segments and tables are merged and given up.
    wordy: bool,
    /// Operations may fail by chance.
    pub(crate) storm: bool,
    /// Writes may have failed at some time of the run.
    stormed: bool,
    /// The run comes to its end.
    ending: bool,
    /// Something failed since the store was opened, so that it may have stopped or miss a copy.
    pub(crate) hurt: bool,
    /// Writes failed while copies were made, so that some are missing until a scrub repaired them.
    pub(crate) scarred: bool,
    /// A whole scrub repaired what was scarred. The end of the process undoes that until a root names the new copies.
    healed: bool,
    /// A copy may have been lost without anybody's fault: power went or a disk was gone since the last whole scrub.
    pub(crate) ragged: bool,
    /// A whole scrub repaired what was ragged. The end of the process undoes that until it is flushed.
    mended: bool,
    /// What was written lately, as a client knows it, to be written again if it is lost.
    pub(crate) recent: VecDeque<Recent>,
    /// A disk is lying about its writes: what fails is not looked into, it ends the work.
    pub(crate) lying: bool,
    /// Something failed while a disk was lying.
    pub(crate) broken: bool,
}

/// What an operation that failed means for the run.
enum Consequence {
    /// Nothing changed; go on.
    GoOn,
    /// The engine must be opened again.
    Reopen,
}

/// Runs one seed.
pub fn run(seed: u64, coverage: Arc<Coverage>, trace: Trace) -> Check {
    let mut run = Run::begin(seed ^ 0x5701_2E00, coverage, trace)?;
    let length = run.random.between(40, 220);
    let countdown = run.random.chance(1, 2);
    if countdown {
        let after = run.random.between(1, 2500);
        run.rig.machine.cut_power_after(Some(after));
    }
    for _ in 0..length {
        run.turn()?;
        run.hold_now_and_then()?;
        run.look_at_mirrors();
        run.catch_up_now_and_then();
        run.audit_root()?;
        run.rig.machine.check_breach()?;
    }
    run.finish()?;
    run.rig.machine.check_breach()
}

impl Run {
    /// A machine with an empty store.
    pub(crate) fn begin(seed: u64, coverage: Arc<Coverage>, trace: Trace) -> Check<Self> {
        let mut random = Random::new(seed);
        let shape = Shape::choose(&mut random);
        trace!(trace, "store level, {shape:?}");
        let rig = Rig::new(shape, random.fork(1), coverage.clone(), trace.clone());
        let mut run = Run {
            rig,
            store: None,
            model: StoreModel::default(),
            random: random.fork(2),
            trace,
            coverage,
            held: Vec::new(),
            aside: Random::new(seed ^ 0xA51D_E000_0000),
            leaving: Random::new(seed ^ 0x1EA7_E000_0000),
            losing: Random::new(seed ^ 0x105E_0000_0000),
            single: false,
            known: BTreeSet::new(),
            told: Vec::new(),
            moved_after: 0,
            wordy: false,
            storm: false,
            stormed: false,
            ending: false,
            hurt: false,
            scarred: false,
            healed: false,
            ragged: false,
            mended: false,
            recent: VecDeque::new(),
            lying: false,
            broken: false,
        };
        run.wordy = run.random.chance(1, 3);
        run.store = Some(
            run.rig
                .create()
                .map_err(|error| Violation(format!("cannot create: {error}")))?,
        );
        Ok(run)
    }

    /// Fills the store with nothing failing, and remembers the disks now and then.
    pub(crate) fn populate(&mut self, turns: u64) -> Check {
        for _ in 0..turns {
            if self.broken {
                // A batch that failed may count for the model and not for the store: what came after it would not fit.
                self.held.clear();
                return Ok(());
            }
            match self.random.below(100) {
                0..=64 => self.commit_batch()?,
                65..=76 => self.flush()?,
                77..=89 => self.background()?,
                90..=94 => self.checkpoint()?,
                95..=97 => self.rewrite()?,
                _ => {
                    for disk in 0..self.rig.machine.disk_count() {
                        self.rig.machine.with_disk(disk, |disk, _| disk.remember());
                    }
                }
            }
        }
        self.held.clear();
        self.flush()
    }
    pub(crate) fn store(&self) -> Check<Arc<ChunkStore>> {
        self.store
            .clone()
            .ok_or_else(|| Violation("the store is not open".into()))
    }

    fn turn(&mut self) -> Check {
        match self.random.below(100) {
            0..=39 => self.commit_batch(),
            40..=51 => self.flush(),
            52..=64 => self.read_some(),
            65..=76 => self.background(),
            77..=79 => self.checkpoint(),
            80..=83 => self.rewrite(),
            84 => self.scrub(),
            85..=86 => self.fill_up(),
            87..=88 => self.weather(),
            89..=90 => self.audit(),
            91 => self.plan_cut(),
            92..=94 => self.cut(),
            95..=96 => self.kill(),
            97 => self.close_and_open(),
            98 => self.drop_held(),
            _ => self.cut_off_twice(),
        }
    }

    /// Whether something from outside explains that an operation failed.
    fn is_explained(&self) -> bool {
        self.storm || self.hurt || !self.rig.machine.is_powered()
    }

    /// What an error means; a violation if nothing explains it.
    fn judge(&mut self, doing: &str, error: &StoreError) -> Check<Consequence> {
        trace!(self.trace, "{doing}: {error}");
        if !self.rig.machine.is_powered() {
            return Ok(Consequence::Reopen);
        }
        if let StoreError::NoSpace = error {
            return Ok(Consequence::GoOn);
        }
        if !self.storm && !self.hurt {
            violation!("{doing} failed although nothing was wrong: {error}");
        }
        self.hurt = true;
        match error {
            StoreError::Stopped(_) => Ok(Consequence::Reopen),
            StoreError::Device(_) | StoreError::Damaged { .. } | StoreError::DamagedMetadata(_) => {
                Ok(Consequence::GoOn)
            }
            other => violation!("{doing} answered a failing device with: {other}"),
        }
    }

    fn placement(&mut self) -> Placement {
        let tiers = self.rig.shape.tiers.len() as u64;
        match self.random.below(4) {
            0 => Placement::Tier {
                tier: self.random.below(tiers) as u8,
                strict: self.random.chance(1, 4),
            },
            1 => Placement::Landing(Flow::Sequential),
            _ => Placement::Landing(Flow::Random),
        }
    }

    /// Writes chunks; `None` when it failed in a way that the caller need not care about.
    fn write_chunks(&mut self, contents: &[Content], privileged: bool) -> Check<Option<Vec<Written>>> {
        let compression = *self.random.pick(&[
            Compression::Off,
            Compression::Lz4,
            Compression::Lz4,
            Compression::Zstd(1),
        ]);
        let dedup = self.random.chance(4, 5);
        let placement = self.placement();
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent {
            after: self.model.newest(),
            contents: contents.to_vec(),
            compression,
            dedup,
            placement,
        });
        self.write_as(contents, compression, dedup, placement, privileged)
    }

    fn write_as(
        &mut self,
        contents: &[Content],
        compression: Compression,
        dedup: bool,
        placement: Placement,
        privileged: bool,
    ) -> Check<Option<Vec<Written>>> {
        let store = self.store()?;
        let bytes: Vec<Vec<u8>> = contents.iter().map(Content::bytes).collect();
        let pieces: Vec<Piece<'_>> = bytes
            .iter()
            .map(|content| Piece {
                content,
                compression,
                trial: Trial::Untried,
                dedup,
                placement,
                owner: Owner::default(),
                privileged,
            })
            .collect();
        match store.write_chunks(&pieces) {
            Ok(written) => {
                ensure!(
                    written.len() == contents.len(),
                    "{} chunks for {} pieces",
                    written.len(),
                    contents.len()
                );
                Ok(Some(written))
            }
            Err(error) => {
                self.note_full(&error);
                match self.judge("write_chunks", &error)? {
                    Consequence::GoOn => {}
                    Consequence::Reopen => self.recover(false)?,
                }
                Ok(None)
            }
        }
    }

    fn note_full(&self, error: &StoreError) {
        if let StoreError::NoSpace = error {
            self.coverage.hit(FaultKind::PoolFull);
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.random.below(KEYS);
        let mut key = vec![0x20 + (number % 3) as u8, 1];
        key.extend_from_slice(&number.to_be_bytes()[6..]);
        if number.is_multiple_of(7) {
            key.extend_from_slice(&[0xAB; 90]);
        }
        key
    }

    fn commit_batch(&mut self) -> Check {
        let keys: Vec<Vec<u8>> = (0..self.random.between(1, 6)).map(|_| self.key()).collect();
        let most = *self.random.pick(&[5_000, 20_000, 60_000, 131_072]);
        let count = if self.random.chance(1, 5) {
            0
        } else {
            self.random.between(1, 6)
        };
        let contents: Vec<Content> = (0..count)
            .map(|_| Content::choose(&mut self.random, most))
            .collect();
        let mut fresh = Vec::new();
        if !contents.is_empty() {
            let Some(written) = self.write_chunks(&contents, false)? else {
                return Ok(());
            };
            fresh = written.into_iter().zip(contents).collect();
        }
        if self.random.chance(1, 8) && !fresh.is_empty() {
            // Kept for a later batch, or for none.
            self.held.append(&mut fresh);
            return Ok(());
        }
        if self.random.chance(1, 3) {
            fresh.append(&mut self.held);
        }
        let mut changes: Vec<(Vec<u8>, Option<Value>)> = Vec::new();
        for key in keys {
            if changes.iter().any(|(other, _)| *other == key) {
                continue;
            }
            if self.random.chance(1, 5) {
                changes.push((key, None));
                continue;
            }
            let mut value = Value::default();
            for _ in 0..self.random.below(4) {
                // New chunks, or those of another record (a clone).
                let shared = self.random.chance(1, 4);
                if shared && !self.model.live().is_empty() {
                    let index = self.random.index(self.model.live().len());
                    let donor = self.model.live().values().nth(index);
                    if let Some(chunk) = donor.and_then(|value| value.uses.first()) {
                        value.uses.push(ChunkUse {
                            blocks: self.random.between(1, 32) as i64,
                            ..*chunk
                        });
                    }
                } else if !fresh.is_empty() {
                    let (written, content) = &fresh[self.random.index(fresh.len())];
                    let blocks = i64::from(content.length.div_ceil(4096));
                    value.uses.push(ChunkUse {
                        id: written.id,
                        content: *content,
                        blocks,
                    });
                }
            }
            let long = self.random.chance(if self.wordy { 29 } else { 1 }, 30);
            value.padding = vec![
                self.random.next() as u8;
                match (long, self.wordy) {
                    (true, true) => self.random.between(8_000, 30_000),
                    (true, false) => self.random.skewed(30_000),
                    _ => self.random.skewed(300),
                } as usize
            ];
            changes.push((key, Some(value)));
        }
        self.commit(
            changes,
            fresh.into_iter().map(|(written, _)| written).collect(),
            false,
        )
    }

    /// Commits changes with the references that follow from them.
    fn commit(
        &mut self,
        mut changes: Vec<(Vec<u8>, Option<Value>)>,
        written: Vec<Written>,
        privileged: bool,
    ) -> Check {
        let store = self.store()?;
        let number = self.model.next_number();
        changes.push((
            MARKER_KEY.to_vec(),
            Some(Value {
                uses: Vec::new(),
                padding: number.to_le_bytes().to_vec(),
            }),
        ));
        let mut batch = Batch::new();
        for (key, value) in &changes {
            // New references first: a chunk shared with a record that this batch replaces must not die in between.
            if let Some(value) = value {
                for chunk in &value.uses {
                    batch.reference(chunk.id, chunk.blocks);
                }
            }
            if let Some(old) = self.model.live().get(key) {
                for chunk in &old.uses {
                    batch.reference(chunk.id, -chunk.blocks);
                }
            }
            match value {
                Some(value) => batch.put(key.clone(), value.encode()),
                None => batch.delete(key.clone()),
            }
        }
        for written in written {
            batch.hold(written);
        }
        if privileged {
            batch.privileged();
        }
        let sequence = store.commit(batch);
        match sequence {
            Ok(sequence) => {
                trace!(
                    self.trace,
                    "batch {number} is sequence {}, {} changes",
                    sequence.0,
                    changes.len()
                );
                ensure!(
                    sequence == store.newest(),
                    "newest() is {:?} after commit gave {sequence:?}",
                    store.newest()
                );
                let uses = changes.iter().filter_map(|(_, value)| value.as_ref());
                for chunk in uses.flat_map(|value| &value.uses) {
                    if self.known.insert(chunk.id) {
                        self.told.push((chunk.id, number));
                    }
                }
                self.model.committed(changes, Some(sequence));
                Ok(())
            }
            Err(StoreError::NoSpace) if self.rig.machine.is_powered() => {
                trace!(self.trace, "batch {number}: no space");
                self.coverage.hit(FaultKind::PoolFull);
                ensure!(
                    !privileged,
                    "a batch that only deletes was refused on a full pool"
                );
                self.expect_marker("after a refused commit")
            }
            Err(error) => {
                self.judge("commit", &error)?;
                // It may or may not have happened: that is for the recovery to tell.
                self.model.committed(changes, None);
                self.recover(false)
            }
        }
    }

    fn expect_marker(&mut self, when: &str) -> Check {
        let store = self.store()?;
        let number = match store.get(MARKER_KEY) {
            Ok(value) => marker_number(value.as_deref())?,
            Err(error) => {
                if let Consequence::Reopen = self.judge("get", &error)? {
                    self.recover(false)?;
                }
                return Ok(());
            }
        };
        ensure!(
            number == self.model.newest(),
            "the store is at batch {number} {when}, not {}",
            self.model.newest()
        );
        Ok(())
    }

    fn flush(&mut self) -> Check {
        let store = self.store()?;
        let sequence = store.newest();
        match store.flush(sequence) {
            Ok(()) => {
                trace!(self.trace, "flush {}", sequence.0);
                self.flushed(sequence);
                Ok(())
            }
            Err(error) => {
                self.judge("flush", &error)?;
                // Whatever the reason: nothing is accepted from now on, and surely no flush succeeds for the same data.
                if self.rig.machine.is_powered() && store.flush(sequence).is_ok() {
                    violation!("a flush failed and then succeeded without anything in between");
                }
                self.recover(false)
            }
        }
    }

    /// Everything up to here is durable, repairs too: each is a batch.
    fn flushed(&mut self, sequence: Sequence) {
        self.model.flushed(sequence);
        self.note_copies_of_the_log();
        self.ragged &= !std::mem::take(&mut self.mended);
    }

    fn read_some(&mut self) -> Check {
        let store = self.store()?;
        for _ in 0..self.random.between(1, 5) {
            let key = self.key();
            match store.get(&key) {
                Ok(value) => {
                    let expected = self.model.live().get(&key).map(Value::encode);
                    ensure!(
                        value.as_deref() == expected.as_deref(),
                        "get {key:02x?} answered {:?} bytes, not {:?}",
                        value.map(|v| v.len()),
                        expected.map(|v| v.len())
                    );
                }
                Err(error) => return self.after_error("get", &error),
            }
            let Some(value) = self.model.live().get(&key).cloned() else {
                continue;
            };
            let ids: Vec<ChunkId> = value.uses.iter().map(|chunk| chunk.id).collect();
            if ids.len() > 1 && self.random.chance(1, 2) {
                // Those that lie together are read together.
                for (chunk, read) in value.uses.iter().zip(store.read_chunks(&ids)) {
                    match read {
                        Ok(bytes) => ensure!(
                            bytes == chunk.content.bytes(),
                            "chunk {} reads as something else among others",
                            chunk.id
                        ),
                        Err(error) => return self.after_error("read_chunks", &error),
                    }
                }
            }
            for chunk in &value.uses {
                let bytes = chunk.content.bytes();
                let result = if self.random.chance(1, 2) && !bytes.is_empty() {
                    let offset = self.random.index(bytes.len());
                    let length = self.random.index(bytes.len() - offset + 1);
                    store
                        .read_chunk_part(chunk.id, offset, length)
                        .map(|part| part == bytes[offset..offset + length])
                } else {
                    store.read_chunk(chunk.id).map(|whole| whole == bytes)
                };
                match result {
                    Ok(equal) => ensure!(equal, "chunk {} reads as something else", chunk.id),
                    Err(error) => return self.after_error("read_chunk", &error),
                }
            }
        }
        if self.random.chance(1, 3) {
            let (mut from, mut to) = (self.key(), self.key());
            if from > to {
                std::mem::swap(&mut from, &mut to);
            }
            let limit = self.random.between(1, 40) as usize;
            match store.scan(&from, &to, limit) {
                Ok(found) => {
                    let expected: Vec<(Vec<u8>, Vec<u8>)> = self
                        .model
                        .live()
                        .range(from.clone()..to.max(from))
                        .take(limit)
                        .map(|(key, value)| (key.clone(), value.encode()))
                        .collect();
                    ensure!(
                        found
                            .iter()
                            .map(|(k, v)| (k.to_vec(), v.to_vec()))
                            .eq(expected.iter().cloned()),
                        "a scan found {} records, not {} (or others)",
                        found.len(),
                        expected.len()
                    );
                }
                Err(error) => return self.after_error("scan", &error),
            }
        }
        Ok(())
    }

    fn after_error(&mut self, doing: &str, error: &StoreError) -> Check {
        match self.judge(doing, error)? {
            Consequence::GoOn => Ok(()),
            Consequence::Reopen => self.recover(false),
        }
    }

    fn background(&mut self) -> Check {
        let store = self.store()?;
        // Work that is left half done while clients go on matters most where much is written.
        let steps = match self.wordy && self.random.chance(2, 3) {
            true => 1,
            false => self.random.between(1, 12),
        };
        for _ in 0..steps {
            match store.step() {
                Ok(Step::More) => {}
                Ok(Step::Idle) => break,
                Err(error) => return self.after_error("step", &error),
            }
        }
        self.audit_root()
    }

    /// What the newest root needs is still held, whatever fails.
    fn audit_root(&mut self) -> Check {
        if !self.rig.machine.is_powered() {
            return Ok(());
        }
        match self.store()?.audit_root() {
            Ok(wrong) => ensure!(wrong.is_empty(), "{}", wrong.join("; ")),
            Err(error) => return self.after_error("audit of the root", &error),
        }
        Ok(())
    }

    /// Steps until there is nothing to do.
    fn rest(&mut self) -> Check {
        let store = self.store()?;
        for _ in 0..STEPS_MAX {
            match store.step() {
                Ok(Step::More) => {}
                Ok(Step::Idle) => return self.check_rested(),
                Err(error) => return self.after_error("step", &error),
            }
        }
        violation!("the background found no rest in {STEPS_MAX} steps")
    }

    /// At rest there is no chunk that nothing refers to, unless a writer holds it.
    fn check_rested(&mut self) -> Check {
        let chunks = self.store()?.space().chunks;
        let wanted = self.model.references().len() as u64;
        ensure!(
            chunks == wanted || !self.held.is_empty() || self.is_explained(),
            "{chunks} chunks are kept at rest, {wanted} are referred to"
        );
        Ok(())
    }

    fn checkpoint(&mut self) -> Check {
        let store = self.store()?;
        trace!(self.trace, "checkpoint");
        match store.checkpoint() {
            Ok(()) => {
                self.flushed(store.newest());
                self.model.is_everywhere();
                self.scarred &= !std::mem::take(&mut self.healed);
                self.audit_root()
            }
            Err(error) => self.after_error("checkpoint", &error),
        }
    }

    fn rewrite(&mut self) -> Check {
        let store = self.store()?;
        let ids: Vec<ChunkId> = self.model.references().into_keys().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let count = self.random.between(1, 20);
        let chosen: Vec<ChunkId> = (0..count).map(|_| *self.random.pick(&ids)).collect();
        let tier = self.random.below(self.rig.shape.tiers.len() as u64) as u8;
        let strict = self.random.chance(1, 2);
        match store.rewrite(&chosen, Placement::Tier { tier, strict }) {
            Ok(outcome) => {
                trace!(
                    self.trace,
                    "rewrite to tier {tier}: {} moved, {} skipped", outcome.moved, outcome.skipped
                );
                if outcome.moved > 0 && tier > 0 {
                    self.moved_after = self.model.newest();
                }
                ensure!(
                    outcome.failed.is_empty() || self.is_explained(),
                    "rewrite could not read {:?}",
                    outcome.failed
                );
                Ok(())
            }
            Err(error) => {
                self.note_full(&error);
                self.after_error("rewrite", &error)
            }
        }
    }

    pub(crate) fn audit(&mut self) -> Check {
        let store = self.store()?;
        let references = self.model.references();
        let expected = |tell: &mut dyn FnMut(ChunkId, i64)| {
            for (id, blocks) in &references {
                tell(*id, *blocks);
            }
            Ok(())
        };
        match store.audit(Some(&expected)) {
            Ok(report) => {
                ensure!(
                    report.discrepancies.is_empty() || self.is_explained(),
                    "the audit found: {}",
                    report
                        .discrepancies
                        .iter()
                        .take(5)
                        .cloned()
                        .collect::<Vec<_>>()
                        .join("; ")
                );
            }
            Err(error) => return self.after_error("audit", &error),
        }
        self.check_copies()
    }

    fn drop_held(&mut self) -> Check {
        self.held.clear();
        Ok(())
    }

    /// Writes until the pool is full, then makes room again.
    fn fill_up(&mut self) -> Check {
        if self.random.chance(1, 2) {
            return Ok(());
        }
        trace!(self.trace, "filling up");
        let newest = self.model.newest();
        for number in 0..120u64 {
            let contents: Vec<Content> = (0..8)
                .map(|_| Content {
                    texture: 0,
                    seed: self.random.next(),
                    length: 131_072,
                })
                .collect();
            let before = self.coverage.count(FaultKind::PoolFull);
            let Some(written) = self.write_chunks(&contents, false)? else {
                break;
            };
            let uses = written
                .iter()
                .zip(contents)
                .map(|(w, content)| ChunkUse {
                    id: w.id,
                    content,
                    blocks: 32,
                })
                .collect();
            let mut key = vec![0x22, 9];
            key.extend_from_slice(&number.to_be_bytes());
            self.commit(
                vec![(
                    key,
                    Some(Value {
                        uses,
                        padding: Vec::new(),
                    }),
                )],
                written,
                false,
            )?;
            if self.coverage.count(FaultKind::PoolFull) > before || self.model.newest() < newest {
                break;
            }
        }
        self.background()?;
        // Deleting always works.
        let doomed: Vec<Vec<u8>> = self
            .model
            .live()
            .keys()
            .filter(|key| key.starts_with(&[0x22, 9]))
            .cloned()
            .collect();
        for keys in doomed.chunks(16) {
            let changes = keys
                .iter()
                .filter(|key| self.model.live().contains_key(*key))
                .map(|key| (key.clone(), None))
                .collect();
            self.commit(changes, Vec::new(), true)?;
        }
        self.rest()
    }

    /// Devices begin or stop to fail by chance.
    fn weather(&mut self) -> Check {
        self.storm = !self.storm && self.random.chance(1, 2);
        let storm = self.storm;
        if storm {
            self.rig.machine.begin_storm(2500, &mut self.random);
        } else {
            self.rig.machine.end_storm();
        }
        self.scarred |= storm;
        self.stormed |= storm;
        self.healed &= !storm;
        // A device that failed a write is left out until the pool is opened again.
        self.hurt |= storm;
        trace!(self.trace, "storm: {storm}");
        self.check_copies()
    }

    fn calm(&mut self) {
        self.rig.machine.repair();
        self.storm = false;
    }

    fn plan_cut(&mut self) -> Check {
        self.rig.machine.plan_stop(400, &mut self.random);
        Ok(())
    }

    fn cut(&mut self) -> Check {
        trace!(self.trace, "power cut");
        self.rig.machine.cut_power();
        self.recover(false)
    }

    fn kill(&mut self) -> Check {
        trace!(self.trace, "kill");
        self.recover(false)
    }

    fn close_and_open(&mut self) -> Check {
        let store = self.store()?;
        self.held.clear();
        match store.close() {
            Ok(()) => {
                trace!(self.trace, "closed");
                self.flushed(store.newest());
                self.model.is_everywhere();
                ensure!(
                    matches!(store.commit(Batch::new()), Ok(_) | Err(StoreError::Stopped(_))),
                    "a closed store answers a commit with something else"
                );
                self.recover(true)
            }
            Err(error) => {
                self.judge("close", &error)?;
                self.recover(false)
            }
        }
    }
}

pub(crate) fn marker_number(value: Option<&[u8]>) -> Check<u64> {
    match value {
        None => Ok(0),
        Some(bytes) => bytes
            .get(1..9)
            .and_then(|number| number.try_into().ok())
            .map(u64::from_le_bytes)
            .ok_or_else(|| Violation("the marker has a wrong length".into())),
    }
}
