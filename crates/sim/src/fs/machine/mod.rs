//! The machine: devices that fail, go away and come back; restarts.

mod absence;
mod devices;
mod replacement;
mod restart;
mod survivors;

pub(crate) use absence::Absence;
pub(crate) use replacement::Replacing;
pub(crate) use survivors::Lost;
