//! Labels: writing and comparing the labels of devices, and changing what they say.
//!
//! Owns the lock that serialises changes (`Labels`), which is held across their I/O and taken before those of roots and devices.

mod disown;
pub(crate) mod edits;
mod find_copies;
mod front_check;
mod label_io;
mod relabel;
pub(crate) mod standing;

pub use disown::mark_destroyed;
pub use front_check::FrontDamage;

pub(crate) use find_copies::{check_copies, root_payloads};
pub(crate) use front_check::FrontCheck;
pub(crate) use label_io::write_labels;
pub(crate) use relabel::Labels;
pub(crate) use standing::{Standing, standing};
