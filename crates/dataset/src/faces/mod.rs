//! Faces: a dataset as a filesystem, a volume, a block device, or a state of the past.

mod block_device;
mod filesystem;
mod snapshot_view;
mod volume;

pub use block_device::{BlockDevice, BlockRead, PastVolume, ReadOnly};
pub use filesystem::{AllocateMode, AttributeMode, Filesystem, RenameMode, SetId, WriteDone};
pub use snapshot_view::View;
pub use volume::Volume;
