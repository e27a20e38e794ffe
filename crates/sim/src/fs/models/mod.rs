//! Models: what must be true of datasets, settings and guests, as plain values. Nothing here calls the engine.

mod blocks;
mod dataset;
mod guests;
mod models;
mod preallocation;
mod retention;
mod settings;
mod tree;

pub(crate) use blocks::{BLOCK, BlocksModel};
pub(crate) use dataset::{FilesystemState, Promise, SnapshotState, TreeState, VolumeSnapshot, VolumeState};
pub(crate) use guests::GUEST_PREFIX;
pub(crate) use models::Models;
pub(crate) use retention::RETENTIONS;
pub(crate) use tree::{
    Body, Node, ROOT, Refused, Renaming, Stamp, TreeModel, UNKNOWN_OBJECT, without_set_id,
};
