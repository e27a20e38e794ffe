//! Faces: a dataset as a filesystem, a volume, a block device, or a state of the past. `LiveDataset` wires the parts of a live one.

mod block_device;
mod filesystem;
mod live_dataset;
mod live_trait;
mod snapshot_view;
mod volume;

pub use block_device::{BlockDevice, PastVolume, ReadOnly};
pub use filesystem::{Filesystem, SetId, WriteDone};
pub use live_trait::{Live, Paused, StandingStill};
pub use snapshot_view::View;
pub use volume::Volume;
