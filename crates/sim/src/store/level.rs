//! The store under the simulator: batches, chunks, flushes, background steps, cuts, kills and failing devices, against
//! a [`StoreModel`].
//!
//! What is checked after every opening: the records are those of a prefix of the batches that contains every flushed
//! one; every chunk that a record refers to has its content; the full walk (`audit`) finds every count exact. While
//! running: every read answers as the model says, or with an error that a fault explains; a full pool refuses new data,
//! lets go of old data, and takes new data again. At the end, everything is deleted and the room must be back.

mod again;
mod background;
mod filling;
mod holding;
mod loss;
mod reading;
mod recovery;
mod stops;
mod upgrading;
mod writing;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use terrace_chunk::ChunkStore;
use terrace_store::{ChunkId, StoreError, Written};

use self::{again::Recent, upgrading::Upgrade};
use crate::{
    hardware::{Coverage, Random},
    rig::{Rig, Shape},
    run::{Check, Content, Violation},
    store::model::StoreModel,
    trace,
    trace::Trace,
    violation,
};

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
    /// And for pools of an older version.
    upgrading: Random,
    pub(crate) upgrade: Upgrade,
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
        run.upgrade_now_and_then()?;
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
            // With this number the seeds that were kept before have pools of the newest version, as they had.
            upgrading: Random::new(seed ^ 0x0004_1300_0000),
            upgrade: Upgrade::Done,
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
        run.choose_version();
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
            StoreError::Device(_)
            | StoreError::Damaged { .. }
            | StoreError::DamagedMetadata(_)
            | StoreError::UnreadableMetadata(_) => Ok(Consequence::GoOn),
            other => violation!("{doing} answered a failing device with: {other}"),
        }
    }

    fn after_error(&mut self, doing: &str, error: &StoreError) -> Check {
        match self.judge(doing, error)? {
            Consequence::GoOn => Ok(()),
            Consequence::Reopen => self.recover(false),
        }
    }
}
