//! Encoding: what a chunk, its record, a log entry and a root are in bytes.
//!
//! Owns nothing and locks nothing: every function depends on its arguments alone.

mod chunk_header;
mod chunk_record;
pub(crate) mod compression;
pub(crate) mod head_block;
mod log_payload;
mod places;
mod root_copy;
mod totals;
pub(crate) mod version;

pub use version::{FORMAT_NEWEST, FORMAT_OLDEST, FORMATS};

pub(crate) use chunk_header::{ChunkHeader, HEADER_BYTES, JOINED};
pub(crate) use chunk_record::{
    COPIES_MAX, ChunkRecord, HINT_BYTES_MAX, Location, TABLE_CANDIDATES, TABLE_CHUNKS, TABLE_LIVE,
    TABLE_REFERENCES, TABLE_SEGMENTS, block_sums, candidate_key, candidate_of_key, chunk_key, chunk_of_key,
    dedup_key, segment_key, segment_of_key,
};
pub(crate) use compression::Scratch;
pub(crate) use head_block::{Ahead, BLOCK, SLOTS, excess_max};
pub(crate) use log_payload::{LoggedBatch, decode_batches, encode_batch};
pub use places::{ChunkPlace, EntryPlace, TablePlace};
pub(crate) use root_copy::{ROOT_COPY_HEADER_BYTES, announced_length, decode_root_copy, encode_root_copy};
pub(crate) use totals::Counters;
pub(crate) use version::Format;
