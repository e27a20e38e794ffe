//! Admission: the one place where a write waits for space, for the log or for a slower tier.
//!
//! Holds no lock while it waits.

mod demotion_wait;
mod make_room;

pub(crate) use demotion_wait::Sinking;
