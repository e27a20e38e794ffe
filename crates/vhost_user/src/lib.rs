//! Volumes as disks of virtual machines: the back-end of vhost-user-blk, over shared memory.
//!
//! A machine monitor (qemu, cloud-hypervisor) connects to a Unix socket and hands over the guest's memory; the guest's
//! requests are then served straight from its queues, with no monitor and no kernel in between. After the virtio
//! specification, 5.2, and <https://qemu-project.gitlab.io/qemu/interop/vhost-user.html>; framing, memory and rings are
//! those of the rust-vmm crates.
//!
//! Invariants:
//! - The guest is not trusted: what it writes into its memory may change while it is read, so each thing is read once and
//!   checked; descriptor chains, lengths and ranges are bounded; a request that is nonsense gets an error, or nothing.
//!   The monitor is trusted as far as it can end the connection, and take its own memory away: the socket is its owner's.
//! - Requests of a queue are served several at a time, and answered in the order in which they came. So after either side was killed and came back, all
//!   that was not answered lies behind the last answer, and is served again: nothing is lost, and nothing is skipped.
//! - A flush that was answered covers every write of every queue that was answered before it.

mod config;
mod device;
mod queue;
mod request;
mod server;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use server::{Server, ServerError};
