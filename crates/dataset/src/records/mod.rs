//! Records: what a dataset keeps in the tree, in bytes, in its present and past versions, and the door through which they are read
//! ([`Records`]). Of locks only those of the list of sweep jobs and of the checkpoint counter.

mod counters;
mod dataset_record;
mod entry;
mod held;
mod inode;
pub mod keys;
mod preallocated;
mod read;
mod region;
mod sweep_job;
mod versioned_batch;

pub use counters::Counters;
pub use dataset_record::{DatasetRecord, Kind, VOLUME_BYTES_MAX};
pub use entry::{EntryRecord, OrphanRecord};
pub use held::{Checkpoints, Held, HeldRecord};
pub use inode::{FileKind, InodeRecord, TARGET_BYTES_MAX, Time};
pub use preallocated::{Preallocated, PreallocatedChange, PreallocatedTotals, Promised};
pub use read::{decode_region, read_as_of, read_region, scan_as_of};
pub use region::{CHUNK_BLOCKS, REGION_BLOCKS, REGION_BYTES, RegionRecord, Run};
pub use versioned_batch::{CounterChange, Old, Versioned, VersionedBatch, join_value, split_value};

pub(crate) use dataset_record::PROPERTIES_MAX;
pub(crate) use held::TEXT_BYTES_MAX;
pub(crate) use inode::FILE_BYTES_MAX;
pub(crate) use read::{PoolRecords, Records};
pub(crate) use sweep_job::{DATASET_TABLES, Job, OrphanCursor, Recount, SweepJobs};
pub(crate) use versioned_batch::{after, damaged};
