//! Tiers: what the mover needs to know of each.

mod tier_policy;
mod watermarks;

pub use tier_policy::{TierPolicy, Window};

pub(crate) use tier_policy::minute_of_day;
pub(crate) use watermarks::{filled_bytes, holds, in_the_way, may_rise, room, room_below};
