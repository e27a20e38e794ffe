//! State: the model, and what is known of datasets.

mod model;
mod reserving;
mod settings;
mod state;

pub(crate) use model::{
    BLOCK, BlocksModel, Body, Node, ROOT, Refused, Renaming, Stamp, TreeModel, UNKNOWN_OBJECT, without_set_id,
};
pub(crate) use reserving::Reserving;
pub(crate) use settings::Settings;
pub(crate) use state::{
    FilesystemState, Promise, Retained, RetentionRule, SnapshotState, TreeState, VolumeSnapshot, VolumeState,
};
