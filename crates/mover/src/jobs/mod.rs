//! Jobs: their list, their records, and what is tried again.

mod evacuation;
mod external_work;
mod job;
mod leftovers;
mod queue;
mod retry;
mod store;

pub use external_work::{StoreSteps, StoreWork};
pub use job::{JobInfo, JobKind, JobState};

pub(crate) use external_work::{Work, store_step};
pub(crate) use job::Job;
pub(crate) use leftovers::Left;
pub(crate) use queue::AWAITS_WINDOW;
pub(crate) use retry::{Reason, Retry, is_for_pin, waiting_move};
