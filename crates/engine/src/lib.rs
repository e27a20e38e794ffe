//! The engine: makes, opens, runs and closes a pool.
//!
//! It ties the floors below together (devices, pool, store, datasets, mover) and owns the threads that drive their
//! steps. Invariants: everything that runs in a thread is also reachable as a bounded step ([`Engine::step`],
//! [`Engine::tick`]), so that the simulator can drive a whole engine without threads; nothing here knows how chunks
//! or records are laid out; [`Engine::close`] leaves every acknowledged write durable.

mod alarms;
mod damage;
mod devices;
mod engine;
mod error;
mod fullness;
mod journal;
mod leaving;
mod leisure;
mod losses;
mod met;
mod options;
mod out_of_reach;
pub mod properties;
mod rebuild;
mod replacing;
mod report;
mod resident;
mod resilver;
mod rewind;
mod scrub;
mod scrub_progress;
mod scrub_record;
mod spec;
mod status;
mod unreadable;
mod verify;
mod workers;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;

pub use damage::DamagedFile;
pub use devices::{
    AddedDevice, JoiningDevice, LeavingPlan, TierPlace, describe_lost_device, shortage_in_words,
};
pub use engine::{Engine, FormatNews};
pub use error::EngineError;
pub use journal::{Entry, KeepEvents, Unwritten, rfc3339};
pub use options::OpenOptions;
pub use rebuild::{RebuildOptions, RebuildReport, RebuiltDataset, RebuiltFile, rebuild};
pub use report::{SCRUB_JOB, durability_in_words, loss_window};
pub use rewind::RewindOutlook;
pub use spec::{PoolSpec, TierSpec};
pub use status::{
    DatasetStatus, DeviceStatus, IoCounters, JobStatus, LostStatus, MemoryStatus, ScrubStatus,
    ScrubbedDevice, Status, TierStatus,
};
pub use terrace_chunk::{FORMAT_NEWEST, Plight};
pub use verify::{VerifyReport, verify};
