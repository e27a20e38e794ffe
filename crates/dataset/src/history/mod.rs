//! History: checkpoints, snapshots, and the sweep that frees what nothing holds any more.
//!
//! From the bottom up: `Recounter`, `HeldSets`, `Checkpointer`; `SnapshotStore` and `RetainedCheckpoints`; `Flusher`; beside them
//! `Sweeper`. The one lock is that of the datasets without room to retain anything; it is a leaf.

mod check;
mod checkpointer;
mod flusher;
mod held_sets;
mod recount;
mod retained_checkpoints;
mod snapshot_room;
mod snapshot_store;
mod sweep;

pub use check::{CheckReport, check, check_within, count_references};
pub use flusher::Flusher;
pub use retained_checkpoints::RetainedCheckpoints;
pub use snapshot_store::{DestroyReport, SnapshotInfo, SnapshotStore};
pub use sweep::{Progress, Sweeper};

pub(crate) use checkpointer::Checkpointer;
pub(crate) use held_sets::HeldSets;
pub(crate) use recount::Recounter;
