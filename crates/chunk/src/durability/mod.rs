//! Durability: group commits, room in the log, and devices that fail a flush.
//!
//! Owns the log and the state of the group that commits.

mod checkpoint;
mod group_commit;

mod device_failure;
mod log_room;

pub(crate) use checkpoint::{Checkpoint, SLICE_BYTES};
pub(crate) use device_failure::LOG_LEAVES_MAX;
pub(crate) use group_commit::{EndOfLog, Journal};
pub(crate) use log_room::log_bytes;
