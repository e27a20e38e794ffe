//! Policy: what should lie where, and which of it goes next.

mod aging;
mod demote;
mod demotion_passes;
mod explain;
mod hot_chunks;
mod manual_overrides;
mod promote;
mod recently_hot;
pub(crate) mod space_request;
mod swap;
mod swap_room;

pub use explain::UnderWay;

pub(crate) use aging::Aging;
pub(crate) use demotion_passes::{PASSES, clearly_colder, heat_of_pass, next_pass, stays, warmth};
pub(crate) use hot_chunks::HotChunks;
pub(crate) use manual_overrides::ByHand;
pub(crate) use promote::Candidates;
pub(crate) use recently_hot::Grace;
pub(crate) use space_request::{Way, WayForPins};
pub(crate) use swap::Exchange;
pub(crate) use swap_room::Room;
