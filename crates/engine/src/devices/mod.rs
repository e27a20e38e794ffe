//! Devices: added, removed, replaced, drained and resilvered.

mod change;
mod drain;
mod joining;
mod replace;
mod resilver;

pub use change::{AddedDevice, LeavingPlan, TierPlace, describe_lost_device, shortage_in_words};

pub(crate) use change::{END_WITHOUT_IN_WORDS, too_few_in_words};
pub(crate) use drain::Leaving;
pub use joining::JoiningDevice;
pub(crate) use joining::{Joining, by_tier, undo};
pub(crate) use resilver::{Resilvering, is_behind};
