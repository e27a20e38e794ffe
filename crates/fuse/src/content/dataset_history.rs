//! `DatasetPast`: the earlier states of a dataset, for a mount of it.

use std::sync::Arc;

use terrace_dataset::{At, DatasetError, DatasetState, Datasets, FsError};

use super::history_paths::{Past, PastView};

/// The snapshots and held checkpoints of one dataset. It follows the dataset when that is renamed.
pub struct DatasetPast {
    datasets: Arc<Datasets>,
    state: Arc<DatasetState>,
}

impl DatasetPast {
    /// Of the filesystem called `name`.
    pub fn new(datasets: Arc<Datasets>, name: &str) -> Result<Self, DatasetError> {
        let state = datasets.state(name)?;
        Ok(Self { datasets, state })
    }

    fn view(&self, at: &At) -> Result<PastView, FsError> {
        let view = self
            .datasets
            .view(&self.state.name(), at)
            .map_err(|error| match error {
                DatasetError::Store(cause) => FsError::io(cause),
                // Whatever else: no such state, or no such dataset any more.
                _ => FsError::NotFound,
            })?;
        Ok(PastView {
            checkpoint: view.checkpoint(),
            tree: view,
        })
    }
}

impl Past for DatasetPast {
    fn snapshots(&self) -> Result<Vec<(String, u64)>, FsError> {
        let name = self.state.name();
        let snapshots = self
            .datasets
            .snapshots()
            .list(Some(&name), false)
            .map_err(FsError::io)?;
        Ok(snapshots
            .into_iter()
            .filter(|snapshot| snapshot.dataset == *name)
            .map(|snapshot| (snapshot.snapshot, snapshot.checkpoint))
            .collect())
    }

    fn snapshot(&self, name: &str) -> Result<PastView, FsError> {
        self.view(&At::Snapshot(name.to_owned()))
    }

    fn at(&self, when: &str) -> Result<PastView, FsError> {
        let now = self.datasets.environment().now();
        self.view(&At::parse(when, now).map_err(|_| FsError::NotFound)?)
    }

    fn held(&self, checkpoint: u64, mask: u64) -> Result<PastView, FsError> {
        let found = {
            let held = self.state.held();
            let mut newest_first = held.iter().rev().map(|(held, _)| held);
            newest_first.find(|held| held & mask == checkpoint & mask)
        };
        self.view(&At::Checkpoint(found.ok_or(FsError::NotFound)?))
    }
}
