//! Buffers: open segments in memory, until their bytes are on a device.
//!
//! Owns the buffers of an open segment and the pool that they come from; each has its own lock.

mod open_segment;
mod write_buffer;

pub(crate) use open_segment::{
    Append, BUFFER_BYTES, Chunk, Flight, OpenSegment, OpenSegments, READ_BUFFER_BYTES,
};
