//! Relayouts: content is laid out anew where that pays.

mod hint_records;
pub(crate) mod queue;
mod split_hot_blocks;
mod step;

pub(crate) use queue::Relayouts;
pub(crate) use split_hot_blocks::{Hot, HotPieces};
