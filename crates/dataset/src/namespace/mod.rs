//! Namespace: names, links, attributes and extended attributes of objects.

mod lookup_create;
mod remove;
mod rename;
mod set_attributes;
pub(crate) mod xattrs;

pub(crate) use lookup_create::NewObject;
