//! The engine: makes, opens, runs and closes a pool.
//!
//! It ties the floors below together (devices, pool, store, datasets, mover) and owns the threads that drive their
//! steps. Invariants: everything that runs in a thread is also reachable as a bounded step ([`Engine::step`],
//! [`Engine::tick`]), so that the simulator can drive a whole engine without threads; nothing here knows how chunks
//! or records are laid out; [`Engine::close`] leaves every acknowledged write durable.

mod background;
mod devices;
mod engine;
mod error;
mod floors;
mod integrity;
mod lifecycle;
mod open_flag;
pub mod pool_properties;
mod rebuild;
mod reporting;
mod status;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;

pub use devices::{
    AddedDevice, JoiningDevice, LeavingPlan, TierPlace, describe_lost_device, describe_shortage,
};
pub use engine::{Engine, rebuild_pool as rebuild};
pub use error::EngineError;
pub use integrity::{DamagedFile, VerifyReport, verify};
pub use lifecycle::{FormatNews, OpenOptions, PoolSpec, RewindOutlook, TierSpec};
pub use rebuild::{RebuildOptions, RebuildReport, RebuiltDataset, RebuiltFile};
pub use reporting::{
    DatasetStatus, DeviceStatus, Entry, IoCounters, JobStatus, KeepEvents, LostStatus, MemoryStatus,
    SCRUB_JOB, ScrubStatus, ScrubbedDevice, Status, TierStatus, Unwritten, describe_durability, loss_window,
    rfc3339,
};
pub use terrace_chunk::{FORMAT_NEWEST, Plight};
