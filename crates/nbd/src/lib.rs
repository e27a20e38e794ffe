//! The network block device server: volumes over Unix and TCP sockets.
//!
//! What it speaks: fixed newstyle negotiation, export lists, INFO and GO, structured and extended replies, block
//! status (`base:allocation`), FLUSH, FUA, TRIM, WRITE_ZEROES (NO_HOLE, FAST_ZERO), CACHE, read-only exports, many
//! connections to one export with flushes that cover all of them, TLS with client certificates. After the NBD protocol text
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>); nbdkit's and qemu's behaviour where the
//! text leaves a choice.
//!
//! Invariants: every length from the client is compared with a limit before memory is taken for it; a malformed
//! request ends that connection and nothing else; a reply is written whole under the connection's write lock; a
//! FLUSH that is answered covers every write of every connection that was answered before it.

mod buffers;
mod connection;
mod connection_slots;
mod memory_pressure;
mod server;
mod wire;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use connection::{Tls, TlsError, TlsFiles};
pub use server::{Address, Server, ServerError};
