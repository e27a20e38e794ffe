//! Relief: space is reclaimed for a write that finds none, by `SpaceReclaimer`, whom those who need some reach as a `RoomSource`.

mod clean_landing_tier;
mod free_space;

pub(crate) use free_space::SpaceReclaimer;
