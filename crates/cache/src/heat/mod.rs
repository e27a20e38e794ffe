//! Heat: how often regions and chunks are used, and in which manner.

mod chunk_heat;
mod chunk_reads;
mod chunk_tables;
mod count_min;
mod region_counters;
mod region_heat;
mod reuse_distance;
mod scan_detector;

pub use chunk_heat::{ChunkHeat, reads_of_piece};
pub use chunk_reads::{ChunkRead, HotChunk, LONG_BLOCKS, ReadAt};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use region_heat::CELL_BYTES;
pub use region_heat::{Access, HALF_LIFE_MINUTES, Heat, RegionHeat};
pub use reuse_distance::{Reuse, ReuseSampler};
pub use scan_detector::{Counted, PASSING_READS, Visit, Visits, WALK};
