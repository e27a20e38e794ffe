//! Reading: chunks out of segments, verified before a byte is returned.
//!
//! Owns no state but the list of what could not be read.

mod stored_bytes;

pub(crate) use stored_bytes::read_stored;
mod read_into;
mod reader;
mod segment_scan;
mod spans;
mod verification;

pub(crate) use reader::ChunkReader;
pub(crate) use segment_scan::{Thing, Walk, chunks_in, read_in_pieces};
pub(crate) use spans::{Stored, extent_of, neighbours, units_of};
pub(crate) use stored_bytes::read_found;
pub(crate) use verification::verified;
