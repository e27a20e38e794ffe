//! Append: which open segment a chunk goes to, and how buffers reach the devices.
//!
//! Owns the streams; each slot has its own lock.

mod missing_copies;
mod stream;
mod writer;

pub(crate) use missing_copies::{Shortage, lacks_copies};
pub(crate) use writer::{SegmentWriter, TryAppend};
