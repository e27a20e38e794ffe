//! Writing: content of objects changes: writes, discards, copies of ranges.

mod copy_range;
mod discard;
mod write;
mod write_ahead;
mod write_through;

pub use write_ahead::AheadTotals;

pub(crate) use discard::LetGo;
pub(crate) use write::{FILE_BYTES_MAX, some_written};
pub(crate) use write_ahead::{Ahead, StoodStill, ahead_memory_bytes};
pub(crate) use write_through::Large;
