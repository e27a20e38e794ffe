//! The rig of a run: the machine, the pool on it, the engine while it is open, and what may have failed.

mod condition;
mod handles;
mod members;
mod rig;

pub(crate) use members::disk_of_path;
pub(crate) use rig::Rig;
