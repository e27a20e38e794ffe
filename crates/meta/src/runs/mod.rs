//! Runs: the sorted runs of a version of the tree, and reads over all of them.

mod batch_lookup;
mod get_many;
pub(crate) mod manifest;
mod merge;
mod run;
mod version;

pub(crate) use manifest::{Manifest, Piece, TABLE_BYTES_MAX};
pub(crate) use merge::{Folded, MemoryCursor, MergeCursor, Source};
pub(crate) use run::{Access, Run, RunCursor};
pub(crate) use version::{Layer, Merge, Version};
