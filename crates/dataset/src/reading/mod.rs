//! Reading: content of objects and volumes, from memory or from chunks.

mod extents;
mod layers;
mod lookup;
mod read;
mod read_ahead;
mod uncached;
