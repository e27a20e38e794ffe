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

pub use content::DatasetPast;
pub use content::Files;
pub use content::{Past, PastView, split_name};
pub use content::{VOLUME_NAME, VOLUME_OBJECT, VolumeFile};
pub use mount::FuseError;
pub use mount::{LoopDevice, LoopError, tell_read_only};
pub use mount::{MOUNT_KIND, UnmountMode, check_available, clear_stale};
pub use mount::{MemoryCount, MountOptions};
pub use mount::{MountEntry, mount_at, mounts};
pub use mount::{Session, mount};
pub use server::Content;
pub use transport::{RingSwitch, ring_switch};
