//! Records: what a dataset keeps in the tree, in bytes, in its present and past versions.

mod counters;
mod dataset_record;
mod entry;
mod held;
mod inode;
pub mod keys;
mod region;
mod versioned_batch;

pub use counters::Counters;
pub use dataset_record::{DatasetRecord, Kind};
pub use entry::{EntryRecord, OrphanRecord};
pub use held::{Held, HeldRecord};
pub use inode::{FileKind, InodeRecord, TARGET_BYTES_MAX, Time};
pub use region::{CHUNK_BLOCKS, REGION_BLOCKS, REGION_BYTES, RegionRecord, Run};
pub use versioned_batch::{
    CounterChange, Old, Versioned, VersionedBatch, decode_region, join_value, read_as_of, read_region,
    scan_as_of, split_value,
};

pub(crate) use dataset_record::PROPERTIES_MAX;
pub(crate) use held::TEXT_BYTES_MAX;
pub(crate) use versioned_batch::{damaged, first_of_any_time, held_region};
