//! Reporting: what is told of a pool, as values and as events. [`EventLog`] owns the two rings of entries under its one lock; the
//! alarms and complaints own what was told already.

mod alarms;
mod complaints;
pub(crate) mod event_log;
mod fullness;
mod status;
mod words;

pub use event_log::{Entry, KeepEvents, Unwritten, rfc3339};
pub use status::{
    DatasetStatus, DeviceStatus, IoCounters, JobStatus, LostStatus, MemoryStatus, SCRUB_JOB, ScrubStatus,
    ScrubbedDevice, Status, TierStatus, describe_durability, loss_window,
};

pub(crate) use alarms::Alarms;
pub(crate) use complaints::Complaints;
pub(crate) use event_log::{EventLog, Ring, cut};
pub(crate) use fullness::fullness;
pub(crate) use words::{LOST_TAIL, counted, describe_abandoned_tail, describe_outdated, list_names};
