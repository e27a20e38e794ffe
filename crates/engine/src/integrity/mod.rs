//! Integrity: scrubs, verification, and what was found damaged or lost. [`Integrity`] owns what a scrub found, what readers met and
//! which files that concerns, each under a lock of its own, which is never held while a device is read.

mod damaged_files;
mod integrity;
mod lost_files;
mod lost_metadata;
mod read_errors;
mod scrub;
mod scrub_progress;
mod scrub_record;
mod scrub_run;
mod verify;

pub use damaged_files::DamagedFile;
pub use verify::{VerifyReport, verify};

pub(crate) use damaged_files::{DamageWalk, Damaged};
pub(crate) use integrity::{Integrity, ScrubStep};
pub(crate) use lost_files::LostFiles;
pub(crate) use scrub::is_behind;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use scrub_progress::Progress;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use scrub_record::{LIST_MAX, Outcome};
