//! What the pool keeps in RAM besides the objects themselves: the one budget, decoded chunks, and heat.
//!
//! * [`Budget`]: one limit for everything, its shares, and the smooth slowing of writers.
//! * [`ReadCache`]: content of chunks by [`ChunkId`](terrace_store::ChunkId), scan resistant, with what was read ahead.
//! * [`ReadAhead`]: the threads that do that.
//! * [`Heat`]: how often each 1 MiB region is read and written, decaying.
//! * [`ChunkHeat`]: how often single chunks, and blocks of long ones, are read.
//! * [`Visits`]: who reads which files, so that a walk over many adds no heat.

mod ahead;
mod budget;
mod chunk_heat;
mod chunk_reads;
mod foreground;
mod heat;
mod heat_pages;
mod heat_tables;
mod lending;
mod passing;
mod read_ahead;
mod read_cache;
mod rescue;
mod reuse;
mod sketch;
mod touches;
mod visits;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;

pub use budget::{Admitted, Budget};
pub use chunk_heat::{ChunkHeat, reads_of_piece};
pub use chunk_reads::{ChunkRead, HotChunk, LONG_BLOCKS, ReadAt};
pub use foreground::{Background, Foreground, Service, Waiting};
pub use heat::{Access, HALF_LIFE_MINUTES, Heat, RegionHeat};
pub use read_ahead::ReadAhead;
pub use read_cache::{
    Filled, ReadCache, ReadCacheCounters,
    in_order::{Coming, Fetched},
};
pub use reuse::{Reuse, ReuseSampler};
pub use visits::{Counted, PASSING_READS, Visit, Visits, WALK};
