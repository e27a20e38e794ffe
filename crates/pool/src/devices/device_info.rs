//! `DeviceInfo`: a device of the pool as it is told to the floors above.

use super::{
    counters::{CounterValues, DeviceState},
    open_device::OpenDevice,
};
use crate::ondisk::{Member, Presence};

/// A device of the pool as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceInfo {
    /// Number in the pool.
    pub number: u16,
    /// Identity.
    pub id: [u8; 16],
    /// Path (of a missing one: where it was last seen).
    pub path: String,
    /// Tier, 0 is the fastest.
    pub tier: u8,
    /// State.
    pub state: DeviceState,
    /// Whether it has all that is to be on it, by the labels.
    pub presence: Presence,
    /// Nothing new is put on it (evacuation).
    pub draining: bool,
    /// It is there, and neither fails nor is being emptied: new segments may be put on it.
    pub takes_new: bool,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes at its end that are not there: it was cut short from outside.
    pub cut_off_bytes: u64,
    /// Segments on it.
    pub segments: u32,
    /// Segments that are free.
    pub free_segments: u32,
    /// Counts since the pool was opened.
    pub counters: CounterValues,
    /// Why it counts as failing.
    pub failure: Option<String>,
    /// Since when it does not answer, nanoseconds since 1970.
    pub silent_since: Option<u64>,
}

impl DeviceInfo {
    /// What the label says of a device, and what the device says where it is there; of its segments `total` and `free` ones.
    pub(crate) fn new(member: &Member, open: Option<&OpenDevice>, total: u64, free: u64) -> Self {
        Self {
            number: member.number,
            id: member.id,
            path: open.map_or_else(|| member.path.clone(), OpenDevice::path),
            tier: member.tier,
            state: open.map_or(DeviceState::Missing, OpenDevice::state),
            presence: member.presence,
            draining: open.is_some_and(OpenDevice::is_draining),
            takes_new: open.is_some_and(OpenDevice::is_usable),
            size_bytes: member.size_bytes,
            cut_off_bytes: open.map_or(0, |device| {
                member.size_bytes.saturating_sub(device.raw().size_bytes())
            }),
            segments: total as u32,
            free_segments: free as u32,
            counters: open.map_or_else(CounterValues::default, OpenDevice::counters),
            failure: open.and_then(OpenDevice::failure),
            silent_since: open.and_then(OpenDevice::silent_since),
        }
    }
}
