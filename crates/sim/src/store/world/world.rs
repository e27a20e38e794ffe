//! `StoreWorld`: a machine with a chunk store on it, the model of what the store must hold, and what explains an error.
//!
//! Invariant: all chance comes from the seed; acts of later versions draw from streams of their own, so that the seeds that
//! are kept do as they did.

use std::sync::Arc;

use terrace_chunk::{ChunkStore, FORMAT_NEWEST, FORMAT_OLDEST};
use terrace_store::{StoreError, Written};

use super::{condition::Condition, log_copies::LogCopies, recent_writes::RecentWrites};
use crate::{
    hardware::{Coverage, FaultKind, Random},
    models::Content,
    rig::{Rig, Shape},
    store::model::StoreModel,
    trace,
    trace::Trace,
    violation,
    violation::{Check, Violation},
};

/// Keys that the workload uses.
const KEYS: u64 = 120;

/// What is known of the version of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upgrade {
    /// It has an older one, and nobody asked for another.
    Unasked,
    /// It was asked for, and that failed or was cut off.
    Begun,
    /// It has the newest.
    Done,
}

/// What an operation that failed means for the run.
pub(crate) enum Consequence {
    /// Nothing changed; go on.
    GoOn,
    /// The engine must be opened again.
    Reopen,
}

/// See the module.
pub(crate) struct StoreWorld {
    pub(crate) rig: Rig,
    pub(crate) store: Option<Arc<ChunkStore>>,
    pub(crate) model: StoreModel,
    pub(crate) trace: Trace,
    pub(crate) coverage: Arc<Coverage>,
    pub(crate) condition: Condition,
    /// Chance of the run.
    pub(crate) random: Random,
    /// Chance of what is held and given up, and of what cannot be read while the store is opened.
    pub(crate) leaving: Random,
    /// Chance of trials in which a disk is lost, and of when the copies of the log are brought up to date.
    pub(crate) losing: Random,
    /// Chance of pools of an older version.
    pub(crate) upgrading: Random,
    pub(crate) upgrade: Upgrade,
    /// Chunks written and not yet committed, kept alive for a while.
    pub(crate) held: Vec<(Written, Content)>,
    pub(crate) recent: RecentWrites,
    pub(super) log_copies: LogCopies,
    /// Records are long, so that the log goes through many segments and tables are merged and given up.
    pub(crate) wordy: bool,
    /// The run comes to its end.
    pub(crate) ending: bool,
}

impl StoreWorld {
    /// A machine with an empty store.
    pub(crate) fn begin(seed: u64, coverage: Arc<Coverage>, trace: Trace) -> Check<Self> {
        let mut random = Random::new(seed);
        let shape = Shape::choose(&mut random);
        trace!(trace, "store level, {shape:?}");
        let rig = Rig::new(shape, random.fork(1), coverage.clone(), trace.clone());
        let mut world = Self {
            rig,
            store: None,
            model: StoreModel::default(),
            trace,
            coverage,
            condition: Condition::default(),
            random: random.fork(2),
            leaving: Random::new(seed ^ 0x1EA7_E000_0000),
            losing: Random::new(seed ^ 0x105E_0000_0000),
            // With this number the seeds that were kept before have pools of the newest version, as they had.
            upgrading: Random::new(seed ^ 0x0004_1300_0000),
            upgrade: Upgrade::Done,
            held: Vec::new(),
            recent: RecentWrites::default(),
            log_copies: LogCopies::default(),
            wordy: false,
            ending: false,
        };
        world.wordy = world.random.chance(1, 3);
        world.choose_version();
        let created = world.rig.create();
        world.store = Some(created.map_err(|error| Violation(format!("cannot create: {error}")))?);
        Ok(world)
    }

    /// Makes some pools with an earlier version; before the pool is made.
    fn choose_version(&mut self) {
        if self.upgrading.chance(1, 6) {
            let (oldest, newest) = (u64::from(FORMAT_OLDEST), u64::from(FORMAT_NEWEST));
            self.rig.format_version = self.upgrading.between(oldest, newest - 1) as u8;
            trace!(self.trace, "a pool of version {}", self.rig.format_version);
            self.upgrade = Upgrade::Unasked;
        }
    }

    pub(crate) fn store(&self) -> Check<Arc<ChunkStore>> {
        self.store
            .clone()
            .ok_or_else(|| Violation("the store is not open".into()))
    }

    /// Whether the store is open, and its disks tell the truth.
    pub(crate) fn is_sound(&self) -> bool {
        !self.condition.lying && !self.condition.broken && self.store.is_some()
    }

    /// Whether something from outside explains that an operation failed.
    pub(crate) fn is_explained(&self) -> bool {
        self.condition.storm || self.condition.hurt || !self.rig.machine.is_powered()
    }

    /// What an error means; a violation if nothing explains it.
    pub(crate) fn judge(&mut self, doing: &str, error: &StoreError) -> Check<Consequence> {
        trace!(self.trace, "{doing}: {error}");
        if !self.rig.machine.is_powered() {
            return Ok(Consequence::Reopen);
        }
        if let StoreError::NoSpace = error {
            return Ok(Consequence::GoOn);
        }
        if !self.condition.storm && !self.condition.hurt {
            violation!("{doing} failed although nothing was wrong: {error}");
        }
        self.condition.hurt = true;
        match error {
            StoreError::Stopped(_) => Ok(Consequence::Reopen),
            StoreError::Device(_)
            | StoreError::Damaged { .. }
            | StoreError::DamagedMetadata(_)
            | StoreError::UnreadableMetadata(_) => Ok(Consequence::GoOn),
            other => violation!("{doing} answered a failing device with: {other}"),
        }
    }

    pub(crate) fn note_full(&self, error: &StoreError) {
        if let StoreError::NoSpace = error {
            self.coverage.hit(FaultKind::PoolFull);
        }
    }

    /// One of the keys that the workload uses.
    pub(crate) fn key(&mut self) -> Vec<u8> {
        let number = self.random.below(KEYS);
        let mut key = vec![0x20 + (number % 3) as u8, 1];
        key.extend_from_slice(&number.to_be_bytes()[6..]);
        if number.is_multiple_of(7) {
            key.extend_from_slice(&[0xAB; 90]);
        }
        key
    }

    /// Whether the copy of the log on a slower disk may be behind that on the first one.
    pub(crate) fn log_may_be_behind(&self) -> bool {
        self.rig.shape.tiers.len() > 1 && self.rig.shape.copies[0] == 1
    }

    /// With one device full, log and tables go on with one copy, or the log with one that does not count since its device fails: then
    /// a loss may be the loss of the pool, or of the end of its log.
    pub(crate) fn look_at_mirrors(&mut self) {
        let is_single = |store: &Arc<ChunkStore>| !store.is_mirrored() || store.is_stuck_on_failing();
        self.condition.single |= self.store.as_ref().is_some_and(is_single);
    }
}
