//! The whole engine under the simulator: filesystems and volumes, several clients, snapshots, background work, cuts,
//! kills and failing devices, against plain models.
//!
//! What is checked after every opening: each dataset is in one of the states that it was in since its last fsync,
//! wholly; every snapshot that was acknowledged is there and shows exactly what it showed when it was taken; a full
//! walk of the store finds every count exact. While running, every call answers as the model says, or with an error
//! that a fault explains. At the end everything is deleted and the room must come back.

use std::sync::Arc;

use terrace_dataset::{At, FsError, NewDataset, Tree};
use terrace_engine::Engine;
use terrace_store::ChunkId;

use crate::{
    disk::Rates,
    engine_rig::EngineRig,
    ensure,
    fault::{Coverage, FaultKind},
    fs_dump::dump,
    fs_model::{BlocksModel, TreeModel},
    fs_state::{FilesystemState, Promise, SnapshotState, TreeState, VolumeState},
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
    snapshots_made: u64,
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
        snapshots_made: 0,
    };
    run.engine = Some(
        run.rig
            .create()
            .map_err(|error| Violation(format!("cannot create: {error}")))?,
    );
    run.make_datasets()?;
    if run.random.chance(1, 2) {
        let after = run.random.between(1, 1500);
        run.rig.machine.cut_power_after(Some(after));
    }
    let length = run.random.between(60, 300);
    for _ in 0..length {
        run.turn()?;
    }
    run.finish()
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
                history: History::new(TreeState { tree, exact: true }),
                snapshots: Default::default(),
                handle: Some(handle),
                held: Vec::new(),
            });
        }
        if self.random.chance(1, 2) {
            let name = "pool/volume".to_string();
            let size = self.random.between(1, 1 << 10) * 4096;
            trace!(self.trace, "create {name} of {size}");
            let new = NewDataset {
                volume_bytes: Some(size),
                sparse: true,
                ..NewDataset::default()
            };
            engine.datasets().create(&name, &new).map_err(fail)?;
            let handle = engine.datasets().volume(&name).map_err(fail)?;
            let state = BlocksModel::sized(size);
            self.volumes.push(VolumeState {
                name,
                history: History::new(state),
                handle: Some(handle),
            });
        }
        Ok(())
    }

    fn turn(&mut self) -> Check {
        match self.random.below(100) {
            0..=54 => self.filesystem_call(),
            55..=60 => self.volume_call(),
            61..=66 => self.fsync(),
            67..=74 => self.background(),
            75..=78 => self.tick(),
            79..=81 => self.snapshot(),
            82..=83 => self.destroy_snapshot(),
            84..=86 => self.browse_snapshot(),
            87..=88 => self.check_one(),
            89 => self.weather(),
            90 => self.fill_up(),
            91 => self.plan_cut(),
            92..=93 => self.recover(true),
            94..=95 => self.recover(false),
            96 => self.close_and_open(),
            97 => self.store_checkpoint(),
            98 => self.toggle_migration(),
            _ => self.audit(),
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
    fn excuse(&mut self, doing: &str, words: &str) -> Check {
        trace!(self.trace, "{doing}: {words}");
        // On a full pool an earlier commit may fail, and the next call says so.
        let late = self.filled && words.contains("made up for only now");
        if self.rig.machine.is_powered() && (late || words.contains("is full")) {
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
            return match handle.flush() {
                Ok(()) => {
                    trace!(self.trace, "{}: flushed", volume.name);
                    volume.history.synced();
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
                if filesystem.promise != Promise::Timed {
                    filesystem.history.synced();
                }
                Ok(())
            }
            Err(error) => self.after_error("fsync", &error),
        }
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
        Ok(())
    }

    fn rest(&mut self) -> Check {
        let engine = self.engine()?;
        let mut idle = 0;
        for _ in 0..STEPS_MAX {
            match engine.step() {
                Ok(true) => idle = 0,
                Ok(false) => idle += 1,
                Err(error) => return self.excuse("step", &error.to_string()),
            }
            if idle == 4 {
                return Ok(());
            }
        }
        violation!("the background found no rest in {STEPS_MAX} steps")
    }

    fn tick(&mut self) -> Check {
        let engine = self.engine()?;
        self.rig.machine.clock.advance(5_000_000_000);
        match engine.tick() {
            Ok(checkpoint) => {
                trace!(self.trace, "checkpoint {checkpoint}");
                // Nothing older than the commit interval is ever lost, whatever fsync promises.
                for filesystem in &mut self.filesystems {
                    filesystem.history.synced();
                }
                for volume in &mut self.volumes {
                    volume.history.synced();
                }
                Ok(())
            }
            Err(error) => self.excuse("tick", &error.to_string()),
        }
    }

    fn store_checkpoint(&mut self) -> Check {
        let engine = self.engine()?;
        trace!(self.trace, "store checkpoint");
        match engine.chunks().checkpoint() {
            Ok(()) => Ok(()),
            Err(error) => self.excuse("checkpoint", &error.to_string()),
        }
    }

    fn toggle_migration(&mut self) -> Check {
        let engine = self.engine()?;
        let value = if self.random.chance(1, 2) { "on" } else { "off" };
        trace!(self.trace, "migration={value}");
        match engine.set_property("migration", value) {
            Ok(()) => Ok(()),
            Err(error) => self.excuse("set migration", &error.to_string()),
        }
    }

    fn snapshot(&mut self) -> Check {
        let engine = self.engine()?;
        let index = self.random.index(self.filesystems.len());
        self.snapshots_made += 1;
        let short = format!("s{}", self.snapshots_made);
        let filesystem = &mut self.filesystems[index];
        if filesystem.snapshots.len() >= 6 {
            return Ok(());
        }
        let full = format!("{}@{short}", filesystem.name);
        let state = filesystem.history.newest().clone();
        let mut snapshot = SnapshotState {
            tree: state.tree.without_unnamed(),
            exact: state.exact,
            certain: true,
        };
        match engine.datasets().snapshot(&full, false, "") {
            Ok(checkpoint) => {
                trace!(self.trace, "snapshot {full} at checkpoint {checkpoint}");
                filesystem.snapshots.insert(short, snapshot);
                // Durable when it returns, and with it everything that it shows.
                filesystem.history.synced();
                Ok(())
            }
            Err(error) => {
                snapshot.certain = false;
                filesystem.snapshots.insert(short.clone(), snapshot);
                let words = error.to_string();
                self.excuse("snapshot", &words)?;
                self.settle_unless_stopped(index, &short, &words)
            }
        }
    }

    /// What a store that has stopped still shows from memory need not be there after the next opening: until then
    /// nothing is known of it.
    fn settle_unless_stopped(&mut self, index: usize, short: &str, words: &str) -> Check {
        if words.contains("stopped accepting writes") {
            return Ok(());
        }
        self.settle_snapshot(index, short)
    }

    /// A snapshot of which it is not known whether it is there: asks.
    fn settle_snapshot(&mut self, index: usize, short: &str) -> Check {
        let engine = self.engine()?;
        let filesystem = &mut self.filesystems[index];
        let uncertain = filesystem
            .snapshots
            .get(short)
            .is_some_and(|snapshot| !snapshot.certain);
        if uncertain {
            let there = engine
                .datasets()
                .view(&filesystem.name, &At::Snapshot(short.into()))
                .is_ok();
            if there {
                if let Some(snapshot) = filesystem.snapshots.get_mut(short) {
                    snapshot.certain = true;
                }
            } else {
                filesystem.snapshots.remove(short);
            }
        }
        Ok(())
    }

    fn destroy_snapshot(&mut self) -> Check {
        let engine = self.engine()?;
        let index = self.random.index(self.filesystems.len());
        let filesystem = &mut self.filesystems[index];
        let names: Vec<String> = filesystem.snapshots.keys().cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        let short = self.random.pick(&names).clone();
        let full = format!("{}@{short}", filesystem.name);
        match engine.datasets().destroy_snapshot(&full, false, false) {
            Ok(_) => {
                trace!(self.trace, "destroyed {full}");
                filesystem.snapshots.remove(&short);
                Ok(())
            }
            Err(error) => {
                if let Some(snapshot) = filesystem.snapshots.get_mut(&short) {
                    snapshot.certain = false;
                }
                let words = error.to_string();
                ensure!(
                    !words.contains("is full") || !self.rig.machine.is_powered() || self.storm || self.hurt,
                    "destroying a snapshot was refused on a full pool"
                );
                self.excuse("destroy a snapshot", &words)?;
                self.settle_unless_stopped(index, &short, &words)
            }
        }
    }

    fn browse_snapshot(&mut self) -> Check {
        let index = self.random.index(self.filesystems.len());
        let snapshots = self.filesystems[index].snapshots.iter();
        let certain = snapshots.filter(|(_, snapshot)| snapshot.certain);
        let names: Vec<String> = certain.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let short = self.random.pick(&names).clone();
        self.check_snapshot(index, &short)
    }

    fn check_snapshot(&mut self, index: usize, short: &str) -> Check {
        let engine = self.engine()?;
        let filesystem = &self.filesystems[index];
        let full = format!("{}@{short}", filesystem.name);
        let view = match engine
            .datasets()
            .view(&filesystem.name, &At::Snapshot(short.into()))
        {
            Ok(view) => view,
            Err(error) => {
                ensure!(
                    !self.rig.machine.is_powered() || self.storm || self.hurt,
                    "snapshot {full} cannot be read: {error}"
                );
                return self.excuse("view", &error.to_string());
            }
        };
        trace!(self.trace, "browse {full}");
        let page = self.random.between(1, 20) as usize;
        match dump(&*view, page, 48 << 10) {
            Ok(shown) => {
                let Some(snapshot) = self.filesystems[index].snapshots.get(short) else {
                    return Ok(());
                };
                let expected = TreeState {
                    tree: snapshot.tree.clone(),
                    exact: snapshot.exact,
                };
                ensure!(
                    expected.is(&shown),
                    "snapshot {full} shows something else than when it was taken: {}",
                    snapshot.tree.difference(&shown)
                );
                Ok(())
            }
            Err(error) => {
                drop(view);
                self.after_error("reading a snapshot", &error)
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
        for disk in 0..self.rig.machine.disk_count() {
            let rate = |random: &mut Random| {
                if storm && random.chance(1, 3) {
                    random.between(5, 150)
                } else {
                    0
                }
            };
            let rates = Rates {
                read_error: rate(&mut self.random),
                bad_page: 0,
                read_flip: rate(&mut self.random),
                write_error: rate(&mut self.random) / 2,
                flush_error: rate(&mut self.random),
                slow: rate(&mut self.random),
            };
            let full = storm && self.random.chance(1, 40);
            let dead = storm && self.random.chance(1, 40);
            self.rig.machine.with_disk(disk, |disk, _| {
                disk.rates = rates;
                disk.backing_full = full;
                disk.writes_fail = dead;
            });
        }
        self.hurt |= storm;
        trace!(self.trace, "storm: {storm}");
        Ok(())
    }

    fn calm(&mut self) {
        for disk in 0..self.rig.machine.disk_count() {
            self.rig.machine.with_disk(disk, |disk, _| {
                disk.rates = Rates::default();
                disk.writes_fail = false;
                disk.backing_full = false;
                disk.unspoil();
            });
        }
        self.storm = false;
    }

    fn plan_cut(&mut self) -> Check {
        let after = self.random.skewed(500);
        trace!(self.trace, "power goes after {after} operations");
        self.rig.machine.cut_power_after(Some(after));
        Ok(())
    }

    fn close_and_open(&mut self) -> Check {
        let engine = self.engine()?;
        match engine.close() {
            Ok(()) => {
                trace!(self.trace, "closed");
                for filesystem in &mut self.filesystems {
                    filesystem.history.synced();
                }
                for volume in &mut self.volumes {
                    volume.history.synced();
                }
                drop(engine);
                self.reopen(false, false)
            }
            Err(error) => {
                drop(engine);
                let words = error.to_string();
                trace!(self.trace, "close: {words}");
                ensure!(
                    !self.rig.machine.is_powered()
                        || self.storm
                        || self.hurt
                        || self.filled
                        || words.contains("is full"),
                    "close failed although nothing was wrong: {words}"
                );
                self.recover(false)
            }
        }
    }

    /// Opens again after a cut (always with `cut`, else by chance or if the power went), a kill or an error.
    pub(crate) fn recover(&mut self, cut: bool) -> Check {
        let cut = cut || !self.rig.machine.is_powered() || self.random.chance(1, 4);
        self.reopen(cut, true)
    }

    fn reopen(&mut self, cut: bool, interrupted: bool) -> Check {
        self.engine = None;
        for filesystem in &mut self.filesystems {
            filesystem.handle = None;
            filesystem.held.clear();
        }
        for volume in &mut self.volumes {
            volume.handle = None;
        }
        self.calm();
        self.hurt = false;
        self.filled = false;
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
            match self.rig.open(false) {
                Ok(engine) => {
                    machine.cut_power_after(None);
                    if machine.is_powered() {
                        self.engine = Some(engine);
                        break;
                    }
                }
                Err(error) => {
                    ensure!(!machine.is_powered(), "the pool does not open: {error}");
                    trace!(self.trace, "opening, power went: {error}");
                }
            }
            self.coverage.hit(FaultKind::PowerCutInRecovery);
            machine.cut_power();
            machine.settle();
        }
        self.check_all()?;
        if interrupted && self.random.chance(1, 4) {
            self.plan_cut()?;
        }
        Ok(())
    }

    /// Everything against the models, after an opening.
    fn check_all(&mut self) -> Check {
        let engine = self.engine()?;
        for index in 0..self.filesystems.len() {
            let names: Vec<String> = self.filesystems[index].snapshots.keys().cloned().collect();
            for short in &names {
                self.settle_snapshot(index, short)?;
            }
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
            for short in names {
                if self.filesystems[index].snapshots.contains_key(&short) && self.random.chance(1, 2) {
                    self.check_snapshot(index, &short)?;
                }
            }
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
            volume.handle = Some(handle);
        }
        self.audit()
    }

    fn finish(&mut self) -> Check {
        self.rig.machine.cut_power_after(None);
        self.reopen(true, false)?;
        for index in 0..self.filesystems.len() {
            let names: Vec<String> = self.filesystems[index].snapshots.keys().cloned().collect();
            for short in &names {
                self.check_snapshot(index, short)?;
            }
        }
        // Everything is deleted: the room must come back.
        let engine = self.engine()?;
        for index in 0..self.filesystems.len() {
            while let Some(short) = self.filesystems[index].snapshots.keys().next().cloned() {
                let full = format!("{}@{short}", self.filesystems[index].name);
                engine
                    .datasets()
                    .destroy_snapshot(&full, false, false)
                    .map_err(|error| Violation(format!("{full} cannot be destroyed: {error}")))?;
                self.filesystems[index].snapshots.remove(&short);
            }
            self.filesystems[index].handle = None;
            let name = self.filesystems[index].name.clone();
            engine
                .datasets()
                .destroy(&name, true, true, false)
                .map_err(|error| Violation(format!("{name} cannot be destroyed: {error}")))?;
        }
        for volume in std::mem::take(&mut self.volumes) {
            let name = volume.name.clone();
            drop(volume);
            engine
                .datasets()
                .destroy(&name, true, true, false)
                .map_err(|error| Violation(format!("{name} cannot be destroyed: {error}")))?;
        }
        self.filesystems.clear();
        for _ in 0..3 {
            self.tick()?;
            self.rest()?;
            self.store_checkpoint()?;
        }
        self.rest()?;
        let space = engine.store().space();
        trace!(
            self.trace,
            "at the end {} chunks, {} bytes available", space.chunks, space.available_bytes
        );
        ensure!(
            space.chunks == 0 && space.logical_bytes == 0,
            "{} chunks ({} logical bytes) are left after everything was destroyed",
            space.chunks,
            space.logical_bytes
        );
        let size: u64 = self.rig.shape.disks().iter().map(|(size, _)| size).sum();
        ensure!(
            space.available_bytes >= size / 8,
            "only {} of {size} bytes are available after everything was destroyed",
            space.available_bytes
        );
        self.audit()?;
        engine
            .close()
            .map_err(|error| Violation(format!("cannot close: {error}")))
    }
}
