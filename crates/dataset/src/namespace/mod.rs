//! Namespace: names, links, attributes and extended attributes of objects, and how long objects live.
//!
//! Owns the lock of renames between directories.

mod lifetime;
mod lookup;
mod lookup_create;
mod remove;
mod rename;
mod set_attributes;
pub(crate) mod xattrs;

pub(crate) use lifetime::Lifetimes;
pub(crate) use lookup::Directories;
pub(crate) use lookup_create::{Namespace, NewObject};
pub(crate) use xattrs::ExtendedAttributes;
