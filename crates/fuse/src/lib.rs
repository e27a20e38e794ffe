//! Terrace over FUSE: the protocol, mounting, the threads, and what each request means to a dataset.
//!
//! The protocol layer is our own rather than a crate: it needs features that none offers together (killing set-id
//! bits, O_TMPFILE, statx, opens that cost no message) and a small, constant cost per request.
//!
//! ```text
//! kernel ── device ── session, crew (threads) ── protocol (bytes ↔ requests) ── server (requests → dataset)
//! ```

mod credentials;
mod crew;
mod dataset_past;
mod device;
mod error;
mod files;
mod known_objects;
mod loop_device;
mod mount;
mod mount_table;
mod nodes;
mod notification;
mod options;
mod page_drops;
mod past;
pub mod protocol;
mod receiver;
mod ring;
mod ring_crew;
mod ring_memory;
mod security_labels;
mod server;
mod serving;
mod session;
mod volume_file;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use dataset_past::DatasetPast;
pub use error::FuseError;
pub use files::Files;
pub use loop_device::{LoopDevice, LoopError, tell_read_only};
pub use mount::{MOUNT_KIND, UnmountMode, check_available, clear_stale};
pub use mount_table::{MountEntry, mount_at, mounts};
pub use options::{MemoryCount, MountOptions};
pub use past::{Past, PastView, split_name};
pub use ring::{RingSwitch, ring_switch};
pub use server::Content;
pub use session::{Session, mount};
pub use volume_file::{VOLUME_NAME, VOLUME_OBJECT, VolumeFile};
