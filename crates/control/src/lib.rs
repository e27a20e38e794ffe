//! The control socket: how the command line talks to the daemon that holds a pool.
//!
//! A connection carries one request and its answer, as lines of JSON over a Unix socket: the request; then any
//! number of progress notes and items; then one result or one error. File content travels in the same stream in
//! frames with their length in front, announced by a line, so that `put` and `get` need no second channel.
//!
//! Invariants: no line is longer than [`LINE_BYTES_MAX`] and no frame longer than [`FRAME_BYTES_MAX`], whatever the
//! peer says; input that breaks the protocol ends the connection with an error and never the daemon; only the
//! socket's owner and root are served; the version is checked before anything else.

mod connection;
mod failure;
mod message;
mod process;
mod server;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use connection::{Answer, Connection, ControlError, Watch};
pub use failure::Failure;
pub use message::{Message, Progress, Request};
pub use process::{ProcessId, RunLock};
pub use server::{CONNECTIONS_MAX, Exchange, Handler, Server};

/// Version of the protocol; both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 1;
/// The operation that every server answers at once, in any version of the protocol: a sign of life, and
/// what the server may be waiting for ([`Handler::alive`]).
pub const HELLO: &str = "hello";
/// Longest line, bytes.
pub const LINE_BYTES_MAX: usize = 4 << 20;
/// Longest frame of file content, bytes.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
