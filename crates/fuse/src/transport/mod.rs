//! Transport: requests from the kernel and answers to it, by read and write or by rings; what the kernel is told unasked.

mod kernel_device;
mod notification;
mod page_drops;
pub(crate) mod uring_entry;
mod uring_memory;

pub use uring_entry::{RingSwitch, ring_switch};

pub(crate) use kernel_device::{Connection, DEVICE_PATH, REST, Received, RequestBuffer};
pub(crate) use notification::{invalidate_inode, notify};
pub(crate) use page_drops::PageDrops;
pub(crate) use uring_entry::{RingEntry, Taken};
