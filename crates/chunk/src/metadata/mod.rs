//! Metadata: where the tables and manifests of the tree lie on the devices, and on how many.
//!
//! Owns the extents of metadata and their lock.

mod root;

pub(crate) use root::{encode_root, position_of, replay_start};
mod root_reader;

pub(crate) use root_reader::{read_root, tree_options};
mod batch_read;
mod listing;
mod mirroring;
mod storage;
mod unflushed;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use root::decode_root;
pub(crate) use root_reader::metadata_is_away;
pub(crate) use storage::MetaStorage;
