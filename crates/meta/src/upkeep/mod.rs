//! Upkeep: flushes, merges, manifests, rewriting, verification and salvage of tables.
//!
//! Owns what steps remember, behind the lock of `Upkeep`, which is held across the I/O of a step and taken before all others; and
//! what the last manifest left behind (`Manifests`).

mod flush;
mod manifests;
mod merge_choice;
mod rewrite;
mod salvage;
mod slice;
mod steps;
mod table_store;
mod verify;

pub use salvage::{LoggedChange, Salvage};
pub use steps::Upkeep;
pub use verify::{VerifyCursor, VerifyReport};

pub(crate) use manifests::read_manifest;
