//! Terrace over FUSE: the protocol, mounting, the threads, and what each request means to a dataset.
//!
//! The protocol layer is our own rather than a crate: it needs features that none offers together (killing set-id
//! bits, O_TMPFILE, statx, opens that cost no message) and a small, constant cost per request.
//!
//! ```text
//! kernel ── device ── session, crew (threads) ── protocol (bytes ↔ requests) ── server (requests → dataset)
//! ```

mod content;
mod mount;
pub mod protocol;
mod server;
mod transport;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use content::{DatasetPast, Files, Past, PastView, VOLUME_NAME, VOLUME_OBJECT, VolumeFile, split_name};
pub use mount::{
    FuseError, LoopDevice, LoopError, MOUNT_KIND, MemoryCount, MountEntry, MountOptions, Session,
    UnmountMode, check_available, clear_stale, mount, mount_at, mounts, tell_read_only,
};
pub use server::Content;
pub use transport::{RingSwitch, ring_switch};
