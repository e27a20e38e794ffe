//! Reading: chunks out of segments, verified before a byte is returned.
//!
//! Owns no state but the list of what could not be read.

mod read_into;
mod reader;
mod spans;

pub(crate) use reader::{decode, verified};
pub(crate) use spans::{Stored, extent_of, neighbours, units_of};
