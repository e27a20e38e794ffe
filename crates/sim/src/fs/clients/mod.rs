//! Clients: what users of the simulated filesystems and volumes do.

mod attributes;
mod call;
mod copying;
mod file_data;
mod filling;
mod holds;
mod names;
mod reserved_volume;
mod seek;
mod volume_data;
mod workload;

pub(crate) use call::{Client, Done};
pub(crate) use copying::copied_in_part;
pub(crate) use file_data::Read;
pub(crate) use filling::FillUp;
pub(crate) use volume_data::{VolumeCall, VolumeClient};
pub(crate) use workload::FilesystemCall;
