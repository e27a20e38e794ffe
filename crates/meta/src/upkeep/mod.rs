//! Upkeep: flushes, compaction, rewriting, verification and salvage of tables.

mod compaction;
mod rewrite;
mod salvage;
mod verify;

pub use salvage::{LoggedChange, Salvage};
pub use verify::{VerifyCursor, VerifyReport};

pub(crate) use compaction::Worker;
