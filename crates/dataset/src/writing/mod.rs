//! Writing: content of objects changes; who has to wait for memory or room waits here, above the commits ([`Admission`]).
//!
//! Owns what it takes to know whether waiting is in vain, and the count of large writes.

mod admission;
mod copy_range;
mod discard;
mod preallocate;
mod write;
mod write_ahead;
mod write_through;

pub(crate) use admission::Admission;
pub(crate) use write::{ContentWriter, some_written};
pub(crate) use write_ahead::WriteAhead;
pub(crate) use write_through::WriteThrough;
