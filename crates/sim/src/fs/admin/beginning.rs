//! The datasets that a run begins with: filesystems, and in half of the runs a volume, with properties that the seed
//! chooses.
//!
//! Invariant: the model of each begins as what the engine shows of it, which is durable.

use terrace_dataset::{DatasetError, NewDataset};

use crate::{
    act::Act,
    fs::{
        checks::dump,
        models::{BlocksModel, FilesystemState, Promise, RETENTIONS, TreeState, VolumeState},
        world::World,
    },
    models::History,
    trace,
    violation::{Check, Violation},
};

/// Makes them.
pub(crate) struct MakeDatasets;

impl Act<World> for MakeDatasets {
    fn perform(&mut self, world: &mut World) -> Check {
        for number in 0..world.rig.random.between(1, 2) {
            Self::make_filesystem(world, number)?;
        }
        match world.rig.random.chance(1, 2) {
            true => Self::make_volume(world),
            false => Ok(()),
        }
    }
}

fn failed(error: DatasetError) -> Violation {
    Violation(format!("cannot make a dataset: {error}"))
}

impl MakeDatasets {
    fn make_filesystem(world: &mut World, number: u64) -> Check {
        let engine = world.rig.engine()?;
        let random = &mut world.rig.random;
        let name = format!("pool/fs{number}");
        let (promise, durability) = *random.pick(&[
            (Promise::Barrier, "barrier"),
            (Promise::Barrier, "barrier"),
            (Promise::Barrier, "barrier"),
            (Promise::Sync, "sync"),
            (Promise::Timed, "timed"),
            (Promise::Ram, "ram"),
        ]);
        let mut properties = vec![("durability".to_string(), durability.to_string())];
        let compression = *random.pick(&["lz4", "lz4", "off", "zstd-1"]);
        properties.push(("compression".into(), compression.into()));
        if random.chance(1, 4) {
            properties.push(("dedup".into(), "off".into()));
        }
        let quota_bytes = random.chance(1, 5).then_some(6 << 20);
        if quota_bytes.is_some() {
            properties.push(("quota".into(), "6M".into()));
        }
        let (retention, rules) = *random.pick(&RETENTIONS);
        properties.push(("retention".into(), retention.into()));
        trace!(world.rig.trace, "create {name} {properties:?}");
        let new = NewDataset {
            properties,
            ..NewDataset::default()
        };
        engine.datasets().create(&name, &new).map_err(failed)?;
        let handle = engine.datasets().filesystem(&name).map_err(failed)?;
        let tree =
            dump(&*handle, 10, 65536).map_err(|error| Violation(format!("a new filesystem: {error}")))?;
        world
            .rig
            .handles
            .open_filesystem(world.models.filesystems.len(), handle);
        world.models.filesystems.push(FilesystemState {
            name,
            promise,
            quota_bytes,
            quota_certain: true,
            quota_slack_bytes: 0,
            retention: Some(rules.to_vec()),
            retained: Default::default(),
            released: Default::default(),
            unfinished: None,
            changed: false,
            history: History::new(TreeState { tree, exact: true }),
            snapshots: Default::default(),
        });
        Ok(())
    }

    fn make_volume(world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        let random = &mut world.rig.random;
        let name = "pool/volume".to_string();
        let size = random.between(1, 1 << 10) * 4096;
        let promise = *random.pick(&Promise::ALL);
        trace!(world.rig.trace, "create {name} of {size}, {promise:?}");
        let new = NewDataset {
            properties: vec![("durability".into(), promise.word().into())],
            volume_bytes: Some(size),
            sparse: true,
            ..NewDataset::default()
        };
        engine.datasets().create(&name, &new).map_err(failed)?;
        let handle = engine.datasets().volume(&name).map_err(failed)?;
        let state = BlocksModel::sized(size);
        world.rig.handles.open_volume(world.models.volumes.len(), handle);
        world.models.volumes.push(VolumeState {
            name,
            promise,
            history: History::new(state),
            snapshots: Default::default(),
        });
        Ok(())
    }
}
