//! The kernel's interface: commands, parameters and memory that is shared with it.

pub(crate) mod config;
mod control;
pub(crate) mod device;
mod memory;
pub(crate) mod protocol;

pub use control::{Availability, availability};

pub(crate) use control::Control;
pub(crate) use device::{channel_path, disk_path, number_of};
pub(crate) use memory::{Buffer, Mapping};
#[cfg(test)]
pub(crate) use protocol::CONTROL_PATH;
pub(crate) use protocol::{
    Command, DESCRIPTOR_BYTES, Descriptor, FLAG_FUA, Information, OPERATION_DISCARD, OPERATION_FLUSH,
    OPERATION_READ, OPERATION_WRITE, OPERATION_WRITE_ZEROES, QueueCommand, SECTOR_BYTES, descriptors_at,
    queue_command_bytes,
};
