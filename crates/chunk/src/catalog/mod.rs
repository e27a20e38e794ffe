//! The catalog: records of chunks, their changes in batches, and where each chunk lies.
//!
//! Owns the commit state; its lock is never held across I/O.

mod batches;
mod reclaimable;
mod records;

pub(crate) use reclaimable::{Inherited, estimate_of};
mod places;

pub(crate) use self::batches::{Operations, add_live};
pub(crate) use batches::{Catalog, Change, CommitState, fold_references};
pub(crate) use places::Begun;
pub(crate) use reclaimable::PAGES_AT_OPENING;
