//! Snapshots of filesystems and volumes: made, held, renamed, browsed and destroyed; and pruning.
//!
//! What must hold: a snapshot that was acknowledged is there until it is destroyed; one that is held is not destroyed.

use terrace_dataset::DatasetError;

use crate::{
    act::Act,
    ensure,
    fs::{
        checks::{PastShown, RetainedKept, SnapshotsSettled, VolumeSnapshots},
        models::{Models, SnapshotState, VolumeSnapshot},
        world::World,
    },
    hardware::Random,
    trace,
    violation::Check,
};

/// Snapshots that a dataset of the run has at most.
const SNAPSHOTS_MAX: usize = 6;

/// A snapshot of a filesystem of which it is known that it is there: its dataset and name.
fn pick_snapshot(random: &mut Random, models: &Models) -> Option<(usize, String)> {
    let index = random.index(models.filesystems.len());
    let snapshots = models.filesystems[index].snapshots.iter();
    let certain = snapshots.filter(|(_, snapshot)| snapshot.certain);
    let names: Vec<String> = certain.map(|(name, _)| name.clone()).collect();
    (!names.is_empty()).then(|| (index, random.pick(&names).clone()))
}

/// What a store that has stopped still shows from memory need not be there after the next opening: until then nothing is
/// known of it. Else it is asked which snapshots there are.
struct SettleUnlessStopped<'a>(&'a str);

impl Act<World> for SettleUnlessStopped<'_> {
    fn perform(&mut self, world: &mut World) -> Check {
        if self.0.contains("stopped accepting writes") {
            return Ok(());
        }
        world.check(&SnapshotsSettled)
    }
}

/// Of one dataset, or of all.
#[derive(Default)]
pub(crate) struct MakeSnapshot {
    made: u64,
}

impl Act<World> for MakeSnapshot {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        self.made += 1;
        let short = format!("s{}", self.made);
        let recursive = world.rig.random.chance(1, 5);
        let (mut filesystems, mut volumes) = (Vec::new(), Vec::new());
        let full = if recursive {
            filesystems.extend(0..world.models.filesystems.len());
            volumes.extend(0..world.models.volumes.len());
            format!("pool@{short}")
        } else if !world.models.volumes.is_empty() && world.rig.random.chance(1, 5) {
            volumes.push(0);
            format!("{}@{short}", world.models.volumes[0].name)
        } else {
            let index = world.rig.random.index(world.models.filesystems.len());
            filesystems.push(index);
            format!("{}@{short}", world.models.filesystems[index].name)
        };
        let many = filesystems
            .iter()
            .any(|index| world.models.filesystems[*index].snapshots.len() >= SNAPSHOTS_MAX)
            || volumes
                .iter()
                .any(|index| world.models.volumes[*index].snapshots.len() >= SNAPSHOTS_MAX);
        if many {
            return Ok(());
        }
        let made = engine.datasets().snapshots().take(&full, recursive, "");
        let certain = made.is_ok();
        for index in &filesystems {
            let filesystem = &mut world.models.filesystems[*index];
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
            let volume = &mut world.models.volumes[*index];
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
                trace!(world.rig.trace, "snapshot {full} at checkpoint {checkpoint}");
                world.models.flushed();
                Ok(())
            }
            Err(error) => {
                let words = error.to_string();
                world.excuse("snapshot", &words)?;
                SettleUnlessStopped(&words).perform(world)
            }
        }
    }
}

/// A snapshot of a filesystem or of the volume goes.
pub(crate) struct DestroySnapshot;

