//! Admission: the one place where a write waits for space, for the log or for a slower tier.
//!
//! Holds no lock while it waits.

mod commit_gate;
mod demotion_wait;
mod make_room;
mod reservations;
mod segment_gate;

pub(crate) use make_room::Admission;
