//! Integrity: scrubs, verification, and what was found damaged or lost.

mod damaged_files;
mod lost_files;
pub(crate) mod read_errors;
mod scrub;
mod scrub_progress;
mod scrub_record;
mod unreadable_metadata;
mod verify;

pub use damaged_files::DamagedFile;
pub use verify::{VerifyReport, verify};

pub(crate) use damaged_files::{DamageWalk, Damaged};
pub(crate) use lost_files::{Losses, names_in_words};
pub(crate) use read_errors::Met;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use scrub::LOST_CHUNKS_MAX;
pub(crate) use scrub::Scrub;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use scrub_progress::Progress;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use scrub_record::LIST_MAX;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use scrub_record::Outcome;
