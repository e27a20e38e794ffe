//! What is mounted: the tests' own filesystem, a dataset with its past, and a volume.

use std::sync::Arc;

use crate::support::{Mounted, with_mount};
use terrace_dataset::Datasets;
use terrace_fuse::Past;

/// Takes the snapshot `NAME` when `@@take NAME` is looked up, so that tests need no other way to ask for one.
pub(super) struct SnapshotsOnDemand {
    pub(super) past: Arc<dyn Past>,
    pub(super) datasets: Arc<Datasets>,
}

impl Past for SnapshotsOnDemand {
    fn snapshots(&self) -> Result<Vec<(String, u64)>, terrace_dataset::FsError> {
        self.past.snapshots()
    }

    fn snapshot(&self, name: &str) -> Result<terrace_fuse::PastView, terrace_dataset::FsError> {
        self.past.snapshot(name)
    }

    fn at(&self, when: &str) -> Result<terrace_fuse::PastView, terrace_dataset::FsError> {
        if let Some(name) = when.strip_prefix("take ") {
            self.datasets
                .snapshots()
                .take(&format!("pool/files@{name}"), false, "")
                .map_err(terrace_dataset::FsError::io)?;
            return self.snapshot(name);
        }
        self.past.at(when)
    }

    fn held(&self, checkpoint: u64, mask: u64) -> Result<terrace_fuse::PastView, terrace_dataset::FsError> {
        self.past.held(checkpoint, mask)
    }
}

/// The same test on both.
pub(super) fn with_both(body: fn(&mut Mounted)) {
    with_mount("memory", body);
    with_mount("dataset", body);
}

pub(super) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at * 31 + at / 4096 * 7 + seed) % 253) as u8)
        .collect()
}
