//! The whole engine under the simulator: filesystems and volumes, several clients, snapshots, background work, cuts,
//! kills and failing devices, against plain models.
//!
//! What is checked after every opening: each dataset is in one of the states that it was in since its last fsync,
//! wholly; every snapshot that was acknowledged is there and shows exactly what it showed when it was taken; a full
//! walk of the store finds every count exact. While running, every call answers as the model says, or with an error
//! that a fault explains. At the end everything is deleted and the room must come back.

mod background;
mod beginning;
mod durability;
mod properties;
mod recovery;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use terrace_dataset::FsError;
use terrace_engine::Engine;

use crate::{
    engine_rig::EngineRig,
    ensure,
    fs::{
        background::{Guests, Serving},
        machine::{Absence, Replacing},
        state::{FilesystemState, Reserving, Settings, VolumeState},
    },
    hardware::{Coverage, FaultKind, Random},
    rig::Shape,
    trace,
    trace::Trace,
    violation,
    violation::{Check, Violation},
};

/// A run of this level.
pub struct Run {
    pub(crate) rig: EngineRig,
    pub(crate) engine: Option<Arc<Engine>>,
    pub(crate) filesystems: Vec<FilesystemState>,
    pub(crate) volumes: Vec<VolumeState>,
    pub(crate) random: Random,
    pub(crate) trace: Trace,
    pub(crate) coverage: Arc<Coverage>,
    /// Operations may fail by chance.
    pub(crate) storm: bool,
    /// Something failed since the engine was opened.
    pub(crate) hurt: bool,
    /// The pool was found full since the engine was opened.
    pub(crate) filled: bool,
    /// New content that was accepted since something was made durable, about.
    pub(crate) accepted_bytes: u64,
    pub(crate) snapshots_made: u64,
    /// A tick or a pruning failed since the pool was opened.
    pub(crate) tick_failed: bool,
    /// Writes failed while copies were made, so that some may be missing.
    pub(crate) scarred: bool,
    /// Disks that are part of the pool.
    pub(crate) members: BTreeSet<usize>,
    pub(crate) tiers_made: u64,
    /// The numbers that the pool's devices have, by disk.
    pub(crate) numbers: BTreeMap<usize, u16>,
    /// A disk has left the pool just now.
    pub(crate) left: bool,
    /// What was set and must stay so.
    pub(crate) settings: Settings,
    /// Another source of chance, so that what was added later left the kept seeds as they were.
    pub(crate) aside: Random,
    /// Datasets that come and go.
    pub(crate) guests: Guests,
    /// Chance of what cannot be read while the pool is opened.
    pub(crate) misreading: Random,
    /// And one for what is laid out anew.
    pub(crate) laying: Random,
    /// What gets chunks of its own.
    pub(crate) raising: Random,
    /// Room that is set aside for the volume.
    pub(crate) reserving: Reserving,
    /// A disk that is pulled.
    pub(crate) absence: Absence,
    /// Disks that are missing and are replaced.
    pub(crate) replacing: Replacing,
    /// Volumes as those use them that serve them.
    pub(crate) serving: Serving,
}

/// What an operation that failed means for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// Nothing changed; go on.
    GoOn,
    /// The engine must be opened again; what failed may have happened.
    Reopen,
}

/// Runs one seed, with missing disks replaced or not.
pub fn run(seed: u64, replaces: bool, coverage: Arc<Coverage>, trace: Trace) -> Check {
    let mut random = Random::new(seed ^ 0xF5_0000_0000);
    let shape = Shape::choose(&mut random);
    trace!(trace, "fs level, {shape:?}");
    let rig = EngineRig::new(shape, random.fork(1), coverage.clone(), trace.clone());
    let mut run = Run {
        rig,
        engine: None,
        filesystems: Vec::new(),
        volumes: Vec::new(),
        random: random.fork(2),
        trace,
        coverage,
        storm: false,
        hurt: false,
        filled: false,
        accepted_bytes: 0,
        snapshots_made: 0,
        tick_failed: false,
        scarred: false,
        members: BTreeSet::new(),
        tiers_made: 0,
        numbers: BTreeMap::new(),
        left: false,
        settings: Settings::default(),
        aside: Random::new(seed ^ 0xA51D_E000_0000),
        guests: Guests::new(seed),
        misreading: Random::new(seed ^ 0x3158_EAD0_0000),
        laying: Random::new(seed ^ 0x1A1D_0000_0000),
        raising: Random::new(seed ^ 0x4153_0000_0000),
        reserving: Reserving::new(seed),
        absence: Absence::new(seed),
        replacing: Replacing::new(seed, replaces),
        serving: Serving::new(seed),
    };
    run.engine = Some(
        run.rig
            .create()
            .map_err(|error| Violation(format!("cannot create: {error}")))?,
    );
    run.look_at_members()?;
    run.make_datasets()?;
    run.reserve()?;
    run.make_served_volume()?;
    if run.random.chance(1, 2) {
        let after = run.random.between(1, 1500);
        run.rig.machine.cut_power_after(Some(after));
    }
    let length = run.random.between(60, 300);
    for _ in 0..length {
        run.turn()?;
        run.guests_come_and_go()?;
        run.serve_volumes()?;
        run.disks_are_pulled()?;
        run.replacements_come()?;
        run.cut_after_leaving()?;
        run.rig.machine.check_breach()?;
    }
    let machine = run.rig.machine.clone();
    run.finish()?;
    machine.check_breach()
}

