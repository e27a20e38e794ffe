//! The mover: the one background worker that puts content where it should lie.
//!
//! Demotion, promotion, pins and moves by hand are all *rewrite these live chunks to a better tier*
//! (`Store::rewrite`); scrubbing and compaction are steps of the store. All of them are *jobs*: visible, pausable,
//! cancellable, kept across restarts, with percentages that end at 100. The mover has no thread: whoever drives it
//! calls [`Mover::step`], which does a bounded piece of work (after TIER's per-block heat and HAMMER's time-boxed
//! maintenance).

mod error;
mod extent;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;
mod io;
mod jobs;
mod mover;
mod pins;
mod policy;
mod relayout;
mod tiers;

pub use error::MoverError;
pub use jobs::{JobInfo, JobKind, JobState, StoreSteps, StoreWork};
pub use mover::{Mover, Step};
pub use policy::UnderWay;
pub use tiers::{TierPolicy, Window};
