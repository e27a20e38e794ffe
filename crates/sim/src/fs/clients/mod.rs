//! Clients: what users of the simulated filesystems do.

mod attributes;
mod call;
mod copying;
mod file_data;
mod filling;
mod names;
mod seek;
mod volume_data;
mod workload;

pub(crate) use call::{Change, Done, show};
pub(crate) use copying::copied_in_part;
