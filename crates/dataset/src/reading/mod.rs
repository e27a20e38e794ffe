//! Reading: content of objects and volumes, from memory or from chunks. Owns no lock.

mod block_read;
mod extents;
mod layers;
mod lookup;
mod read;
mod read_ahead;
mod uncached;
mod visits;

pub use block_read::BlockRead;

pub(crate) use extents::Extents;
pub(crate) use read::ContentReader;
