//! Quota: what datasets use, may use, and have been promised.
//!
//! Owns the links between datasets' usages, what is set aside for each, and the room that dirty data has taken.

mod checks;
mod file_room;
mod room_pool;
mod usage;
mod working_room;

pub use usage::{Room, Usage};

pub(crate) use checks::{LOG_BYTES_AT_ONCE, OfReserve};
pub(crate) use room_pool::RoomPool;
pub(crate) use usage::{Charge, Terms, blocks_to_bytes_of, set_aside_of};
pub(crate) use working_room::{WorkingRoom, working_bytes_of};
