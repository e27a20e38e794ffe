//! The past of the run's datasets: snapshots of filesystems and volumes, holds on them, and the checkpoints that
//! retention keeps.
//!
//! What must hold: a snapshot that was acknowledged is there, and shows what it showed, until it is destroyed; one
//! that is held is not destroyed; of the checkpoints that retention holds exactly those are there that the rules keep
//! (worked out here on their own), and each shows what the dataset was when it was closed. What was not durable when
//! the power went may be there or not.

use std::ops::RangeInclusive;

use terrace_dataset::{At, DatasetError, FsError, ROOT, Tree};

use super::dump::dump;
use crate::{
    ensure,
    fs::{
        level::Run,
        state::{
            BlocksModel, FilesystemState, Retained, RetentionRule, SnapshotState, TreeState, VolumeSnapshot,
        },
    },
    trace,
    violation::{Check, Violation},
};

/// Rules of retention that the workload sets, with what they mean: (every so many seconds, for so long); 0: each.
pub(crate) const RETENTIONS: [(&str, &[RetentionRule]); 5] = [
    ("none", &[]),
    ("all:30s", &[(0, 30)]),
    ("all:20s minutely:5m", &[(0, 20), (60, 300)]),
    ("minutely:2h hourly:1d", &[(60, 7200), (3600, 86_400)]),
    ("15s:2m", &[(15, 120)]),
];
/// Snapshots that a dataset of the run has at most.
const SNAPSHOTS_MAX: usize = 6;

/// Which of these checkpoints, with their times in seconds, the rules keep at this time.
fn kept(checkpoints: &[(u64, i64)], rules: &[RetentionRule], now: i64) -> Vec<u64> {
    let keeps = |(number, time): &(u64, i64)| {
        rules.iter().any(|(every, for_seconds)| {
            let of_age = now - time <= *for_seconds;
            // The newest of its period: no later one lies in the same.
            let newest = *every == 0
                || !checkpoints
                    .iter()
                    .any(|(other, at)| other > number && at.div_euclid(*every) == time.div_euclid(*every));
            of_age && newest
        })
    };
    checkpoints
        .iter()
        .filter(|one| keeps(one))
        .map(|(number, _)| *number)
        .collect()
}

impl Run {
    pub(crate) fn now_seconds(&self) -> i64 {
        (terrace_device::Clock::now_nanoseconds(&*self.rig.machine.clock) / 1_000_000_000) as i64
    }

    /// Everything that was done so far is durable.
    pub(crate) fn flushed(&mut self) {
        self.filesystems
            .iter_mut()
            .for_each(|filesystem| filesystem.let_go.clear());
        self.held_is_durable();
    }

    /// The checkpoints that are held are, durably.
    pub(crate) fn held_is_durable(&mut self) {
        self.accepted_bytes = 0;
        for filesystem in &mut self.filesystems {
            filesystem
                .retained
                .values_mut()
                .for_each(|retained| retained.durable = true);
        }
    }

    pub(crate) fn snapshot(&mut self) -> Check {
        let engine = self.engine()?;
        self.snapshots_made += 1;
        let short = format!("s{}", self.snapshots_made);
        let recursive = self.random.chance(1, 5);
        let (mut filesystems, mut volumes) = (Vec::new(), Vec::new());
        let full = if recursive {
            filesystems.extend(0..self.filesystems.len());
            volumes.extend(0..self.volumes.len());
            format!("pool@{short}")
        } else if !self.volumes.is_empty() && self.random.chance(1, 5) {
            volumes.push(0);
            format!("{}@{short}", self.volumes[0].name)
        } else {
            let index = self.random.index(self.filesystems.len());
            filesystems.push(index);
            format!("{}@{short}", self.filesystems[index].name)
        };
        let many = filesystems
            .iter()
            .any(|index| self.filesystems[*index].snapshots.len() >= SNAPSHOTS_MAX)
            || volumes
                .iter()
                .any(|index| self.volumes[*index].snapshots.len() >= SNAPSHOTS_MAX);
        if many {
            return Ok(());
        }
        let made = engine.datasets().snapshot(&full, recursive, "");
        let certain = made.is_ok();
        for index in &filesystems {
            let filesystem = &mut self.filesystems[*index];
            let state = filesystem.history.newest().clone();
            let snapshot = SnapshotState {
                tree: state.tree.without_unnamed(),
                exact: state.exact,
                certain,
                tagged: false,
            };
            filesystem.snapshots.insert(short.clone(), snapshot);
            if certain {
                // Durable when it returns, and with it everything that it shows.
                filesystem.history.synced();
                filesystem.changed = false;
            }
        }
        for index in &volumes {
            let volume = &mut self.volumes[*index];
            let data = volume.history.newest().clone();
            volume
                .snapshots
                .insert(short.clone(), VolumeSnapshot { data, certain });
            if certain {
                volume.history.synced();
            }
        }
        match made {
            Ok(checkpoint) => {
                trace!(self.trace, "snapshot {full} at checkpoint {checkpoint}");
                self.flushed();
                Ok(())
            }
            Err(error) => {
                let words = error.to_string();
                self.excuse("snapshot", &words)?;
                self.settle_unless_stopped(&words)
            }
        }
    }

