//! Objects: one file or directory in RAM, its dirty content, and how it is used.
//!
//! Owns the inode lock and the state of each object, and the shards of the maps in which they are kept.

mod cache_share;
mod clock_cache;
mod directory_cache;
mod dirty_layer;
mod names;
mod object;
mod object_pins;
mod read_stream;
mod visit_count;
mod write_stream;
mod xattrs;

pub use object_pins::{DirectoryPin, ObjectPins};

pub(crate) use cache_share::CacheShare;
pub(crate) use clock_cache::{Cached, ClockMap};
pub(crate) use directory_cache::{Change, Found, NameKey, Target};
pub(crate) use dirty_layer::{Block, Buffer, Buffers, Layer, Page, SLOT_BLOCKS, Slot};
pub(crate) use names::{NameCount, Names, name_bytes};
pub(crate) use object::{Object, State, lock_all};
pub(crate) use visit_count::{Counting, Visited};
pub(crate) use xattrs::{
    HAS_ACL, HAS_CAPABILITY, HAS_DEFAULT_ACL, HAS_XATTRS, XattrChange, Xattrs, drop_capability, put_xattr,
};
