//! The whole engine under the simulator: filesystems and volumes, several clients, snapshots, background work, cuts,
//! kills and failing devices, against plain models.
//!
//! What is checked after every opening: each dataset is in one of the states that it was in since its last fsync,
//! wholly; every snapshot that was acknowledged is there and shows exactly what it showed when it was taken; a full
//! walk of the store finds every count exact. While running, every call answers as the model says, or with an error
//! that a fault explains. At the end everything is deleted and the room must come back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use terrace_dataset::{FsError, NewDataset, Tree};
use terrace_engine::Engine;
use terrace_pool::DeviceState;
use terrace_store::ChunkId;

use crate::{
    engine_rig::EngineRig,
    ensure,
    fault::{Coverage, FaultKind},
    fs_dump::dump,
    fs_guests::Guests,
    fs_model::{BlocksModel, TreeModel},
    fs_past::RETENTIONS,
    fs_reserving::Reserving,
    fs_settings::Settings,
    fs_state::{FilesystemState, Promise, TreeState, VolumeState},
    history::History,
    outcome::{Check, Violation},
    random::Random,
    rig::Shape,
    trace,
    trace::Trace,
    violation,
};

/// Steps of the background after which it must have come to rest.
const STEPS_MAX: u64 = 50_000;

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
}

/// What an operation that failed means for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// Nothing changed; go on.
    GoOn,
    /// The engine must be opened again; what failed may have happened.
    Reopen,
}

