//! The log: what makes the time between checkpoints durable. Appends entries to segments of the pool, on two devices
//! where there are two, each entry chained to the one before it by its BLAKE3 sum.
//!
//! Invariants: nothing is overwritten but what no reader will accept any more (behind the tail); each entry names the
//! segments in which the log goes on, so that there is no index of segments to be kept; an entry is accepted at
//! replay only in the place and the order in which it was written.

mod abandoned_tail;
mod appending;
mod entry;
mod error;
mod position;
mod scan;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use abandoned_tail::erase_given_up;
pub use appending::{Appended, Behind, Log};
pub use entry::{Copies, EntryHeader, HEADER_BYTES};
pub use error::LogError;
pub use position::LogPosition;
pub use scan::{EndWithout, Scanned, Scanner};
