//! Appending: entries are written to the segments of the log, at once or, on a slower copy, behind the others.
//!
//! Owns where the log stands, behind the lock of its state, which is not held across I/O; appends, and writes to lagging replicas,
//! are serialised by a lock each that is.

mod append;
mod lagging_replica;
mod log;

pub use append::Appended;
pub use lagging_replica::Behind;
pub use log::Log;

pub(crate) use log::SPLIT_BYTES;
