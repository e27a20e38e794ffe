//! Administration: datasets are made, renamed, destroyed and set.
//!
//! Owns the registry of all datasets of a pool.

mod datasets;
mod lifecycle;
mod registry;
mod retained_space;
mod set_properties;

pub use datasets::{DatasetInfo, Datasets, Facts};
pub use lifecycle::{DestroyReport, NewDataset};
pub use set_properties::{check_for_new_pool, check_readable};

pub(crate) use registry::{Borrowed, Node};
