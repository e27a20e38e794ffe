//! The machine: devices that fail, come and go, are pulled and replaced; tiers; restarts.

mod copies;
mod devices;
mod lost_device;
mod pulling;
mod replacement;
mod restart;
mod tiers;
mod weather;

pub(crate) use devices::{ChangeDevices, CutAfterLeaving};
pub(crate) use lost_device::LostDevice;
pub(crate) use pulling::PullDisks;
pub(crate) use replacement::ReplaceDisks;
pub(crate) use restart::CloseAndOpen;
pub(crate) use tiers::{ChangeTier, MoveByHand};
pub(crate) use weather::{Cut, Kill, PlanCut, Weather};
