//! Writing: content of objects changes: writes, discards, copies of ranges.

mod admission;
mod copy_range;
mod discard;
mod preallocate;
mod write;
mod write_ahead;
mod write_through;

pub(crate) use admission::{Admission, OfReserve};
pub(crate) use write::{ContentWriter, some_written};
pub(crate) use write_ahead::WriteAhead;
pub(crate) use write_through::WriteThrough;