    /// What a store that has stopped still shows from memory need not be there after the next opening: until then
    /// nothing is known of it.
    fn settle_unless_stopped(&mut self, words: &str) -> Check {
        if words.contains("stopped accepting writes") {
            return Ok(());
        }
        self.settle_snapshots()
    }

    /// Of snapshots of which it is not known whether they are there: asks.
    pub(crate) fn settle_snapshots(&mut self) -> Check {
        let engine = self.engine()?;
        let datasets = engine.datasets();
        for filesystem in &mut self.filesystems {
            let name = filesystem.name.clone();
            let known = filesystem
                .snapshots
                .iter()
                .filter(|(_, snapshot)| snapshot.certain);
            let known: Vec<String> = known.map(|(short, _)| short.clone()).collect();
            filesystem.snapshots.retain(|short, snapshot| {
                let there = snapshot.certain || datasets.view(&name, &At::Snapshot(short.clone())).is_ok();
                snapshot.certain = true;
                there
            });
            for (short, snapshot) in &mut filesystem.snapshots {
                if let Ok(info) = datasets.snapshot_info(&format!("{name}@{short}")) {
                    let tagged = !info.holds.is_empty();
                    ensure!(
                        tagged == snapshot.tagged || !known.contains(short),
                        "{name}@{short} is held: {tagged}, although the other was acknowledged"
                    );
                    snapshot.tagged = tagged;
                }
            }
        }
        for volume in &mut self.volumes {
            let name = volume.name.clone();
            volume.snapshots.retain(|short, snapshot| {
                let there =
                    snapshot.certain || datasets.volume_view(&name, &At::Snapshot(short.clone())).is_ok();
                snapshot.certain = true;
                there
            });
        }
        Ok(())
    }

    /// After an opening: no snapshot is there that was destroyed, or never made.
    pub(crate) fn check_names(&mut self) -> Check {
        let engine = self.engine()?;
        let list = engine.datasets().snapshots(None, false);
        let list = list.map_err(|error| Violation(format!("snapshots cannot be listed: {error}")))?;
        for found in list {
            let of_filesystem = self.filesystems.iter().find(|one| one.name == found.dataset);
            let of_volume = self.volumes.iter().find(|one| one.name == found.dataset);
            let known = match (of_filesystem, of_volume) {
                (Some(filesystem), _) => filesystem.snapshots.contains_key(&found.snapshot),
                (None, Some(volume)) => volume.snapshots.contains_key(&found.snapshot),
                (None, None) => true,
            };
            ensure!(
                known,
                "{}@{} is there after opening, and was destroyed or never made",
                found.dataset,
                found.snapshot
            );
        }
        Ok(())
    }

    /// A snapshot of a filesystem of which it is known that it is there: its dataset and name.
    fn pick_snapshot(&mut self) -> Option<(usize, String)> {
        let index = self.random.index(self.filesystems.len());
        let snapshots = self.filesystems[index].snapshots.iter();
        let certain = snapshots.filter(|(_, snapshot)| snapshot.certain);
        let names: Vec<String> = certain.map(|(name, _)| name.clone()).collect();
        (!names.is_empty()).then(|| (index, self.random.pick(&names).clone()))
    }

