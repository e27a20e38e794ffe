//! Space: how much is free, for whom, and where a write may land.
//!
//! Owns numbers alone and waits for nobody. The thresholds stand in `watermarks.rs`; questions about the pool, the log and records in
//! `checks.rs`, about one tier in `landing.rs` and `tier_room.rs`; amounts in `accounting.rs`. Nobody compares free segments elsewhere.

mod accounting;
mod checks;
mod device_pacing;
mod landing;
mod need;
mod placement;
mod tier_room;
mod watermarks;

pub use accounting::DeviceLoad;
pub(crate) use accounting::{Purpose, SpaceView, unused_bytes};
pub(crate) use landing::Landing;
pub(crate) use need::Waiting;
pub(crate) use placement::StreamKey;
pub(crate) use tier_room::TierRoom;
pub(crate) use watermarks::{Backlog, Margin, THROTTLED_PRESSURE};
