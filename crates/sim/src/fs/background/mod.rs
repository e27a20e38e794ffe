//! Background work and visitors of a run: relayouts, holds, guests, servers of volumes.

mod guests;
mod holds;
mod relayout;
mod serving;
mod split_hot_blocks;

pub(crate) use guests::Guests;
pub(crate) use serving::Serving;
