//! Tables: sorted, immutable extents of entries, block by block, with filters and a cache.
//!
//! Owns the cache of blocks and the list of what no copy gave (`TableReader`), each behind a lock of its own.

mod block;
mod block_cache;
mod head;
mod preface;
mod reader;
mod unreadable;
mod writer;

pub use preface::{PREFACE_BYTES, Preface};
pub use unreadable::UnreadableExtent;

#[cfg(test)]
pub(crate) use block::BlockBuilder;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use block::find;
pub(crate) use block::{BlockCursor, Malformed};
pub(crate) use head::{Head, read_key, write_key};
pub(crate) use preface::TABLE_BYTES_MAX;
pub(crate) use reader::{Released, Table, TableFacts, TableReader, find_in, malformed};
pub(crate) use writer::TableWriter;
