//! Devices made into one pool: labels that describe it, root slots, and segments to be allocated, read and written.
//!
//! Invariants: nothing on a device is ever overwritten in place but labels and root slots, and each of those has
//! another valid copy at every moment; a pool opens only from devices whose labels agree (same pool, same
//! generation, no number twice); a segment is handed out at most once until it is released.

mod content;
mod devices;
mod error;
mod labels;
mod lifecycle;
mod ondisk;
mod pool;
mod roots;
mod space;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use content::Content;
pub use devices::{CounterValues, DeviceInfo, DeviceState, Parallelism, SegmentRead, SegmentWrite};
pub use error::PoolError;
pub use labels::{FrontDamage, mark_destroyed};
pub use lifecycle::{
    CreateOptions, DeviceAdd, FoundDevice, FoundPool, OpenOptions, check_device_size, is_pool_member, scan,
};
pub use ondisk::{
    COPIES_MAX, DEFAULT_SEGMENT_BYTES, DEVICE_BYTES_MIN, HIGH_WATER_DEFAULT, LABEL_BYTES, LOW_WATER_DEFAULT,
    Label, LabelError, Landing, Member, PROPERTIES_BYTES_MAX, PoolState, Presence, ROOT_BYTES_MAX,
    SEGMENT_AREA_OFFSET, SegmentId, SegmentKind, SegmentRange, TierSettings, landing_tier,
};
pub use pool::Pool;
pub use space::{ContentRoom, Freed, Request, TierChoice, TierInfo};

/// The identity of a pool: 128 random bits.
pub type PoolId = [u8; 16];

/// An identity as people see it: 32 hexadecimal digits.
pub fn format_id(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
