//! Devices: the members of the pool, each open one with its counters, its flushes and whether it answers, and I/O of segments.
//!
//! Owns the label in force and the list of open devices, behind the lock of `Members`; it is never held across I/O.

mod counters;
mod device_info;
mod flusher;
mod members;
mod open_device;
mod segment_io;
mod watch;

pub use counters::{CounterValues, DeviceState};
pub use device_info::DeviceInfo;
pub use members::Parallelism;
pub use segment_io::{SegmentRead, SegmentWrite};

pub(crate) use members::{Members, Membership, note_paths};
pub(crate) use open_device::OpenDevice;
