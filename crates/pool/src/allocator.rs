//! Which segments are free.

use crate::SegmentKind;

/// From which tier a segment is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TierChoice {
    /// The fastest tier below its high-water mark; when all are above, the fastest with a free segment.
    Fastest,
    /// The tier whose `landing` setting is on (else as `Fastest`), overflowing to slower, then to faster ones.
    Sequential,
    /// This tier; overflows to slower, then faster ones unless `strict`.
    Tier {
        /// Index, 0 is the fastest.
        tier: u8,
        /// Fail rather than take another tier; the high-water mark is ignored.
        strict: bool,
    },
}

/// A segment that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Which tier.
    pub choice: TierChoice,
    /// What for.
    pub kind: SegmentKind,
    /// Devices that must not be used (they hold the other copies).
    pub avoid: &'a [u16],
    /// Fail with `NoSpace` rather than let the pool have fewer free segments than this afterwards (the reserve).
    pub leave_free: u64,
}
