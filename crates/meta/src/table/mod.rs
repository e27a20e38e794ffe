//! Tables: sorted, immutable files of entries, block by block, with filters and a cache.

mod block;
mod block_cache;
mod filter;
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
pub(crate) use block_cache::BlockCache;
pub(crate) use filter::{GrowingFilter, filter_hash};
pub(crate) use reader::{
    Head, Released, Table, TableFacts, TableReader, find_in, malformed, read_key, write_key,
};
pub(crate) use unreadable::Unreadable;
pub(crate) use writer::TableWriter;
