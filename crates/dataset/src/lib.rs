//! Datasets: filesystems and volumes, live and as of any held checkpoint.
//!
//! The *live half* (`faces` and what lies below) keeps decoded objects and dirty pages in RAM and turns
//! them into batches. The *history half* (`registry` and what lies above) decides what of the old
//! state is kept, names it, and frees it when nothing holds it any more. Both meet in [`DatasetState`].

mod admin;
mod commit;
mod faces;
mod history;
mod live;
mod namespace;
mod objects;
mod posix;
mod properties;
mod quota;
mod reading;
mod records;
mod registry;
mod relayout;
mod relief;
mod settings;
mod writing;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use admin::{Datasets, NewDataset};
pub use faces::{
    BlockDevice, Filesystem, Live, PastVolume, Paused, ReadOnly, SetId, StandingStill, View, Volume,
    WriteDone,
};
pub use history::{
    CheckReport, DestroyReport, Flusher, Progress, RetainedCheckpoints, SnapshotInfo, SnapshotStore, Sweeper,
    check, check_within, count_references,
};
pub use live::{
    AheadTotals, DatasetState, Environment, Fragment, FragmentRecord, Fragments, FrontEnds, WHOLE_PART,
};
pub use objects::{DirectoryPin, ObjectPins};
pub use posix::{
    ACCESS_EXECUTE, ACCESS_READ, ACCESS_WRITE, AllocateMode, AttributeMode, Attributes, BlockStatus, Context,
    DirectoryEntry, FIRST_COOKIE, Fault, FileFlags, FsError, FsStatistics, Groups, NAME_BYTES_MAX, ROOT,
    RenameMode, SeekTarget, SetAttributes, SetTime, Strip, Tree,
};
pub use properties::{PropertyService, check_for_new_pool, check_readable};
pub use quota::{Room, Usage};
pub use reading::BlockRead;
pub use records::{
    CHUNK_BLOCKS, Checkpoints, CounterChange, Counters, DatasetRecord, EntryRecord, FileKind, Held,
    HeldRecord, InodeRecord, Kind, Old, OrphanRecord, Preallocated, PreallocatedChange, PreallocatedTotals,
    Promised, REGION_BLOCKS, REGION_BYTES, RegionRecord, Run, TARGET_BYTES_MAX, Time, VOLUME_BYTES_MAX,
    Versioned, VersionedBatch, decode_region, join_value, keys, read_as_of, read_region, scan_as_of,
    split_value,
};
pub use registry::{DatasetInfo, Facts};
pub use relayout::{
    Accepts, ChunksOfRegion, Cut, HotPiece, Layout, RegionPlace, Relaid, TierBytes, body_of_object,
    bytes_of_dataset, bytes_of_object, chunks_of_region,
};
pub use settings::{
    At, DatasetError, Durability, Every, PropertyValue, Retention, Rule, Settings, Source, check_dataset,
    check_part, format_time, property_default, property_help, property_names, settings, split_snapshot,
};