    pub(crate) fn destroy_snapshot(&mut self) -> Check {
        if self.random.chance(1, 4)
            && let Some(volume) = self.volumes.first_mut()
            && let Some(short) = volume.snapshots.keys().next().cloned()
        {
            let full = format!("{}@{short}", volume.name);
            return match self.engine()?.datasets().destroy_snapshot(&full, false, false) {
                Ok(_) => {
                    trace!(self.trace, "destroyed {full}");
                    self.volumes[0].snapshots.remove(&short);
                    self.flushed();
                    Ok(())
                }
                Err(error) => {
                    if let Some(snapshot) = self.volumes[0].snapshots.get_mut(&short) {
                        snapshot.certain = false;
                    }
                    self.destroying_failed(&error)
                }
            };
        }
        let engine = self.engine()?;
        let Some((index, short)) = self.pick_snapshot() else {
            return Ok(());
        };
        let filesystem = &mut self.filesystems[index];
        let full = format!("{}@{short}", filesystem.name);
        let tagged = filesystem
            .snapshots
            .get(&short)
            .is_some_and(|snapshot| snapshot.tagged);
        match engine.datasets().destroy_snapshot(&full, false, false) {
            Ok(_) => {
                trace!(self.trace, "destroyed {full}");
                ensure!(!tagged, "{full} was destroyed although it is held");
                filesystem.snapshots.remove(&short);
                self.flushed();
                if self.random.chance(1, 4) {
                    return self.recover(true);
                }
                Ok(())
            }
            Err(DatasetError::Held { .. }) => {
                ensure!(
                    tagged,
                    "{full} is not destroyed because of a hold that there is not"
                );
                Ok(())
            }
            Err(error) => {
                if let Some(snapshot) = filesystem.snapshots.get_mut(&short) {
                    snapshot.certain = false;
                }
                self.destroying_failed(&error)
            }
        }
    }

    fn destroying_failed(&mut self, error: &DatasetError) -> Check {
        let words = error.to_string();
        ensure!(
            !words.contains("is full") || !self.rig.machine.is_powered() || self.storm || self.hurt,
            "destroying a snapshot was refused on a full pool"
        );
        self.excuse("destroy a snapshot", &words)?;
        self.settle_unless_stopped(&words)
    }

    /// Holds a snapshot, lets go of it, gives it another name, or prunes what retention does not keep.
    pub(crate) fn administer_snapshots(&mut self) -> Check {
        let engine = self.engine()?;
        if self.random.chance(1, 4) {
            let index = self.random.index(self.filesystems.len());
            let name = self.filesystems[index].name.clone();
            let before = self.now_seconds();
            return match engine.datasets().prune(&name, false) {
                Ok(report) => {
                    trace!(self.trace, "prune {name}: {} gone", report.snapshots.len());
                    self.compare_retained(index, None, before)
                }
                Err(error) => {
                    self.tick_failed = true;
                    self.excuse("prune", &error.to_string())
                }
            };
        }
        let Some((index, short)) = self.pick_snapshot() else {
            return Ok(());
        };
        let full = format!("{}@{short}", self.filesystems[index].name);
        let Some(snapshot) = self.filesystems[index].snapshots.get(&short).cloned() else {
            return Ok(());
        };
        if self.random.chance(1, 3) {
            let other = format!("r{short}");
            if self.filesystems[index].snapshots.contains_key(&other) || other.len() > 40 {
                return Ok(());
            }
            let renamed = engine
                .datasets()
                .rename_snapshot(&full, &format!("{}@{other}", self.filesystems[index].name));
            trace!(self.trace, "rename {full} to {other}: {}", renamed.is_ok());
            let snapshots = &mut self.filesystems[index].snapshots;
            snapshots.insert(
                other,
                SnapshotState {
                    certain: renamed.is_ok(),
                    ..snapshot.clone()
                },
            );
            return match renamed {
                Ok(()) => {
                    snapshots.remove(&short);
                    Ok(())
                }
                Err(error) => {
                    snapshots.insert(
                        short,
                        SnapshotState {
                            certain: false,
                            ..snapshot
                        },
                    );
                    let words = error.to_string();
                    self.excuse("rename a snapshot", &words)?;
                    self.settle_unless_stopped(&words)
                }
            };
        }
        let done = if snapshot.tagged {
            engine.datasets().release("tag", &full)
        } else {
            engine.datasets().hold("tag", &full)
        };
        trace!(self.trace, "hold or release {full}: {}", done.is_ok());
        match done {
            Ok(()) => {
                if let Some(snapshot) = self.filesystems[index].snapshots.get_mut(&short) {
                    snapshot.tagged = !snapshot.tagged;
                }
                Ok(())
            }
            Err(error) => {
                if let Some(snapshot) = self.filesystems[index].snapshots.get_mut(&short) {
                    snapshot.certain = false;
                }
                let words = error.to_string();
                self.excuse("hold a snapshot", &words)?;
                self.settle_unless_stopped(&words)
            }
        }
    }

    pub(crate) fn browse_snapshot(&mut self) -> Check {
        if !self.volumes.is_empty() && self.random.chance(1, 5) {
            return self.check_volume_snapshots();
        }
        if self.random.chance(1, 3) {
            let index = self.random.index(self.filesystems.len());
            let checkpoints: Vec<u64> = self.filesystems[index].retained.keys().copied().collect();
            if !checkpoints.is_empty() {
                let checkpoint = *self.random.pick(&checkpoints);
                return self.check_retained(index, checkpoint);
            }
        }
        match self.pick_snapshot() {
            Some((index, short)) => self.check_snapshot(index, &short),
            None => Ok(()),
        }
    }

