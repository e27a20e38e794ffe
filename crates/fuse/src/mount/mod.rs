//! Mounting: the mount table, loop devices, the session that lives as long as a mount.

mod error;
mod loop_device;
mod mount;
mod mount_table;
mod session;

pub use error::FuseError;
pub use loop_device::{LoopDevice, LoopError, tell_read_only};
pub use mount::{MOUNT_KIND, UnmountMode, check_available, clear_stale};
pub use mount_table::{MountEntry, mount_at, mounts};
pub use session::{Session, mount};