impl Run {
    pub(crate) fn engine(&self) -> Check<Arc<Engine>> {
        self.engine
            .clone()
            .ok_or_else(|| Violation("the engine is not open".into()))
    }

    fn turn(&mut self) -> Check {
        self.relayout_now_and_then()?;
        self.raise_now_and_then()?;
        match self.random.below(200) {
            0..=101 => self.filesystem_call(),
            102..=113 => self.volume_call(),
            114..=126 => self.fsync(),
            127..=141 => self.background(),
            142..=149 => self.tick(),
            150..=155 => self.snapshot(),
            156..=159 => self.destroy_snapshot(),
            160..=162 => self.administer_snapshots(),
            163..=167 => self.browse_snapshot(),
            168..=171 => self.check_one(),
            172..=174 => self.weather(),
            175..=176 => self.fill_up(),
            177..=178 => self.plan_cut(),
            179..=181 => self.recover(true),
            182..=184 => self.recover(false),
            185..=186 => self.close_and_open(),
            187..=188 => self.store_checkpoint(),
            189..=190 => self.audit(),
            191..=193 => self.change_devices(),
            194 => self.change_tier(),
            195..=196 => self.move_by_hand(),
            197..=198 => self.change_settings(),
            _ => self.resize_volume(),
        }
    }

    /// What an error means; a violation if nothing explains it.
    pub(crate) fn judge(&mut self, doing: &str, error: &FsError) -> Check<Consequence> {
        trace!(self.trace, "{doing}: {error}");
        if !self.rig.machine.is_powered() {
            return Ok(Consequence::Reopen);
        }
        match error {
            FsError::NoSpace => {
                self.coverage.hit(FaultKind::PoolFull);
                self.filled = true;
                Ok(Consequence::GoOn)
            }
            FsError::QuotaExceeded => Ok(Consequence::GoOn),
            FsError::Io(_) if self.storm || self.hurt => {
                self.hurt = true;
                Ok(Consequence::Reopen)
            }
            other => violation!("{doing} failed although nothing was wrong: {other}"),
        }
    }

    /// An error of the engine or of an administrative call, in words: the power, a storm or a full pool explain it.
    pub(crate) fn excuse(&mut self, doing: &str, words: &str) -> Check {
        trace!(self.trace, "{doing}: {words}");
        // On a full pool an earlier commit may fail, and the next call says so.
        let late = self.filled && words.contains("made up for only now");
        // Of what would have to be set aside. A pool that stopped has refused nothing: what became of it shows at the next opening.
        let stopped = words.contains("stopped accepting writes");
        let refused = !stopped && (words.contains("is full") || words.contains("set aside"));
        if self.rig.machine.is_powered() && (late || refused) {
            self.coverage.hit(FaultKind::PoolFull);
            self.filled = true;
            return Ok(());
        }
        ensure!(
            !self.rig.machine.is_powered() || self.storm || self.hurt,
            "{doing} failed although nothing was wrong: {words}"
        );
        self.hurt = true;
        self.recover(false)
    }

    pub(crate) fn after_error(&mut self, doing: &str, error: &FsError) -> Check {
        match self.judge(doing, error)? {
            Consequence::GoOn => Ok(()),
            Consequence::Reopen => self.recover(false),
        }
    }
}
