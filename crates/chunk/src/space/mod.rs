//! Space: how much is free, for whom, and where a write may land.
//!
//! Owns numbers alone and waits for nobody.

mod accounting;
mod device_pacing;
mod landing;
mod need;
mod placement;
mod pressure;
mod tier_room;

pub use accounting::DeviceLoad;
pub(crate) use accounting::{SpaceView, unused_bytes};
pub(crate) use need::Waiting;
pub(crate) use placement::StreamKey;
pub(crate) use tier_room::TierRoom;