    pub(crate) fn check_snapshot(&mut self, index: usize, short: &str) -> Check {
        let Some(snapshot) = self.filesystems[index].snapshots.get(short) else {
            return Ok(());
        };
        let expected = TreeState {
            tree: snapshot.tree.clone(),
            exact: snapshot.exact,
        };
        self.check_past(index, &At::Snapshot(short.into()), &expected)
    }

    fn check_retained(&mut self, index: usize, checkpoint: u64) -> Check {
        let Some(retained) = self.filesystems[index].retained.get(&checkpoint) else {
            return Ok(());
        };
        let expected = retained.state.clone();
        self.check_past(index, &At::Checkpoint(checkpoint), &expected)
    }

    /// A filesystem as it was, against what it was.
    fn check_past(&mut self, index: usize, at: &At, expected: &TreeState) -> Check {
        let engine = self.engine()?;
        let filesystem = &self.filesystems[index];
        let full = format!("{} at {at}", filesystem.name);
        let view = match engine.datasets().view(&filesystem.name, at) {
            Ok(view) => view,
            Err(error) => {
                ensure!(
                    !self.rig.machine.is_powered() || self.storm || self.hurt,
                    "{full} cannot be read: {error}"
                );
                return self.excuse("view", &error.to_string());
            }
        };
        trace!(self.trace, "browse {full}");
        let page = self.random.between(1, 20) as usize;
        match dump(&*view, page, 48 << 10) {
            Ok(shown) => {
                ensure!(
                    expected.is(&shown),
                    "{full} shows something else than it was: {}",
                    expected.tree.without_unnamed().difference(&shown)
                );
                Ok(())
            }
            Err(error) => {
                drop(view);
                self.after_error("reading the past", &error)
            }
        }
    }

    pub(crate) fn check_volume_snapshots(&mut self) -> Check {
        let engine = self.engine()?;
        let Some(volume) = self.volumes.first() else {
            return Ok(());
        };
        let read = |short: &str, size: u64| -> Result<BlocksModel, FsError> {
            let view = engine
                .datasets()
                .volume_view(&volume.name, &At::Snapshot(short.to_owned()))
                .map_err(|error| FsError::io(error.to_string()))?;
            let mut data = BlocksModel::sized(size);
            let mut buffer = vec![0; 200 << 10];
            let mut at = 0;
            while at < size {
                let take = buffer.len().min((size - at) as usize);
                let read = view.read(ROOT, at, &mut buffer[..take])?;
                if read == 0 {
                    return Err(FsError::io(format!("the volume ends at {at} of {size}")));
                }
                data.write(at, &buffer[..read]);
                at += read as u64;
            }
            Ok(data)
        };
        let certain = volume.snapshots.iter().filter(|(_, snapshot)| snapshot.certain);
        for (short, snapshot) in certain {
            match read(short, snapshot.data.size) {
                Ok(data) => ensure!(
                    data == snapshot.data,
                    "{}@{short} shows something else than when it was taken",
                    volume.name
                ),
                Err(error) => return self.after_error("reading a snapshot of a volume", &error),
            }
        }
        Ok(())
    }

    /// The checkpoints that retention holds of a dataset: number and time in seconds.
    fn listed(&self, filesystem: &FilesystemState) -> Check<Vec<(u64, i64)>> {
        let list = self
            .engine()?
            .datasets()
            .snapshots(Some(&filesystem.name), true)
            .map_err(|error| {
                Violation(format!(
                    "the snapshots of {} cannot be listed: {error}",
                    filesystem.name
                ))
            })?;
        let own = list.into_iter().filter(|one| one.dataset == filesystem.name);
        Ok(own
            .filter(|one| one.snapshot.is_empty())
            .map(|one| (one.checkpoint, one.time.seconds))
            .collect())
    }

