//! Administration: datasets are made, renamed, destroyed and set.
//!
//! Owns all datasets of a pool by name (`Registry`), their numbers, and the turn of administrative changes. Locks in this order:
//! administration, handle, commit locks by ascending number, registry.

mod datasets;
mod facts;
mod lifecycle;
mod node;
mod registry;
mod retained_space;
mod set_properties;

pub use datasets::{DatasetInfo, Datasets};
pub use facts::Facts;
pub use lifecycle::{DestroyReport, NewDataset};
pub use set_properties::{check_for_new_pool, check_readable};

pub(crate) use node::{Borrowed, Node};
