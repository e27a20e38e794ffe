//! An open pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_device::{Device, Randomness};

use crate::{DeviceInfo, PoolError, PoolId, PoolState, Request, SegmentId, TierSettings};

/// Whether a flush of several devices uses threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parallelism {
    /// One after the other, in the order of their numbers: for the simulator.
    Sequential,
    /// At the same time.
    #[default]
    Threads,
}

/// How to make a pool.
pub struct CreateOptions {
    /// Name, 1–64 of `A-Za-z0-9_.-`, starting with a letter.
    pub name: String,
    /// Tiers, fastest first, each with its devices.
    pub tiers: Vec<(TierSettings, Vec<Arc<dyn Device>>)>,
    /// Properties.
    pub properties: BTreeMap<String, String>,
    /// Segment size in bytes; `None`: chosen by the smallest device.
    pub segment_bytes: Option<u32>,
    /// When, nanoseconds since 1970.
    pub created_nanoseconds: u64,
    /// Use devices although they carry the label of an active pool.
    pub force: bool,
    /// Flushing.
    pub parallelism: Parallelism,
}

/// How to open a pool.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Open although devices are missing.
    pub degraded: bool,
    /// Open an exported pool (and make it active).
    pub exported: bool,
    /// Open a destroyed pool (and make it active).
    pub destroyed: bool,
    /// Change nothing on the devices.
    pub read_only: bool,
    /// Flushing.
    pub parallelism: Parallelism,
}

/// Where an added device goes.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceAdd {
    /// To the tier of this name.
    Tier(String),
    /// To a new tier at this position (0: fastest; the number of tiers: slowest).
    NewTier {
        /// Position.
        position: u8,
        /// Its settings.
        settings: TierSettings,
    },
}

/// A tier as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct TierInfo {
    /// Settings.
    pub settings: TierSettings,
    /// Numbers of its devices, missing ones too.
    pub devices: Vec<u16>,
    /// Sum of its devices, bytes, in segments.
    pub size_bytes: u64,
    /// Segments on devices that are there.
    pub segments: u64,
    /// Free ones of them.
    pub free_segments: u64,
}

/// An open pool. All methods may be called from any thread.
pub struct Pool {}

