//! Writing: content of objects changes: writes, discards, copies of ranges.

mod copy_range;
mod discard;
mod write;
mod write_ahead;
mod write_through;

pub(crate) use write::some_written;
pub(crate) use write_through::Large;
