//! Datasets: filesystems and volumes, live and as of any held checkpoint.
//!
//! The *live half* (`filesystem`, `volume` and what they use) keeps decoded objects and dirty pages in RAM and turns
//! them into batches. The *history half* (`versions`, `held`, `sweep`, `view`, `datasets`) decides what of the old
//! state is kept, names it, and frees it when nothing holds it any more. Both meet in [`DatasetState`].

pub mod keys;

mod attributes;
mod context;
mod counters;
mod dataset_record;
mod entry;
mod environment;
mod error;
mod filesystem;
mod held;
mod inode;
mod region;
mod retention;
mod room;
mod settings;
mod state;
mod tree;
pub mod units;
mod versions;
mod volume;

pub use attributes::{Attributes, FsStatistics, SetAttributes, SetTime};
pub use context::{Context, Groups};
pub use counters::Counters;
pub use dataset_record::{DatasetRecord, Kind};
pub use entry::{EntryRecord, OrphanRecord};
pub use environment::Environment;
pub use error::FsError;
pub use filesystem::{AllocateMode, AttributeMode, Filesystem, RenameMode};
pub use held::{Held, HeldRecord};
pub use inode::{FileKind, InodeRecord, TARGET_BYTES_MAX, Time};
pub use region::{CHUNK_BLOCKS, REGION_BLOCKS, REGION_BYTES, RegionRecord, Run};
pub use retention::{Every, Retention, Rule};
pub use room::{Room, Usage};
pub use settings::{Durability, Settings};
pub use state::{Checkpoints, DatasetState, Live, Paused};
pub use tree::{
    ACCESS_EXECUTE, ACCESS_READ, ACCESS_WRITE, DirectoryEntry, FIRST_COOKIE, NAME_BYTES_MAX, ROOT,
    SeekTarget, Tree,
};
pub use versions::{
    CounterChange, Old, Versioned, VersionedBatch, decode_region, join_value, read_as_of, read_region,
    split_value,
};
pub use volume::{BlockStatus, Volume};
