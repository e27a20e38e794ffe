//! The mover: the one background worker that puts content where it should lie.
//!
//! Demotion, promotion, pins and moves by hand are all *rewrite these live chunks to a better tier*
//! (`Store::rewrite`); scrubbing and compaction are steps of the store. All of them are *jobs*: visible, pausable,
//! cancellable, kept across restarts, with percentages that end at 100. The mover has no thread: whoever drives it
//! calls [`Mover::step`], which does a bounded piece of work (after TIER's per-block heat and HAMMER's time-boxed
//! maintenance).

mod aging;
mod beneath;
mod by_hand;
mod courtesy;
mod demote;
mod error;
mod evacuation;
mod exchange;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod grace;
mod haste;
mod hint_records;
#[cfg(test)]
mod hostile_bytes;
mod hot_chunks;
mod hot_pieces;
mod job;
mod left;
mod making_way;
mod marks;
mod migrate;
mod mover;
mod outlook;
mod passes;
mod pins;
mod plan;
mod policy;
mod promote;
mod records;
mod relayout;
mod relayout_round;
mod retry;
mod room;
mod shared_with_pinned;
mod status;
mod store_work;
mod subtree;
mod turns;
mod urgent;

pub use error::MoverError;
pub use job::{JobInfo, JobKind, JobState};
pub use mover::{Mover, Step};
pub use outlook::UnderWay;
pub use policy::{TierPolicy, Window};
pub use store_work::{StoreSteps, StoreWork};
