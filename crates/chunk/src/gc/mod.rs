//! Garbage collection: segments that were emptied, or are worth emptying, become free ones.
//!
//! Owns the state of maintenance; one thread at a time has the turn.

mod compaction;
mod find_by_table;
mod merges;
mod packing;
mod reclaim;
mod release;
mod relocation;
mod scheduler;
mod sweep;
mod turn;

pub(crate) use compaction::Compactor;
pub(crate) use merges::Merger;
pub(crate) use release::Reclaimer;
pub(crate) use relocation::Relocator;
pub(crate) use scheduler::Collector;
pub(crate) use turn::{Maintenance, TURN_WAIT};
