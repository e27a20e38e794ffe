//! What goes on beside the clients: steps of the engine and of the clock, regions that are laid out anew, guests, servers of
//! volumes.

mod durability;
mod guests;
mod raising;
mod relayout;
mod serving;
mod steps;

pub(crate) use durability::{Fsync, Tick};
pub(crate) use guests::ComeAndGo;
pub(crate) use raising::Raise;
pub(crate) use relayout::Relayout;
pub(crate) use serving::Serving;
pub(crate) use steps::{Background, Rest, StoreCheckpoint};
