//! Transport: requests from the kernel and answers to it, by read and write or by rings.

mod dispatch;
mod kernel_device;
mod notification;
mod page_drops;
pub(crate) mod read_loop;
mod threads;
pub(crate) mod uring_entry;
mod uring_memory;
pub(crate) mod uring_threads;

pub use uring_entry::{RingSwitch, ring_switch};

pub(crate) use dispatch::Serving;
pub(crate) use kernel_device::{Connection, DEVICE_PATH, Received, RequestBuffer};
pub(crate) use notification::{invalidate_inode, notify};
pub(crate) use threads::Crew;
