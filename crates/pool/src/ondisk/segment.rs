//! The unit of allocation on a device.

/// A segment of a pool: the device's number and the index on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// Number of the device in the pool.
    pub device: u16,
    /// Index of the segment on the device, from 0.
    pub index: u32,
}

impl SegmentId {
    /// Both parts in one number that orders as the pair does.
    pub fn to_u64(self) -> u64 {
        u64::from(self.device) << 32 | u64::from(self.index)
    }

    /// The reverse of [`Self::to_u64`]; `None` if the number is of no segment.
    pub fn from_u64(value: u64) -> Option<Self> {
        Some(Self {
            device: u16::try_from(value >> 32).ok()?,
            index: value as u32,
        })
    }
}

impl std::fmt::Display for SegmentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.device, self.index)
    }
}

/// The segments of a device from an index on: what is to be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRange {
    /// Number of the device in the pool.
    pub device: u16,
    /// The first of them; 0: all.
    pub from: u32,
}

impl SegmentRange {
    /// All segments of a device.
    pub fn whole(device: u16) -> Self {
        Self { device, from: 0 }
    }

    /// Whether this is one of them.
    pub fn contains(&self, segment: SegmentId) -> bool {
        segment.device == self.device && segment.index >= self.from
    }
}

/// What a segment is to hold; decides nothing on the device, only where one is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// Chunks.
    Data,
    /// Runs of the metadata tree.
    Metadata,
    /// Entries of the log.
    Log,
}
