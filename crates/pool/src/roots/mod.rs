//! Roots: which devices hold the root record of an open pool, and writing it.
//!
//! Owns what is known of the slots, behind the lock of `Roots`; it is held while a root is written, and taken before that of
//! the devices.

mod known_roots;
mod root_writer;

pub(crate) use known_roots::{KnownRoots, Slots};
pub(crate) use root_writer::{HOLDERS_MAX, Roots};
