//! Lifecycle: a pool is opened, set, upgraded, rewound and closed.

mod missing_metadata;
mod open;
mod options;
pub mod pool_properties;
mod rewind;
mod settings;
mod spec;
mod tiers;
mod upgrade;

pub use options::OpenOptions;
pub use rewind::RewindOutlook;
pub use spec::{PoolSpec, TierSpec};
pub use upgrade::FormatNews;

pub(crate) use open::shares_of_store;
pub(crate) use spec::check_name;
