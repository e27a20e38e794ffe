//! `Format`: the format version of a pool, as its root says it, and what may be written because of it.
//!
//! Invariants: a pool keeps the version that it has until somebody asks for a newer one; nothing that an older program cannot read
//! is written before both root slots of each device say the newer one.

use std::sync::atomic::{AtomicU8, Ordering};

/// The newest version: what new pools get.
pub const FORMAT_NEWEST: u8 = 4;
/// The oldest version that is read; earlier ones came before the first release.
pub const FORMAT_OLDEST: u8 = 3;
/// From this one on inodes may have preallocated ranges, and the counters of datasets their sums.
const FORMAT_PREALLOCATION: u8 = 4;

/// What each version brings that came after the oldest, in words.
pub const FORMATS: [(u8, &str); 1] = [(
    FORMAT_PREALLOCATION,
    "'fallocate' sets room aside: what is written to such a range is not refused for want of room; on older pools it is not \
     supported",
)];

/// The version of an open pool.
#[derive(Debug)]
pub(crate) struct Format {
    /// That of the next root.
    wanted: AtomicU8,
    /// That of the newest root, and of those that it was written over.
    durable: AtomicU8,
}

impl Format {
    /// A pool of this version.
    pub(crate) fn of(version: u8) -> Self {
        Self {
            wanted: version.into(),
            durable: version.into(),
        }
    }

    /// The version that the next root shall have.
    pub(crate) fn wanted(&self) -> u8 {
        self.wanted.load(Ordering::Acquire)
    }

    /// The next root shall have this version.
    pub(crate) fn want(&self, version: u8) {
        self.wanted.store(version, Ordering::Release);
    }

    /// The version that all roots have.
    pub(crate) fn durable(&self) -> u8 {
        self.durable.load(Ordering::Acquire)
    }

    /// Roots of this version are durable in every slot.
    pub(crate) fn set_durable(&self, version: u8) {
        self.durable.store(version, Ordering::Release);
    }

    /// Whether files may have preallocated ranges.
    pub(crate) fn has_preallocation(&self) -> bool {
        self.durable() >= FORMAT_PREALLOCATION
    }
}