/// Runs one seed.
pub fn run(seed: u64, coverage: Arc<Coverage>, trace: Trace) -> Check {
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
    };
    run.engine = Some(
        run.rig
            .create()
            .map_err(|error| Violation(format!("cannot create: {error}")))?,
    );
    run.look_at_members()?;
    run.make_datasets()?;
    run.reserve()?;
    if run.random.chance(1, 2) {
        let after = run.random.between(1, 1500);
        run.rig.machine.cut_power_after(Some(after));
    }
    let length = run.random.between(60, 300);
    for _ in 0..length {
        run.turn()?;
        run.guests_come_and_go()?;
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

    fn make_datasets(&mut self) -> Check {
        let engine = self.engine()?;
        let fail =
            |error: terrace_dataset::DatasetError| Violation(format!("cannot make a dataset: {error}"));
        for number in 0..self.random.between(1, 2) {
            let name = format!("pool/fs{number}");
            let (promise, durability) = *self.random.pick(&[
                (Promise::Barrier, "barrier"),
                (Promise::Barrier, "barrier"),
                (Promise::Barrier, "barrier"),
                (Promise::Sync, "sync"),
                (Promise::Timed, "timed"),
                (Promise::Ram, "ram"),
            ]);
            let mut properties = vec![("durability".to_string(), durability.to_string())];
            let compression = *self.random.pick(&["lz4", "lz4", "off", "zstd-1"]);
            properties.push(("compression".into(), compression.into()));
            if self.random.chance(1, 4) {
                properties.push(("dedup".into(), "off".into()));
            }
            let quota_bytes = self.random.chance(1, 5).then_some(6 << 20);
            if quota_bytes.is_some() {
                properties.push(("quota".into(), "6M".into()));
            }
            let (retention, rules) = *self.random.pick(&RETENTIONS);
            properties.push(("retention".into(), retention.into()));
            trace!(self.trace, "create {name} {properties:?}");
            let new = NewDataset {
                properties,
                ..NewDataset::default()
            };
            engine.datasets().create(&name, &new).map_err(fail)?;
            let handle = engine.datasets().filesystem(&name).map_err(fail)?;
            let tree =
                dump(&*handle, 10, 65536).map_err(|error| Violation(format!("a new filesystem: {error}")))?;
            self.filesystems.push(FilesystemState {
                name,
                promise,
                quota_bytes,
                quota_certain: true,
                quota_slack_bytes: 0,
                retention: Some(rules.to_vec()),
                retained: Default::default(),
                let_go: Default::default(),
                unfinished: None,
                changed: false,
                history: History::new(TreeState { tree, exact: true }),
                snapshots: Default::default(),
                handle: Some(handle),
                held: Vec::new(),
            });
        }
        if self.random.chance(1, 2) {
            let name = "pool/volume".to_string();
            let size = self.random.between(1, 1 << 10) * 4096;
            let promise = *self.random.pick(&Promise::ALL);
            trace!(self.trace, "create {name} of {size}, {promise:?}");
            let new = NewDataset {
                properties: vec![("durability".into(), promise.word().into())],
                volume_bytes: Some(size),
                sparse: true,
                ..NewDataset::default()
            };
            engine.datasets().create(&name, &new).map_err(fail)?;
            let handle = engine.datasets().volume(&name).map_err(fail)?;
            let state = BlocksModel::sized(size);
            self.volumes.push(VolumeState {
                name,
                promise,
                history: History::new(state),
                snapshots: Default::default(),
                handle: Some(handle),
            });
        }
        Ok(())
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
        // Of what would have to be set aside.
        let refused = words.contains("is full") || words.contains("set aside");
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

    fn fsync(&mut self) -> Check {
        if !self.volumes.is_empty() && self.random.chance(1, 5) {
            let volume = &mut self.volumes[0];
            let Some(handle) = volume.handle.clone() else {
                return Ok(());
            };
            // A write with FUA asks for it whatever the volume's durability.
            let done = match self.random.chance(1, 2) {
                true => handle.flush(),
                false => handle.flush_always(),
            };
            return match done {
                Ok(()) => {
                    trace!(self.trace, "{}: flushed", volume.name);
                    if volume.promise.covers_flush() {
                        volume.history.synced();
                        self.flushed();
                    }
                    Ok(())
                }
                Err(error) => self.after_error("flush of a volume", &error),
            };
        }
        let index = self.random.index(self.filesystems.len());
        let filesystem = &mut self.filesystems[index];
        let Some(handle) = filesystem.handle.clone() else {
            return Ok(());
        };
        let result = if self.random.chance(1, 2) {
            handle.sync()
        } else {
            handle.sync_object(crate::fs_model::ROOT)
        };
        match result {
            Ok(()) => {
                trace!(self.trace, "{}: fsync", filesystem.name);
                if filesystem.promise.covers_flush() {
                    filesystem.history.synced();
                    self.flushed();
                }
                Ok(())
            }
            Err(error) => {
                self.not_refused_late("fsync", error == FsError::NoSpace)?;
                self.after_error("fsync", &error)
            }
        }
    }

    /// A full pool refuses the writer; what it has accepted it also takes. (Small change apart: on a pool without any
    /// room a truncated block is kept in the reserve as long as that lasts.)
    fn not_refused_late(&self, doing: &str, full: bool) -> Check {
        let much = self.accepted_bytes > 256 << 10;
        ensure!(
            !full || !much || self.storm || self.hurt || !self.rig.machine.is_powered(),
            "{doing}: the pool is too full for {} bytes that it had accepted",
            self.accepted_bytes
        );
        Ok(())
    }

    pub(crate) fn after_error(&mut self, doing: &str, error: &FsError) -> Check {
        match self.judge(doing, error)? {
            Consequence::GoOn => Ok(()),
            Consequence::Reopen => self.recover(false),
        }
    }

    fn background(&mut self) -> Check {
        let engine = self.engine()?;
        for _ in 0..self.random.between(1, 16) {
            match engine.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return self.excuse("step", &error.to_string()),
            }
        }
        self.look_at_members()?;
        self.audit_root()?;
        self.check_scrub()
    }

    /// What the newest root needs is still held, whatever fails.
    fn audit_root(&mut self) -> Check {
        if !self.rig.machine.is_powered() {
            return Ok(());
        }
        match self.engine()?.chunks().audit_root() {
            Ok(wrong) => ensure!(wrong.is_empty(), "{}", wrong.join("; ")),
            Err(error) => return self.excuse("audit of the root", &error.to_string()),
        }
        Ok(())
    }

    pub(crate) fn rest(&mut self) -> Check {
        let engine = self.engine()?;
        let mut idle = 0;
        for _ in 0..STEPS_MAX {
            match engine.step() {
                Ok(true) => idle = 0,
                Ok(false) => idle += 1,
                Err(error) => return self.excuse("step", &error.to_string()),
            }
            if idle == 4 {
                return self.look_at_members();
            }
        }
        violation!("the background found no rest in {STEPS_MAX} steps")
    }

    pub(crate) fn tick(&mut self) -> Check {
        let engine = self.engine()?;
        let seconds = match self.random.below(30) {
            0 => self.random.between(1000, 9000),
            1..=3 => self.random.between(30, 200),
            _ => 5,
        };
        self.rig.machine.clock.advance(seconds * 1_000_000_000);
        let before = self.now_seconds();
        // What a clock of the test's asks for, or what the daemon's does.
        let of_daemon = self.random.chance(1, 3);
        let done = match of_daemon {
            false => engine.tick(),
            true => {
                let closing = engine.datasets().checkpoint();
                engine.commit_due().map(|_| closing)
            }
        };
        match done {
            Ok(checkpoint) => {
                trace!(self.trace, "checkpoint {checkpoint}");
                // Nothing older than the commit interval is ever lost, whatever fsync promises; but for what is kept in
                // RAM alone.
                for filesystem in self
                    .filesystems
                    .iter_mut()
                    .filter(|one| one.promise != Promise::Ram)
                {
                    filesystem.history.synced();
                }
                for volume in self.volumes.iter_mut().filter(|one| one.promise != Promise::Ram) {
                    volume.history.synced();
                }
                if of_daemon {
                    // What it let go of last is not durable yet.
                    self.flushed();
                }
                for index in 0..self.filesystems.len() {
                    let closed = (self.filesystems[index].promise != Promise::Ram).then_some(checkpoint);
                    self.compare_retained(index, closed, before)?;
                }
                match of_daemon {
                    true => self.held_is_durable(),
                    false => self.flushed(),
                }
                self.check_counts()?;
                self.check_rooms()?;
                self.check_reserved()
            }
            Err(error) => {
                self.tick_was_interrupted();
                let words = error.to_string();
                self.not_refused_late("tick", words.contains("is full"))?;
                self.excuse("tick", &words)
            }
        }
    }

    pub(crate) fn store_checkpoint(&mut self) -> Check {
        let engine = self.engine()?;
        trace!(self.trace, "store checkpoint");
        match engine.chunks().checkpoint() {
            Ok(()) => {
                self.check_root_holders()?;
                self.audit_root()
            }
            Err(error) => self.excuse("checkpoint", &error.to_string()),
        }
    }

    /// Another property of a filesystem.
    fn change_settings(&mut self) -> Check {
        if self.random.chance(1, 4) {
            return self.change_promise();
        }
        let engine = self.engine()?;
        let index = self.random.index(self.filesystems.len());
        let filesystem = &mut self.filesystems[index];
        let name = filesystem.name.clone();
        let (retention, rules) = *self.random.pick(&RETENTIONS);
        let quota = *self.random.pick(&[None, Some(2u64), Some(6), Some(12)]);
        let choice = self.random.below(5);
        let (property, value) = match choice {
            0 | 1 => ("retention", retention.to_owned()),
            2 => (
                "quota",
                quota.map_or("none".into(), |mebibytes| format!("{mebibytes}M")),
            ),
            3 => (
                "compression",
                (*self.random.pick(&["lz4", "off", "zstd-1"])).to_owned(),
            ),
            _ => ("dedup", (*self.random.pick(&["on", "off"])).to_owned()),
        };
        let set = engine.datasets().set(&name, property, &value);
        trace!(self.trace, "{name}: {property}={value}: {}", set.is_ok());
        self.settings.property(&engine, &name, property, set.is_ok());
        match choice {
            0 | 1 => filesystem.retention = set.is_ok().then(|| rules.to_vec()),
            2 => {
                filesystem.quota_certain = set.is_ok();
                filesystem.quota_slack_bytes = 9 << 20;
                filesystem.quota_bytes = quota.map(|mebibytes| mebibytes << 20);
            }
            _ => {}
        }
        match set {
            Ok(()) => Ok(()),
            Err(error) => self.excuse("set a property", &error.to_string()),
        }
    }

    /// Another durability of a filesystem or of the volume.
    fn change_promise(&mut self) -> Check {
        let engine = self.engine()?;
        let promise = *self.random.pick(&Promise::ALL);
        let index = match self.volumes.is_empty() || self.random.chance(2, 3) {
            true => Some(self.random.index(self.filesystems.len())),
            false => None,
        };
        let name = index.map_or_else(
            || self.volumes[0].name.clone(),
            |index| self.filesystems[index].name.clone(),
        );
        let set = engine.datasets().set(&name, "durability", promise.word());
        trace!(self.trace, "{name}: {promise:?}: {}", set.is_ok());
        self.settings.property(&engine, &name, "durability", set.is_ok());
        drop(engine);
        if let Err(error) = set {
            self.excuse("set durability", &error.to_string())?;
        }
        // Asked for again, since it is not known what became of one that failed.
        let found = self.engine()?.datasets().get(&name, "durability");
        let found = found.map_err(|error| Violation(format!("durability of {name}: {error}")))?;
        let found = found.first().and_then(|found| Promise::of(&found.value));
        let Some(found) = found else {
            violation!("{name} has no durability");
        };
        match index {
            Some(index) => self.filesystems[index].promise = found,
            None => self.volumes[0].promise = found,
        }
        Ok(())
    }

    fn resize_volume(&mut self) -> Check {
        let engine = self.engine()?;
        let Some(volume) = self.volumes.first_mut() else {
            return Ok(());
        };
        let size = self.random.between(1, 1 << 10) * 4096;
        let mut model = volume.history.newest().clone();
        model.resize(size);
        let resized = engine.datasets().resize_volume(&volume.name, size);
        trace!(
            self.trace,
            "{}: resize to {size}: {}",
            volume.name,
            resized.is_ok()
        );
        volume.history.push(model);
        match resized {
            Ok(()) => {
                volume.history.synced();
                self.flushed();
                Ok(())
            }
            Err(error) => {
                self.excuse("resize a volume", &error.to_string())?;
                self.recover(false)
            }
        }
    }

    /// The live state of one dataset against its model.
    fn check_one(&mut self) -> Check {
        let index = self.random.index(self.filesystems.len());
        let filesystem = &self.filesystems[index];
        let Some(handle) = filesystem.handle.clone() else {
            return Ok(());
        };
        let page = self.random.between(1, 20) as usize;
        match dump(&*handle, page, 100 << 10) {
            Ok(shown) => {
                let state = filesystem.history.newest();
                ensure!(
                    state.is(&shown),
                    "{} shows something else than was written: {}",
                    filesystem.name,
                    state.tree.without_unnamed().difference(&shown)
                );
                for object in filesystem.held.clone() {
                    let Ok(file) = state.tree.file(object) else {
                        continue;
                    };
                    let mut buffer = vec![0; (file.size as usize).min(1 << 20)];
                    match handle.read(object, 0, &mut buffer) {
                        Ok(read) => ensure!(
                            buffer[..read] == file.read(0, buffer.len()),
                            "an open file without a name reads as something else"
                        ),
                        Err(error) => return self.after_error("reading an unnamed file", &error),
                    }
                }
                Ok(())
            }
            Err(error) => self.after_error("reading everything", &error),
        }
    }

    /// The full walk: every record of the datasets, and every count of the store against what these records refer to.
    pub(crate) fn audit(&mut self) -> Check {
        let engine = self.engine()?;
        let walked = terrace_dataset::check(engine.store()).and_then(|walk| {
            let expected = |tell: &mut dyn FnMut(ChunkId, i64)| {
                walk.references.iter().for_each(|(id, blocks)| tell(*id, *blocks));
                Ok(())
            };
            let audit = engine.chunks().audit(Some(&expected))?;
            Ok((walk, audit))
        });
        let (walk, audit) = match walked {
            Ok(found) => found,
            Err(error) => return self.excuse("audit", &error.to_string()),
        };
        if !self.rig.machine.is_powered() {
            return Ok(());
        }
        let lost = walk.lost_bodies.iter();
        let lost = lost.map(|(dataset, body)| format!("body {body} of dataset {dataset} belongs to no file"));
        let wrong: Vec<String> = audit
            .discrepancies
            .into_iter()
            .chain(walk.problems)
            .chain(lost)
            .collect();
        ensure!(
            wrong.is_empty(),
            "the full walk found {} things wrong: {}",
            wrong.len(),
            wrong.iter().take(5).cloned().collect::<Vec<_>>().join("; ")
        );
        Ok(())
    }

    fn weather(&mut self) -> Check {
        self.storm = !self.storm && self.random.chance(1, 2);
        let storm = self.storm;
        if storm {
            self.rig.machine.begin_storm(2500, &mut self.random);
        } else {
            self.rig.machine.end_storm();
        }
        self.hurt |= storm;
        self.scarred |= storm;
        trace!(self.trace, "storm: {storm}");
        Ok(())
    }

    fn calm(&mut self) {
        self.rig.machine.repair();
        self.storm = false;
    }

    fn plan_cut(&mut self) -> Check {
        self.rig.machine.plan_stop(500, &mut self.random);
        Ok(())
    }

    /// Opens again after a cut (always with `cut`, else by chance or if the power went), a kill or an error.
    pub(crate) fn recover(&mut self, cut: bool) -> Check {
        let cut = cut || !self.rig.machine.is_powered() || self.random.chance(1, 4);
        self.reopen(cut, true)
    }

    pub(crate) fn reopen(&mut self, cut: bool, interrupted: bool) -> Check {
        self.engine = None;
        for filesystem in &mut self.filesystems {
            filesystem.handle = None;
            filesystem.held.clear();
            filesystem.quota_slack_bytes = 0;
        }
        for volume in &mut self.volumes {
            volume.handle = None;
        }
        self.calm();
        self.hurt = false;
        self.filled = false;
        self.accepted_bytes = 0;
        let machine = self.rig.machine.clone();
        if cut {
            trace!(self.trace, "power cut");
            self.coverage.hit(FaultKind::PowerCut);
            machine.cut_power();
            machine.settle();
        } else {
            trace!(self.trace, "end of the process");
            machine.kill();
        }
        for attempt in 0.. {
            let again = interrupted && attempt < 4 && self.random.chance(1, 4);
            machine.cut_power_after(again.then(|| self.random.skewed(400)));
            let mut troubled = interrupted && attempt < 4 && self.random.chance(1, 6);
            if troubled {
                machine.trouble_reads(&mut self.random);
            }
            if interrupted && !cut && attempt == 0 && self.misreading.chance(1, 4) {
                troubled |= machine.spoil_for_opening(!self.scarred, &mut self.misreading);
            }
            let opened = self.rig.open(false);
            machine.repair();
            match opened {
                Ok(engine) => {
                    machine.cut_power_after(None);
                    if machine.is_powered() {
                        // What could not be read too often is not used for anything new until the next opening.
                        let mut devices = engine.pool().devices().into_iter();
                        self.hurt = devices.any(|device| device.state != DeviceState::Online);
                        self.engine = Some(engine);
                        break;
                    }
                }
                Err(error) => {
                    trace!(self.trace, "opening: {error}");
                    if machine.is_powered() {
                        ensure!(troubled, "the pool does not open: {error}");
                        machine.kill();
                        continue;
                    }
                }
            }
            self.coverage.hit(FaultKind::PowerCutInRecovery);
            machine.cut_power();
            machine.settle();
        }
        self.members_after_opening()?;
        self.check_all()?;
        self.tick_failed = false;
        if interrupted && self.random.chance(1, 4) {
            self.plan_cut()?;
        }
        Ok(())
    }

    /// Everything against the models, after an opening.
    fn check_all(&mut self) -> Check {
        let engine = self.engine()?;
        self.settle_snapshots()?;
        self.check_names()?;
        for index in 0..self.filesystems.len() {
            let names: Vec<String> = self.filesystems[index].snapshots.keys().cloned().collect();
            let filesystem = &mut self.filesystems[index];
            let name = filesystem.name.clone();
            let handle = engine
                .datasets()
                .filesystem(&name)
                .map_err(|error| Violation(format!("{name} does not open: {error}")))?;
            let shown: TreeModel = dump(&*handle, 13, 64 << 10)
                .map_err(|error| Violation(format!("{name} cannot be read after opening: {error}")))?;
            filesystem.handle = Some(handle);
            let undone = filesystem
                .history
                .recovered(
                    |state| state.is(&shown),
                    |state| state.tree.without_unnamed().difference(&shown),
                )
                .map_err(|violation| Violation(format!("{name}: {violation}")))?;
            trace!(self.trace, "{name}: {undone} operations undone");
            let exact = shown.clone();
            filesystem.history.amend(|state| {
                *state = TreeState {
                    tree: exact,
                    exact: true,
                }
            });
            // What an opening shows is durable: it does not go back behind that.
            filesystem.history.synced();
            for short in names {
                if self.filesystems[index].snapshots.contains_key(&short) && self.random.chance(1, 2) {
                    self.check_snapshot(index, &short)?;
                }
            }
            self.recover_retained(index)?;
        }
        for volume in &mut self.volumes {
            let fail = |error: &dyn std::fmt::Display| Violation(format!("{}: {error}", volume.name));
            let handle = engine
                .datasets()
                .volume(&volume.name)
                .map_err(|error| fail(&error))?;
            let size = handle.size_bytes();
            let mut data = BlocksModel::sized(size);
            let mut buffer = vec![0; 256 << 10];
            let mut at = 0;
            while at < size {
                let take = buffer.len().min((size - at) as usize);
                handle
                    .read(at, &mut buffer[..take])
                    .map_err(|error| fail(&error))?;
                data.write(at, &buffer[..take]);
                at += take as u64;
            }
            let undone = volume
                .history
                .recovered(|state| *state == data, |state| format!("{state:?}, not {data:?}"))
                .map_err(|violation| fail(&violation))?;
            trace!(self.trace, "{}: {undone} operations undone", volume.name);
            volume.history.synced();
            volume.handle = Some(handle);
        }
        self.check_volume_snapshots()?;
        self.check_guests()?;
        self.check_volume_sizes()?;
        self.check_sizes()?;
        self.check_settings()?;
        self.check_tables()?;
        self.audit()
    }
}
