//! The datasets that a run begins with: filesystems, and in half of the runs a volume, with properties that the seed
//! chooses.
//!
//! Invariant: the model of each begins as what the engine shows of it, which is durable.

use terrace_dataset::NewDataset;

use super::Run;
use crate::{
    fs::{
        check::{RETENTIONS, dump},
        state::{BlocksModel, FilesystemState, Promise, TreeState, VolumeState},
    },
    models::History,
    trace,
    violation::{Check, Violation},
};

impl Run {
    pub(super) fn make_datasets(&mut self) -> Check {
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
}
