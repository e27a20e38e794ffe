//! Runs: the sorted runs of a version of the tree, and reads over all of them.
//!
//! Owns no lock: a version never changes once it was handed out.

mod batch_lookup;
mod get_many;
pub(crate) mod manifest;
mod merge;
mod run;
mod version;
mod wanted;

pub(crate) use manifest::{Manifest, Piece};
pub(crate) use merge::{Folded, MemoryCursor, MergeCursor, Source};
pub(crate) use run::{Access, Run, RunCursor};
pub(crate) use version::{Layer, Merge, Version};
pub(crate) use wanted::{Answers, Wanted};
