//! Volumes as block devices of this machine through ublk (Linux 6.1): requests come to us straight from the kernel's
//! block layer, by io_uring, with no filesystem and no loop device in between.
//!
//! After `Documentation/block/ublk.rst` and `include/uapi/linux/ublk_cmd.h`. The kernel keeps the device `/dev/ublkbN`
//! when its server dies; the next server may take it over, and requests that were not answered are served again. So
//! whoever has it mounted notices nothing but a pause, if nothing that was acknowledged can have been lost.
//!
//! Invariants:
//! - What the kernel was told is written is either flushed, or noted as not flushed where the death of this process
//!   does not reach it (`unflushed`). A device is taken over only if nothing was noted; else it ends, its users get
//!   errors, as from a disk that lost its cache, and a new one is made.
//! - A flush that was answered covers every write of every queue that was answered before it.
//! - Each request's memory belongs to the kernel, to the queue's thread or to one worker, never to two of them.
//! - Only devices that carry our own token are ever stopped or deleted.

mod error;
mod kernel;
mod server;
mod serving;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use error::UblkError;
pub use kernel::{Availability, availability};
pub use server::{Server, clear_remains, is_ublk};
