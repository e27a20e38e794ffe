//! The world of a run at level `store`: machine, store and model, and how an error, a stop and an opening change them.

mod checks;
mod condition;
mod disk_loss;
mod log_copies;
mod recent_writes;
mod recovery;
mod world;
mod writing;

pub(crate) use world::{StoreWorld, Upgrade};
