//! The rules of the house: how the sources are laid out, checked by the tests of this crate.
//!
//! A folder is a sub-system: one facade owns its fields and locks, folders import downwards only, and whoever waits
//! stands above what he waits for. Each rule counts what breaks it, by crate and subject. What breaks it today is
//! listed in `exceptions.txt`, with the count; the list has to be exact, so it can only shrink.

pub mod exceptions;
pub mod graph;
pub mod imports;
pub mod rules;
pub mod source;

pub use exceptions::Finding;
pub use source::{Source, Workspace};
