//! Live: the state of a dataset that is open, and what it is open in.

mod dataset_state;
mod environment;
mod object_table;
mod shared_blocks;

pub use dataset_state::{Accepts, Checkpoints, DatasetState, Live, Paused, Relaid};
pub use environment::Environment;

pub(crate) use dataset_state::Recount;
pub(crate) use object_table::{CachedRegion, LiveDataset, METADATA_BYTES, OfReserve};
pub(crate) use shared_blocks::Shared;
