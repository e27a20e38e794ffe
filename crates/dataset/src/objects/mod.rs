//! Objects: one file or directory in RAM, its dirty content, and how it is used.

mod clock_cache;
mod directory_cache;
mod dirty_layer;
mod object;
mod object_pins;
mod read_stream;
mod visit_count;
mod write_stream;

pub use object_pins::{DirectoryPin, ObjectPins};

pub(crate) use clock_cache::{Cached, ClockMap};
pub(crate) use directory_cache::{Change, Found, NameKey, Target};
pub(crate) use dirty_layer::{Block, Buffer, Buffers, Layer, Page, SLOT_BLOCKS, Slot};
pub(crate) use object::{
    HAS_ACL, HAS_CAPABILITY, HAS_DEFAULT_ACL, HAS_XATTRS, Object, State, XattrChange, XattrSlot, Xattrs,
};
