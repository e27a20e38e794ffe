//! Lifecycle: a pool is opened, set, upgraded, rewound and closed. [`Lifecycle`] owns the threads and whether all is saved, under one
//! lock that is held while that is tried.

mod clear_heat;
mod lifecycle;
mod open;
mod options;
mod rewind;
mod settings;
mod spec;
mod upgrade;

pub use options::OpenOptions;
pub use rewind::RewindOutlook;
pub use spec::{PoolSpec, TierSpec};
pub use upgrade::FormatNews;

pub(crate) use lifecycle::Lifecycle;
pub(crate) use open::{
    create_pool, open_floors, open_pool, plan_creating, rehearsal_devices, wants_rehearsal,
};
