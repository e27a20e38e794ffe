//! Recovery: a store is opened from its newest root and the log after it, or read without either.

mod open;
mod salvage;
mod stored_bytes;
mod survey;
mod tail;

pub use salvage::{How, Salvaged};
pub use survey::{ChunkPlace, EntryPlace, Survey, TablePlace};

pub(crate) use open::{metadata_is_away, read_root, tree_options};
pub(crate) use survey::{chunks_in, read_in_pieces};
