//! On disk: what labels, roots and segments are in bytes, where they lie, and how they are read.
//!
//! Owns nothing: every function depends on its arguments alone.

mod label;
mod label_copies;
mod landing;
mod layout;
mod patient_read;
mod presence;
pub(crate) mod root;
mod segment;
mod tier;

pub use label::{Label, LabelError, Member, PROPERTIES_BYTES_MAX, PoolState};
pub use landing::{Landing, landing_tier};
pub use layout::{DEFAULT_SEGMENT_BYTES, DEVICE_BYTES_MIN, LABEL_BYTES, SEGMENT_AREA_OFFSET};
pub use presence::Presence;
pub use root::ROOT_BYTES_MAX;
pub use segment::{SegmentId, SegmentKind, SegmentRange};
pub use tier::{COPIES_MAX, HIGH_WATER_DEFAULT, LOW_WATER_DEFAULT, TierSettings};

pub(crate) use label::{MEMBERS_MAX, TIERS_MAX};
pub(crate) use label_copies::LabelCopies;
pub(crate) use landing::take_from_others;
pub(crate) use layout::{
    LABEL_OFFSETS, ROOT_OFFSETS, SEGMENTS_MIN, choose_segment_bytes, end_label_offset, segment_count,
};
pub(crate) use patient_read::read_patiently;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use root::decode_root;
pub(crate) use root::{NewerRoot, Slot, encode_root, read_root_slots, read_slot};
