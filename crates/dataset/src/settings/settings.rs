//! `Settings`: the properties in force for one dataset, parsed once and read often.

use terrace_store::Compression;

use super::retention::Retention;

/// When a write is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Never committed while the pool runs; saved on clean stop.
    Ram,
    /// `fsync` returns at once; at most `commit_interval` is lost.
    Timed,
    /// `fsync` makes durable.
    #[default]
    Barrier,
    /// Every write and change of a name is durable before it returns.
    Sync,
}

/// The properties in force for one dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How chunks are compressed.
    pub compression: Compression,
    /// Whether equal chunks are shared.
    pub dedup: bool,
    /// Most content of one chunk, bytes: a power of two, 4096 to 131072.
    pub chunk_bytes: u32,
    /// The same for content that does not compress: not less. Such chunks are read by blocks, others as a whole.
    pub raw_chunk_bytes: u32,
    /// Logical block of a volume, bytes: 4096 or 512.
    pub block_bytes: u32,
    /// When a write is durable.
    pub durability: Durability,
    /// Seconds between two commits; `None`: as the pool.
    pub commit_interval_seconds: Option<u64>,
    /// Most content that this dataset and those below may map, bytes.
    pub quota_bytes: Option<u64>,
    /// Content for which room is kept, bytes.
    pub reservation_bytes: u64,
    /// Which checkpoints are held without a name.
    pub retention: Retention,
    /// Name of the tier on which new data is put and kept.
    pub pin: Option<String>,
    /// Number of that tier, fastest 0, if the pool has it.
    pub pin_tier: Option<u8>,
    /// Whether changes are refused.
    pub readonly: bool,
    /// Whether reading updates access times.
    pub access_time: bool,
    /// Whether a mount has extended attributes; looked at when it is mounted.
    pub extended_attributes: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compression: Compression::default(),
            dedup: true,
            chunk_bytes: 128 * 1024,
            raw_chunk_bytes: 128 * 1024,
            block_bytes: 4096,
            durability: Durability::default(),
            commit_interval_seconds: None,
            quota_bytes: None,
            reservation_bytes: 0,
            retention: Retention::default(),
            pin: None,
            pin_tier: None,
            readonly: false,
            access_time: false,
            extended_attributes: true,
        }
    }
}