impl Pool {
    /// Writes labels on the devices and opens the new pool. No root is written: the floor above does that.
    pub fn create(_options: CreateOptions, _randomness: &dyn Randomness) -> Result<Self, PoolError> {
        todo!()
    }
    /// Opens a pool from its devices, in any order. Every segment is free until [`Self::claim`]ed.
    pub fn open(_devices: Vec<Arc<dyn Device>>, _options: OpenOptions) -> Result<Self, PoolError> {
        todo!()
    }
    /// Identity.
    pub fn id(&self) -> PoolId {
        todo!()
    }
    /// Name.
    pub fn name(&self) -> String {
        todo!()
    }
    /// State in the labels.
    pub fn state(&self) -> PoolState {
        todo!()
    }
    /// Generation of the labels.
    pub fn generation(&self) -> u64 {
        todo!()
    }
    /// When the pool was made, nanoseconds since 1970.
    pub fn created_nanoseconds(&self) -> u64 {
        todo!()
    }
    /// Whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        todo!()
    }
    /// Segment size in bytes, a multiple of 1 MiB; the same on every device.
    pub fn segment_bytes(&self) -> u32 {
        todo!()
    }
    /// Tiers, fastest first.
    pub fn tiers(&self) -> Vec<TierInfo> {
        todo!()
    }
    /// Devices, ascending by number, missing ones too.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        todo!()
    }
    /// Tier of a device.
    pub fn tier_of(&self, _device: u16) -> Option<u8> {
        todo!()
    }

    /// Takes a free segment. It holds unspecified bytes. `NoSpace` when no device that fits has one.
    pub fn allocate(&self, _request: &Request<'_>) -> Result<SegmentId, PoolError> {
        todo!()
    }
    /// Marks a segment as in use when the pool is opened; an error if it does not exist or is in use already.
    pub fn claim(&self, _segment: SegmentId) -> Result<(), PoolError> {
        todo!()
    }
    /// Gives a segment back; it may be handed out again at once.
    pub fn release(&self, _segment: SegmentId) -> Result<(), PoolError> {
        todo!()
    }
    /// Whether a segment is in use.
    pub fn is_claimed(&self, _segment: SegmentId) -> bool {
        todo!()
    }
    /// Free segments on all devices that can be written.
    pub fn free_segments(&self) -> u64 {
        todo!()
    }
    /// Segments on all devices that are there.
    pub fn total_segments(&self) -> u64 {
        todo!()
    }
    /// Nothing new is put on a draining device.
    pub fn set_draining(&self, _device: u16, _draining: bool) -> Result<(), PoolError> {
        todo!()
    }

    /// Fills `buffer` from `offset` bytes into the segment (multiples of 4096). Tried twice before it fails.
    pub fn read(&self, _segment: SegmentId, _offset: u64, _buffer: &mut [u8]) -> Result<(), PoolError> {
        todo!()
    }
    /// Writes at `offset` bytes into the segment (multiples of 4096). Durable after [`Self::flush`].
    pub fn write(&self, _segment: SegmentId, _offset: u64, _data: &[u8]) -> Result<(), PoolError> {
        todo!()
    }
    /// As [`Self::write`], the parts one after the other.
    pub fn write_vectored(
        &self,
        _segment: SegmentId,
        _offset: u64,
        _parts: &[&[u8]],
    ) -> Result<(), PoolError> {
        todo!()
    }
    /// Makes durable what was written to these devices (numbers; twice the same is fine). The first error is
    /// returned after all were tried.
    pub fn flush(&self, _devices: &[u16]) -> Result<(), PoolError> {
        todo!()
    }
    /// Flushes every device that is there.
    pub fn flush_all(&self) -> Result<(), PoolError> {
        todo!()
    }
    /// Tells the device that the content of a free segment is not needed.
    pub fn discard(&self, _segment: SegmentId) -> Result<(), PoolError> {
        todo!()
    }
    /// Counts content that did not match its checksum.
    pub fn note_checksum_error(&self, _device: u16) {
        todo!()
    }

    /// The payload of the newest valid root; `None` if none was ever written.
    pub fn read_root(&self) -> Result<Option<Vec<u8>>, PoolError> {
        todo!()
    }
    /// Writes a root to up to four devices and flushes them: durable when it returns. What it refers to must be
    /// durable before.
    pub fn write_root(&self, _payload: &[u8]) -> Result<(), PoolError> {
        todo!()
    }

    /// Properties of the pool.
    pub fn properties(&self) -> BTreeMap<String, String> {
        todo!()
    }
    /// One property.
    pub fn property(&self, _name: &str) -> Option<String> {
        todo!()
    }
    /// Sets (or with `None` removes) a property; durable when it returns.
    pub fn set_property(&self, _name: &str, _value: Option<&str>) -> Result<(), PoolError> {
        todo!()
    }
    /// Replaces the settings of the tier of this name; durable when it returns.
    pub fn set_tier(&self, _name: &str, _settings: TierSettings) -> Result<(), PoolError> {
        todo!()
    }
    /// Changes the state in the labels; durable when it returns.
    pub fn set_state(&self, _state: PoolState) -> Result<(), PoolError> {
        todo!()
    }
    /// Changes the name; durable when it returns.
    pub fn rename(&self, _name: &str) -> Result<(), PoolError> {
        todo!()
    }
    /// Adds a device; returns its number.
    pub fn add_device(
        &self,
        _device: Arc<dyn Device>,
        _place: DeviceAdd,
        _force: bool,
        _randomness: &dyn Randomness,
    ) -> Result<u16, PoolError> {
        todo!()
    }
    /// Takes a device without claimed segments out of the pool; its label is wiped.
    pub fn remove_device(&self, _device: u16) -> Result<(), PoolError> {
        todo!()
    }
    /// Uses what a device's backing has grown by; returns the new number of segments.
    pub fn resize_device(&self, _device: u16) -> Result<u32, PoolError> {
        todo!()
    }
}
