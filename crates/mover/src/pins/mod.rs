//! Pins: content that is to stay on one tier, and what it shares.

mod pinned_subtrees;
pub(crate) mod pins;
mod shared_chunks;
mod tree_walk;

pub(crate) use pinned_subtrees::Beneath;
pub(crate) use pins::{Pins, body_of};
pub(crate) use shared_chunks::SharedWithPinned;
pub(crate) use tree_walk::Subtree;
