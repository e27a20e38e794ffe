//! Live: the state of a dataset that is open, and what it is open in.
//!
//! Owns the commit lock and the held set ([`DatasetState`]), the gate and all that a freeze takes ([`DirtyEpoch`]), what is kept decoded
//! ([`ObjectTable`]), and what all datasets of a pool share ([`Environment`]).

mod dataset_state;
mod dirty_epoch;
mod environment;
mod fragmented_regions;
mod front_ends;
mod metadata;
mod object_table;
mod pending_frees;
mod room_source;
mod shared_blocks;
mod write_ahead_queue;

pub use dataset_state::DatasetState;
pub use environment::Environment;
pub use fragmented_regions::{Fragment, FragmentRecord, Fragments, WHOLE_PART};
pub use front_ends::FrontEnds;
pub use write_ahead_queue::AheadTotals;

pub(crate) use dataset_state::ANSWERS_LOOK;
pub(crate) use dirty_epoch::{DirtyEpoch, Riders, Stopped};
pub(crate) use fragmented_regions::part_of;
pub(crate) use metadata::{MEMORY_FACTOR, METADATA_BYTES};
pub(crate) use object_table::{CachedRegion, ObjectTable};
pub(crate) use pending_frees::BLOCK_LOG_BYTES;
pub(crate) use room_source::RoomSource;
pub(crate) use shared_blocks::Shared;
pub(crate) use write_ahead_queue::{StoodStill, Stored, ahead_memory_bytes};