impl Act<World> for DestroySnapshot {
    fn perform(&mut self, world: &mut World) -> Check {
        if world.rig.random.chance(1, 4)
            && let Some(volume) = world.models.volumes.first_mut()
            && let Some(short) = volume.snapshots.keys().next().cloned()
        {
            let full = format!("{}@{short}", volume.name);
            return match world
                .rig
                .engine()?
                .datasets()
                .snapshots()
                .destroy(&full, false, false)
            {
                Ok(_) => {
                    trace!(world.rig.trace, "destroyed {full}");
                    world.models.volumes[0].snapshots.remove(&short);
                    world.models.flushed();
                    Ok(())
                }
                Err(error) => {
                    if let Some(snapshot) = world.models.volumes[0].snapshots.get_mut(&short) {
                        snapshot.certain = false;
                    }
                    DestroyingFailed(error).perform(world)
                }
            };
        }
        let engine = world.rig.engine()?;
        let Some((index, short)) = pick_snapshot(&mut world.rig.random, &world.models) else {
            return Ok(());
        };
        let filesystem = &mut world.models.filesystems[index];
        let full = format!("{}@{short}", filesystem.name);
        let tagged = filesystem
            .snapshots
            .get(&short)
            .is_some_and(|snapshot| snapshot.tagged);
        match engine.datasets().snapshots().destroy(&full, false, false) {
            Ok(_) => {
                trace!(world.rig.trace, "destroyed {full}");
                ensure!(!tagged, "{full} was destroyed although it is held");
                filesystem.snapshots.remove(&short);
                world.models.flushed();
                if world.rig.random.chance(1, 4) {
                    return world.recover(true);
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
                DestroyingFailed(error).perform(world)
            }
        }
    }
}

/// It was not destroyed.
struct DestroyingFailed(DatasetError);

impl Act<World> for DestroyingFailed {
    fn perform(&mut self, world: &mut World) -> Check {
        let words = self.0.to_string();
        ensure!(
            !words.contains("is full") || !world.rig.is_powered() || world.rig.condition.is_failing(),
            "destroying a snapshot was refused on a full pool"
        );
        world.excuse("destroy a snapshot", &words)?;
        SettleUnlessStopped(&words).perform(world)
    }
}

/// Holds a snapshot, lets go of it, gives it another name, or prunes what retention does not keep.
pub(crate) struct AdministerSnapshots;

impl Act<World> for AdministerSnapshots {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        if world.rig.random.chance(1, 4) {
            let index = world.rig.random.index(world.models.filesystems.len());
            let name = world.models.filesystems[index].name.clone();
            let before = world.rig.now_seconds();
            return match engine.datasets().retained().prune(&name, false) {
                Ok(report) => {
                    trace!(world.rig.trace, "prune {name}: {} gone", report.snapshots.len());
                    world.check(&RetainedKept {
                        index,
                        closed: None,
                        before,
                    })
                }
                Err(error) => {
                    world.models.tick_failed = true;
                    world.excuse("prune", &error.to_string())
                }
            };
        }
        let Some((index, short)) = pick_snapshot(&mut world.rig.random, &world.models) else {
            return Ok(());
        };
        let full = format!("{}@{short}", world.models.filesystems[index].name);
        let Some(snapshot) = world.models.filesystems[index].snapshots.get(&short).cloned() else {
            return Ok(());
        };
        if world.rig.random.chance(1, 3) {
            let other = format!("r{short}");
            if world.models.filesystems[index].snapshots.contains_key(&other) || other.len() > 40 {
                return Ok(());
            }
            let renamed = engine.datasets().snapshots().rename(
                &full,
                &format!("{}@{other}", world.models.filesystems[index].name),
            );
            trace!(world.rig.trace, "rename {full} to {other}: {}", renamed.is_ok());
            let snapshots = &mut world.models.filesystems[index].snapshots;
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
                    world.excuse("rename a snapshot", &words)?;
                    SettleUnlessStopped(&words).perform(world)
                }
            };
        }
        let done = if snapshot.tagged {
            engine.datasets().snapshots().release("tag", &full)
        } else {
            engine.datasets().snapshots().hold("tag", &full)
        };
        trace!(world.rig.trace, "hold or release {full}: {}", done.is_ok());
        match done {
            Ok(()) => {
                if let Some(snapshot) = world.models.filesystems[index].snapshots.get_mut(&short) {
                    snapshot.tagged = !snapshot.tagged;
                }
                Ok(())
            }
            Err(error) => {
                if let Some(snapshot) = world.models.filesystems[index].snapshots.get_mut(&short) {
                    snapshot.certain = false;
                }
                let words = error.to_string();
                world.excuse("hold a snapshot", &words)?;
                SettleUnlessStopped(&words).perform(world)
            }
        }
    }
}

/// Something of the past is looked at.
pub(crate) struct BrowseSnapshot;

impl Act<World> for BrowseSnapshot {
    fn perform(&mut self, world: &mut World) -> Check {
        if !world.models.volumes.is_empty() && world.rig.random.chance(1, 5) {
            return world.check(&VolumeSnapshots);
        }
        if world.rig.random.chance(1, 3) {
            let index = world.rig.random.index(world.models.filesystems.len());
            let retained = world.models.filesystems[index].retained.keys();
            let checkpoints: Vec<u64> = retained.copied().collect();
            if !checkpoints.is_empty() {
                let checkpoint = *world.rig.random.pick(&checkpoints);
                let past = PastShown::of_checkpoint(&world.models, index, checkpoint);
                return past.map_or(Ok(()), |past| world.check(&past));
            }
        }
        let picked = pick_snapshot(&mut world.rig.random, &world.models);
        let past = picked.and_then(|(index, short)| PastShown::of_snapshot(&world.models, index, &short));
        past.map_or(Ok(()), |past| world.check(&past))
    }
}
