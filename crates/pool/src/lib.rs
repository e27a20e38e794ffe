//! Devices made into one pool: labels that describe it, root slots, and segments to be allocated, read and written.
//!
//! Invariants: nothing on a device is ever overwritten in place but labels and root slots, and each of those has
//! another valid copy at every moment; a pool opens only from devices whose labels agree (same pool, same
//! generation, no number twice); a segment is handed out at most once until it is released.

mod allocator;
mod change;
mod content;
mod content_room;
mod copies;
mod counters;
mod disown;
mod error;
mod flusher;
mod fronts;
mod label;
mod labels;
mod landing;
mod layout;
mod member;
mod open;
mod patient_read;
mod pool;
mod presence;
mod relabel;
mod root;
mod roots;
mod scan;
mod segment;
mod tier;
mod watch;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use allocator::{Request, TierChoice};
pub use change::DeviceAdd;
pub use content::Content;
pub use content_room::{ContentRoom, Freed};
pub use counters::{CounterValues, DeviceState};
pub use disown::mark_destroyed;
pub use error::PoolError;
pub use fronts::FrontDamage;
pub use label::{Label, LabelError, Member, PROPERTIES_BYTES_MAX, PoolState};
pub use landing::{Landing, landing_tier};
pub use layout::{DEFAULT_SEGMENT_BYTES, DEVICE_BYTES_MIN, LABEL_BYTES, SEGMENT_AREA_OFFSET};
pub use member::DeviceInfo;
pub use open::{CreateOptions, OpenOptions, check_device_size};
pub use pool::{Parallelism, Pool, TierInfo};
pub use presence::Presence;
pub use root::ROOT_BYTES_MAX;
pub use scan::{FoundDevice, FoundPool, is_pool_member, scan};
pub use segment::{SegmentId, SegmentKind, SegmentRange, SegmentRead, SegmentWrite};
pub use tier::{COPIES_MAX, HIGH_WATER_DEFAULT, LOW_WATER_DEFAULT, TierSettings};

/// The identity of a pool: 128 random bits.
pub type PoolId = [u8; 16];

/// An identity as people see it: 32 hexadecimal digits.
pub fn format_id(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
