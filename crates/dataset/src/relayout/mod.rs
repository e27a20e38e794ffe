//! Relayout: content that lies in an unfavourable manner is written anew.
//!
//! Owns the count of replacements of records ([`Relayouts`]).

mod layout;
mod placement;
mod preallocated;
mod relayout;
mod split_hot_blocks;

pub use layout::{Cut, Layout};
pub use placement::{
    ChunksOfRegion, RegionPlace, TierBytes, body_of_object, bytes_of_dataset, bytes_of_object,
    chunks_of_region,
};
pub use relayout::{Accepts, Relaid};
pub use split_hot_blocks::HotPiece;

pub(crate) use relayout::{Relayouter, Relayouts};
