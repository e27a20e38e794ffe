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

pub use heat::{
    Access, ChunkHeat, ChunkRead, Counted, HALF_LIFE_MINUTES, Heat, HotChunk, LONG_BLOCKS, PASSING_READS,
    ReadAt, RegionHeat, Reuse, ReuseSampler, Visit, Visits, WALK, reads_of_piece,
};
pub use load::{Background, Foreground, Service, Waiting};
pub use memory::{Admitted, Budget};
pub use read_cache::{
    Filled, ReadAhead, ReadCache, ReadCacheCounters,
    in_order::{Coming, Fetched},
};
