//! Space: how much is free, for whom, and where a write may land.
//!
//! Owns numbers alone and waits for nobody.

mod accounting;
mod device_pacing;
mod need;
mod placement;
mod tier_room;

pub(crate) use accounting::unused_bytes;
pub(crate) use device_pacing::Spacing;
pub(crate) use need::{Need, Waiting};
pub(crate) use placement::StreamKey;
pub(crate) use tier_room::TierRoom;
