//! What administrators do to datasets: they make them, set properties, and make and destroy snapshots.

mod beginning;
mod properties;
mod snapshots;

pub(crate) use beginning::MakeDatasets;
pub(crate) use properties::{ChangeProperty, ResizeVolume, SetPromise};
pub(crate) use snapshots::{AdministerSnapshots, BrowseSnapshot, DestroySnapshot, MakeSnapshot};
