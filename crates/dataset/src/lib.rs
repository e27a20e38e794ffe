//! Datasets: filesystems and volumes, live and as of any held checkpoint.
//!
//! The *live half* (`filesystem`, `volume` and what they use) keeps decoded objects and dirty pages in RAM and turns
//! them into batches. The *history half* (`versions`, `held`, `sweep`, `view`, `datasets`) decides what of the old
//! state is kept, names it, and frees it when nothing holds it any more. Both meet in [`DatasetState`].

pub mod keys;

mod acl;
mod attributes;
mod attributes_set;
mod block_device;
mod block_status;
mod build;
mod check;
mod checkpoint;
mod clock_map;
mod commit;
mod context;
mod counters;
mod data_copy;
mod data_read;
mod data_write;
mod dataset_error;
mod dataset_record;
mod datasets;
mod directory;
mod discard;
mod entry;
mod environment;
mod error;
mod file_flags;
mod filesystem;
mod fragments;
mod freeze;
mod held;
mod hot_pieces;
mod inode;
mod landing;
mod layout;
mod lifecycle;
mod live;
mod memory;
mod name;
mod namespace;
mod namespace_remove;
mod namespace_rename;
mod object;
mod object_pins;
mod pages;
mod permission;
mod pieces;
mod placement;
mod preallocated;
mod preallocation;
mod properties;
mod properties_set;
mod read_stream;
mod recount;
mod region;
mod registry;
mod relayout;
mod relief;
mod retained;
mod retention;
mod room;
mod room_pool;
mod settings;
mod shared_blocks;
mod snapshot;
mod state;
mod sweep;
mod times;
mod tree;
mod versions;
mod view;
mod visited;
mod volume;
mod write_ahead;
mod write_stream;
mod write_through;
mod xattrs;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use attributes::{Attributes, FsStatistics, SetAttributes, SetTime};
pub use block_device::{BlockDevice, BlockRead, PastVolume, ReadOnly};
pub use block_status::BlockStatus;
pub use check::{CheckReport, check, check_within, count_references};
pub use context::{Context, Groups, Strip};
pub use counters::Counters;
pub use dataset_error::DatasetError;
pub use dataset_record::{DatasetRecord, Kind};
pub use datasets::{DatasetInfo, Datasets, Facts};
pub use entry::{EntryRecord, OrphanRecord};
pub use environment::Environment;
pub use error::{Fault, FsError};
pub use file_flags::FileFlags;
pub use filesystem::{AllocateMode, AttributeMode, Filesystem, RenameMode, SetId, WriteDone};
pub use fragments::{Fragment, FragmentRecord, Fragments, WHOLE_PART};
pub use held::{Held, HeldRecord};
pub use hot_pieces::HotPiece;
pub use inode::{FileKind, InodeRecord, TARGET_BYTES_MAX, Time};
pub use layout::{Cut, Layout};
pub use lifecycle::{DestroyReport, NewDataset, VOLUME_BYTES_MAX};
pub use name::{check_dataset, check_part, split_snapshot};
pub use object_pins::{DirectoryPin, ObjectPins};
pub use placement::{
    ChunksOfRegion, RegionPlace, TierBytes, body_of_object, bytes_of_dataset, bytes_of_object,
    chunks_of_region,
};
pub use preallocated::{Preallocated, PreallocatedChange, PreallocatedTotals};
pub use preallocation::Promised;
pub use properties::{PropertyValue, Source, property_default, property_help, property_names, settings};
pub use properties_set::{check_for_new_pool, check_readable};
pub use region::{CHUNK_BLOCKS, REGION_BLOCKS, REGION_BYTES, RegionRecord, Run};
pub use retention::{Every, Retention, Rule};
pub use room::{Room, Usage};
pub use settings::{Durability, Settings};
pub use snapshot::SnapshotInfo;
pub use state::{Accepts, Checkpoints, DatasetState, Live, Paused, Relaid};
pub use sweep::Progress;
pub use times::{At, format_time};
pub use tree::{
    ACCESS_EXECUTE, ACCESS_READ, ACCESS_WRITE, DirectoryEntry, FIRST_COOKIE, NAME_BYTES_MAX, ROOT,
    SeekTarget, Tree,
};
pub use versions::{
    CounterChange, Old, Versioned, VersionedBatch, decode_region, join_value, read_as_of, read_region,
    scan_as_of, split_value,
};
pub use view::View;
pub use volume::Volume;
pub use write_ahead::AheadTotals;
