//! Input and output: how much of the devices the mover takes beside users.

mod latency_throttle;
mod priority;
mod turns;
mod urgency;

pub(crate) use latency_throttle::Courtesy;
pub(crate) use priority::{REGION_READS, is_dense};
