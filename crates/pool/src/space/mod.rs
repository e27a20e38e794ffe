//! Space: which segments are free, on which tier, and for whom.
//!
//! Owns the maps of segments, behind the lock of `FreeSpace`; it is taken after that of the devices and never held across I/O.

mod allocator;
mod content_room;
mod free_space;

pub use allocator::{Request, TierChoice};
pub use content_room::{ContentRoom, Freed};
pub use free_space::TierInfo;

pub(crate) use free_space::FreeSpace;
