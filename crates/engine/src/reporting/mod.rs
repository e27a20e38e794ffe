//! Reporting: status, events and alarms.

mod alarms;
mod build_status;
pub(crate) mod event_log;
mod fullness;
mod status;

pub use build_status::{SCRUB_JOB, durability_in_words, loss_window};
pub use event_log::{Entry, KeepEvents, Unwritten, rfc3339};
pub use status::{
    DatasetStatus, DeviceStatus, IoCounters, JobStatus, LostStatus, MemoryStatus, ScrubStatus,
    ScrubbedDevice, Status, TierStatus,
};

pub(crate) use alarms::Alarms;
pub(crate) use build_status::{counted, given_up_in_words, resident_bytes};
pub(crate) use event_log::{Journal, Ring, cut};
