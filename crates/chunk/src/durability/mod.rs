//! Durability: group commits, room in the log, and devices that fail a flush.
//!
//! Owns the log and the state of the group that commits.

mod device_failure;
mod log_room;

pub(crate) use log_room::{Margin, log_bytes};
