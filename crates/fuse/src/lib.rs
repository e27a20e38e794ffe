//! Terrace over FUSE: the protocol, mounting, the threads, and what each request means to a dataset.
//!
//! The protocol layer is our own rather than a crate: it needs features that none offers together (killing set-id
//! bits, O_TMPFILE, statx, opens that cost no message) and a small, constant cost per request.
//!
//! ```text
//! kernel ── transport (device, rings) ── serving (threads) ── protocol (bytes ↔ requests) ── server (requests → content)
//! ```

mod content;
mod errno;
mod mount;
mod options;
pub mod protocol;
mod server;
mod serving;
mod transport;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use content::{
    Content, DatasetPast, Files, Past, PastView, VOLUME_NAME, VOLUME_OBJECT, VolumeFile, split_name,
};
pub use mount::{
    FuseError, LoopDevice, LoopError, MOUNT_KIND, MountEntry, Session, UnmountMode, check_available,
    clear_stale, mount, mount_at, mounts, tell_read_only,
};
pub use options::{MemoryCount, MountOptions};
pub use transport::{RingSwitch, ring_switch};
