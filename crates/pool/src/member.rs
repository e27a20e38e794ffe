//! One device of an open pool.

use crate::{CounterValues, DeviceState};

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
    /// Nothing new is put on it (evacuation).
    pub draining: bool,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Segments on it.
    pub segments: u32,
    /// Segments that are free.
    pub free_segments: u32,
    /// Counts since the pool was opened.
    pub counters: CounterValues,
}
