//! The label.

use std::collections::BTreeMap;

use crate::{PoolId, TierSettings};

/// Bytes that the properties of a pool may take in the label.
pub const PROPERTIES_BYTES_MAX: usize = 16 * 1024;

/// Whether a pool is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolState {
    /// In use by this machine, or was when it stopped.
    Active,
    /// Closed for good by `pool export`; `import` makes it active again.
    Exported,
    /// Given up by `pool destroy`.
    Destroyed,
}

/// A device as every label of the pool lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Number in the pool, never used twice.
    pub number: u16,
    /// Identity of the device.
    pub id: [u8; 16],
    /// Tier, 0 is the fastest.
    pub tier: u8,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Where it was last seen; a hint for messages only.
    pub path: String,
}

/// What a label says.
#[derive(Debug, Clone, PartialEq)]
pub struct Label {
    /// Identity of the pool.
    pub pool_id: PoolId,
    /// Name of the pool.
    pub pool_name: String,
    /// State of the pool.
    pub state: PoolState,
    /// Grows with every change of the labels.
    pub generation: u64,
    /// Number of the device that carries this label.
    pub number: u16,
    /// Number that the next device added gets.
    pub next_number: u16,
    /// Segment size in bytes.
    pub segment_bytes: u32,
    /// When the pool was made, nanoseconds since 1970.
    pub created_nanoseconds: u64,
    /// Tiers, fastest first.
    pub tiers: Vec<TierSettings>,
    /// All devices, ascending by number.
    pub members: Vec<Member>,
    /// Properties of the pool.
    pub properties: BTreeMap<String, String>,
}

/// Why bytes are not a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// No magic.
    #[error("there is no Terrace label on it")]
    NotALabel,
    /// The sum does not match.
    #[error("its label is damaged in every copy")]
    Damaged,
    /// Written by a newer program.
    #[error("its label has format version {0}, newer than this program knows; use a newer terrace")]
    Version(u32),
    /// Sum right, content wrong.
    #[error("its label makes no sense: {0}")]
    Invalid(String),
}