    /// After a tick closed these checkpoints, or after pruning: exactly those are held that the rules keep. A tick closes one of
    /// all datasets, or where that failed (what a full pool refused before is made up for, say) one of each.
    pub(crate) fn compare_retained(
        &mut self,
        index: usize,
        closed: Option<&RangeInclusive<u64>>,
        before: i64,
    ) -> Check {
        let listed = self.listed(&self.filesystems[index])?;
        let after = self.now_seconds();
        let lacking = self.engine()?.datasets().without_room_to_retain();
        let filesystem = &mut self.filesystems[index];
        let name = filesystem.name.clone();
        let lacks_room = lacking.iter().any(|(lacking, _)| *lacking == name);
        let mut all: Vec<(u64, i64)> = filesystem
            .retained
            .iter()
            .map(|(number, one)| (*number, one.seconds))
            .collect();
        let known = filesystem.retained.len();
        for (number, seconds) in &listed {
            if filesystem.retained.contains_key(number) {
                continue;
            }
            ensure!(
                closed.is_some_and(|closed| closed.contains(number)) && all.len() == known,
                "{name} holds checkpoint {number}, of those just closed ({closed:?}) not the only one"
            );
            ensure!(
                (before..=after).contains(seconds),
                "checkpoint {number} of {name} is of second {seconds}, not of {before} to {after}"
            );
            all.push((*number, *seconds));
            let retained = Retained {
                state: filesystem.history.newest().clone(),
                seconds: *seconds,
                durable: false,
            };
            filesystem.retained.insert(*number, retained);
        }
        if let Some(rules) = &filesystem.retention {
            let numbers: Vec<u64> = listed.iter().map(|(number, _)| *number).collect();
            let expected = [before, after].map(|now| kept(&all, rules, now));
            ensure!(
                expected.contains(&numbers),
                "retention of {name} holds checkpoints {numbers:?}, the rules keep {expected:?} of {all:?} at {after}"
            );
            ensure!(
                closed.is_none_or(|closed| {
                    let holds_one = numbers.iter().any(|number| closed.contains(number));
                    rules.is_empty() || !filesystem.changed || holds_one || lacks_room
                }),
                "{name} changed, and none of the checkpoints {closed:?} is held"
            );
        }
        // Held also where it is not known by which rules (setting others had failed): nothing has changed since.
        let holds_one =
            |closed: &RangeInclusive<u64>| listed.iter().any(|(number, _)| closed.contains(number));
        let ruled = filesystem
            .retention
            .as_ref()
            .is_some_and(|rules| !rules.is_empty());
        if closed.is_some_and(|closed| ruled || holds_one(closed)) {
            filesystem.changed = false;
        }
        for (number, _) in all {
            if !listed.iter().any(|(other, _)| *other == number)
                && let Some(gone) = filesystem.retained.remove(&number)
            {
                filesystem.let_go.insert(number, gone);
            }
        }
        Ok(())
    }

    /// After an opening: what was durable is held, and nothing is that never was.
    pub(crate) fn recover_retained(&mut self, index: usize) -> Check {
        let listed = self.listed(&self.filesystems[index])?;
        let tick_failed = self.tick_failed;
        let filesystem = &mut self.filesystems[index];
        let name = filesystem.name.clone();
        let mut known = std::mem::take(&mut filesystem.retained);
        let mut let_go = std::mem::take(&mut filesystem.let_go);
        let unfinished = filesystem.unfinished.take();
        for (number, seconds) in listed {
            let found = known.remove(&number).or_else(|| let_go.remove(&number));
            let found = found.or_else(|| {
                unfinished.clone().map(|state| Retained {
                    state,
                    seconds,
                    durable: true,
                })
            });
            let Some(found) = found else {
                crate::violation!("{name} holds checkpoint {number} after opening, and never did before");
            };
            filesystem.retained.insert(
                number,
                Retained {
                    durable: true,
                    ..found
                },
            );
        }
        for (number, gone) in known {
            ensure!(
                !gone.durable || tick_failed,
                "checkpoint {number} of {name} was held and durable, and is gone after opening"
            );
        }
        // What was undone may have to be held again at the next tick.
        filesystem.changed = false;
        let numbers: Vec<u64> = filesystem.retained.keys().copied().collect();
        for number in numbers {
            if self.random.chance(1, 3) {
                self.check_retained(index, number)?;
            }
        }
        Ok(())
    }

    /// A tick failed that had closed these checkpoints: what it would have held may be held, and of datasets that it had come to is
    /// held by now.
    pub(crate) fn tick_was_interrupted(&mut self, closed: &RangeInclusive<u64>) {
        self.tick_failed = true;
        for index in 0..self.filesystems.len() {
            // What cannot be listed now is looked at after the next opening.
            let listed = self.listed(&self.filesystems[index]).unwrap_or_default();
            let filesystem = &mut self.filesystems[index];
            let state = filesystem.history.newest().clone();
            for (number, seconds) in listed {
                if closed.contains(&number) && !filesystem.retained.contains_key(&number) {
                    let retained = Retained {
                        state: state.clone(),
                        seconds,
                        durable: false,
                    };
                    filesystem.retained.insert(number, retained);
                    filesystem.changed = false;
                }
            }
            filesystem.unfinished = Some(state);
        }
    }
}
