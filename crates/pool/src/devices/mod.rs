//! Devices: each member of the pool that is open, its counters, its flushes, and whether it answers.

mod counters;
mod flusher;
mod open_device;
mod watch;

pub use counters::{CounterValues, DeviceState};
pub use open_device::DeviceInfo;

pub(crate) use counters::count;
pub(crate) use open_device::OpenDevice;
