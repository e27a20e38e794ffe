//! What the pool keeps in RAM besides the objects themselves: the one budget, decoded chunks, and heat.
//!
//! * [`Budget`]: one limit for everything, its shares, and the smooth slowing of writers.
//! * [`ReadCache`]: content of chunks by [`ChunkId`](terrace_store::ChunkId), scan resistant, with what was read ahead.
//! * [`ReadAhead`]: the threads that do that.
//! * [`Heat`]: how often each 1 MiB region is read and written, decaying.
//! * [`ChunkHeat`]: how often single chunks, and blocks of long ones, are read.
//! * [`Visits`]: who reads which files, so that a walk over many adds no heat.

mod heat;
mod load;
mod memory;
mod read_cache;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;

pub use heat::{Access, HALF_LIFE_MINUTES, Heat, RegionHeat};
pub use heat::{ChunkHeat, reads_of_piece};
pub use heat::{ChunkRead, HotChunk, LONG_BLOCKS, ReadAt};
pub use heat::{Counted, PASSING_READS, Visit, Visits, WALK};
pub use heat::{Reuse, ReuseSampler};
pub use load::{Background, Foreground, Service, Waiting};
pub use memory::{Admitted, Budget};
pub use read_cache::ReadAhead;
pub use read_cache::{
    Filled, ReadCache, ReadCacheCounters,
    in_order::{Coming, Fetched},
};
