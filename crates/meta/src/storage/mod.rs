//! Storage: where extents of tables and manifests are kept; the trait, and one in memory.

mod extent_storage;
mod memory_extents;

pub use extent_storage::{Extent, ExtentError, ExtentRead, ExtentStorage};
pub use memory_extents::{ExtentCounters, MemoryExtents};
