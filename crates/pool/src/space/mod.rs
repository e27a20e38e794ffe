//! Space: which segments are free, on which tier, and for whom.

mod allocator;
mod content_room;
mod landing_tier;

pub use allocator::{Request, TierChoice};
pub use content_room::{ContentRoom, Freed};
pub use landing_tier::{Landing, landing_tier};

pub(crate) use allocator::{Allocator, floor_of, landing_mark};
pub(crate) use landing_tier::take_from_others;
