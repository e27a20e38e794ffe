//! The past of datasets: snapshots of filesystems and volumes, holds on them, and the checkpoints that retention keeps.
//!
//! What must hold: a snapshot that was acknowledged is there, and shows what it showed, until it is destroyed; each
//! checkpoint that is held shows what the dataset was when it was closed.

use std::ops::RangeInclusive;

use terrace_dataset::{At, FsError, ROOT, Tree};

use super::{
    dump::dump,
    invariant::{Compared, Invariant, Trouble},
};
use crate::{
    ensure,
    fs::{
        models::{BlocksModel, FilesystemState, Models, TreeState},
        rig::Rig,
    },
    trace,
    violation::{Check, Violation},
};

/// Of snapshots of which it is not known whether they are there: asks.
pub(crate) struct SnapshotsSettled;

impl Invariant for SnapshotsSettled {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let engine = rig.engine()?;
        let datasets = engine.datasets();
        for filesystem in &mut models.filesystems {
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
                if let Ok(info) = datasets.snapshots().info(&format!("{name}@{short}")) {
                    let tagged = !info.holds.is_empty();
                    ensure!(
                        tagged == snapshot.tagged || !known.contains(short),
                        "{name}@{short} is held: {tagged}, although the other was acknowledged"
                    );
                    snapshot.tagged = tagged;
                }
            }
        }
        for volume in &mut models.volumes {
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
}

/// After an opening: no snapshot is there that was destroyed, or never made.
pub(crate) struct SnapshotNames;

impl Invariant for SnapshotNames {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let list = rig.engine()?.datasets().snapshots().list(None, false);
        let list = list.map_err(|error| Violation(format!("snapshots cannot be listed: {error}")))?;
        for found in list {
            let of_filesystem = models.filesystems.iter().find(|one| one.name == found.dataset);
            let of_volume = models.volumes.iter().find(|one| one.name == found.dataset);
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
}

/// A filesystem as it was at some time, against what it was.
pub(crate) struct PastShown {
    index: usize,
    at: At,
    expected: TreeState,
}

impl PastShown {
    /// A snapshot of a filesystem, if it is known.
    pub(crate) fn of_snapshot(models: &Models, index: usize, short: &str) -> Option<Self> {
        let snapshot = models.filesystems[index].snapshots.get(short)?;
        Some(Self {
            index,
            at: At::Snapshot(short.into()),
            expected: TreeState {
                tree: snapshot.tree.clone(),
                exact: snapshot.exact,
            },
        })
    }

    /// A checkpoint that retention holds.
    pub(crate) fn of_checkpoint(models: &Models, index: usize, checkpoint: u64) -> Option<Self> {
        let retained = models.filesystems[index].retained.get(&checkpoint)?;
        Some(Self {
            index,
            at: At::Checkpoint(checkpoint),
            expected: retained.state.clone(),
        })
    }
}

impl Invariant for PastShown {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let engine = rig.engine()?;
        let name = &models.filesystems[self.index].name;
        let full = format!("{name} at {}", self.at);
        let view = match engine.datasets().view(name, &self.at) {
            Ok(view) => view,
            Err(error) => {
                ensure!(
                    !rig.is_powered() || rig.condition.is_failing(),
                    "{full} cannot be read: {error}"
                );
                return Err(Trouble::refused("view", error));
            }
        };
        trace!(rig.trace, "browse {full}");
        let page = rig.random.between(1, 20) as usize;
        let shown = dump(&*view, page, 48 << 10);
        let shown = shown.map_err(|error| Trouble::failed("reading the past", error))?;
        ensure!(
            self.expected.is(&shown),
            "{full} shows something else than it was: {}",
            self.expected.tree.without_unnamed().difference(&shown)
        );
        Ok(())
    }
}

/// The snapshots of the first volume show what it was.
pub(crate) struct VolumeSnapshots;

impl Invariant for VolumeSnapshots {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let engine = rig.engine()?;
        let Some(volume) = models.volumes.first() else {
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
                Err(error) => return Err(Trouble::failed("reading a snapshot of a volume", error)),
            }
        }
        Ok(())
    }
}

/// The checkpoints of a filesystem that the engine holds, with their times in seconds.
fn listed(rig: &Rig, filesystem: &FilesystemState) -> Check<Vec<(u64, i64)>> {
    let name = &filesystem.name;
    let list = rig.engine()?.datasets().snapshots().list(Some(name), true);
    let list =
        list.map_err(|error| Violation(format!("the snapshots of {name} cannot be listed: {error}")))?;
    let own = list.into_iter().filter(|one| one.dataset == *name);
    Ok(own
        .filter(|one| one.snapshot.is_empty())
        .map(|one| (one.checkpoint, one.time.seconds))
        .collect())
}

/// After a tick closed these checkpoints, or after pruning: exactly those of a filesystem are held that the rules keep.
pub(crate) struct RetainedKept {
    pub(crate) index: usize,
    pub(crate) closed: Option<RangeInclusive<u64>>,
    /// Seconds, before the tick or the pruning.
    pub(crate) before: i64,
}

impl Invariant for RetainedKept {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let filesystem = &mut models.filesystems[self.index];
        let listed = listed(rig, filesystem)?;
        let after = rig.now_seconds();
        let lacking = rig.engine()?.datasets().retained().without_room();
        let lacks_room = lacking.iter().any(|(lacking, _)| *lacking == filesystem.name);
        filesystem.compare_retained(&listed, self.closed.as_ref(), (self.before, after), lacks_room)?;
        Ok(())
    }
}

/// After an opening: what was durable is held, and nothing is that never was.
pub(crate) struct RetainedFound(pub(crate) usize);

impl Invariant for RetainedFound {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let filesystem = &mut models.filesystems[self.0];
        let listed = listed(rig, filesystem)?;
        filesystem.recover_retained(listed, models.tick_failed)?;
        Ok(())
    }
}

/// A tick failed that had closed these checkpoints: what it would have held may be held, and of datasets that it had come to is
/// held by now.
pub(crate) struct TickInterrupted(pub(crate) RangeInclusive<u64>);

impl Invariant for TickInterrupted {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        models.tick_failed = true;
        for filesystem in &mut models.filesystems {
            // What cannot be listed now is looked at after the next opening.
            let listed = listed(rig, filesystem).unwrap_or_default();
            filesystem.tick_was_interrupted(&listed, &self.0);
        }
        Ok(())
    }
}
