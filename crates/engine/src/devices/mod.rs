//! Devices: added, removed, replaced, drained and resilvered; and the settings of tiers. [`DeviceManager`] ties the parts together. What is
//! wanted of devices lies on the labels, what is being emptied under the locks of [`Drains`](drain::Drains), what is brought up to date
//! under those of [`Resilver`](resilver::Resilver).

mod device_manager;
mod drain;
mod emptying;
mod goals;
mod joining;
mod names;
mod plan;
mod replace;
mod resilver;
mod resilver_job;
mod tiers;

pub use joining::{AddedDevice, JoiningDevice, describe_shortage};
pub use plan::{LeavingPlan, describe_lost_device};
pub use tiers::TierPlace;

pub(crate) use device_manager::DeviceManager;
pub(crate) use joining::{Joining, by_tier, undo};
pub(crate) use plan::describe_too_few;
