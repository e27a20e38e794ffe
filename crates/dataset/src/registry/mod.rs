//! Registry: the datasets of a pool by name and number, each with its handle while it is open, and the numbers that new ones get.
//!
//! Owns the turn of administrative changes. Locks in this order: administration, handle, commit locks by ascending number, names.

mod dataset_info;
mod node;
mod pool_facts;
mod registry;
mod relayout;

pub use dataset_info::DatasetInfo;
pub use pool_facts::Facts;

pub(crate) use node::{Borrowed, Node};
pub(crate) use pool_facts::PoolFacts;
pub(crate) use registry::Registry;
