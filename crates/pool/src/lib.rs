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
mod space;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use content::Content;
pub use devices::DeviceInfo;
pub use devices::{CounterValues, DeviceState};
pub use error::PoolError;
pub use labels::FrontDamage;
pub use labels::Presence;
pub use labels::mark_destroyed;
pub use lifecycle::DeviceAdd;
pub use lifecycle::{CreateOptions, OpenOptions, check_device_size};
pub use lifecycle::{FoundDevice, FoundPool, is_pool_member, scan};
pub use ondisk::ROOT_BYTES_MAX;
pub use ondisk::{COPIES_MAX, HIGH_WATER_DEFAULT, LOW_WATER_DEFAULT, TierSettings};
pub use ondisk::{DEFAULT_SEGMENT_BYTES, DEVICE_BYTES_MIN, LABEL_BYTES, SEGMENT_AREA_OFFSET};
pub use ondisk::{Label, LabelError, Member, PROPERTIES_BYTES_MAX, PoolState};
pub use ondisk::{SegmentId, SegmentKind, SegmentRange, SegmentRead, SegmentWrite};
pub use pool::{Parallelism, Pool, TierInfo};
pub use space::{ContentRoom, Freed};
pub use space::{Landing, landing_tier};
pub use space::{Request, TierChoice};

/// The identity of a pool: 128 random bits.
pub type PoolId = [u8; 16];

/// An identity as people see it: 32 hexadecimal digits.
pub fn format_id(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
