//! The catalog: records of chunks, their changes in batches, and where each chunk lies.
//!
//! Owns the commit state; its lock is never held across I/O.

mod places;
mod references;

pub(crate) use places::Begun;
pub(crate) use references::{Operations, add_live};
