//! History: checkpoints, snapshots, and the sweep that frees what nothing holds any more. Owns no lock.

mod check;
mod checkpoint;
mod recount;
mod snapshot;
mod sweep;

pub use check::{CheckReport, check, check_within, count_references};
pub use snapshot::SnapshotInfo;
pub use sweep::Progress;
