//! Watermarks: every threshold of free space, of the log and of records that wait for tables, in one table.
//!
//! Segments of the pool that stay free, by who takes some (0082; `docs/architecture.md` has the same table in words):
//!
//! | who | leaves free |
//! |---|---|
//! | a reservation for new content | [`reserve`](Watermarks::reserve) and [`freed_only`](Watermarks::freed_only) |
//! | the same, by who has freed as much | `reserve` |
//! | the same as a last resort, where it was promised | [`promised`](Watermarks::promised), 7/8 of it |
//! | the same for what gives back more than it takes | [`gain`](Watermarks::gain), 6/8 |
//! | changes of records without a reservation | so many [eighths](Watermarks::eighths) |
//! | a segment for content without a reservation | `reserve` |
//! | the same with one, and for what is moved | [`accepted`](Watermarks::accepted), 1/4 |
//! | tables | what the log needs for batches that were accepted |
//! | the log | nothing |
//!
//! Invariants: pure arithmetic, nothing here asks for anything or changes anything; who wants to know whether a threshold is reached
//! asks [`SpaceView`](super::SpaceView) (`checks.rs`, `landing.rs`) or [`TierRoom`](super::TierRoom).

/// Segments beyond the reserve, for each copy of metadata, that only those get who freed as much; and the most as a part of the reserve
/// and of the pool, so that a small pool stays one for content.
const FREED_ONLY: u64 = 2;
const FREED_ONLY_RESERVE_PART: u64 = 2;
const FREED_ONLY_POOL_PART: u64 = 16;

/// Of a tier, the part that what is moved there leaves free, and how many segments at least: the log, metadata and compaction need them.
const MOVES_LEAVE_PART: u64 = 16;
const MOVES_LEAVE_MIN: u64 = 2;

/// Of the live content of a tier, the part that garbage must be for compaction to win much.
pub(super) const WORTH_PART: u64 = 8;
/// Of a tier, the part beyond its floor below which it is compacted, and the part below which that waits for nobody.
pub(super) const SHORT_PART: u64 = 16;
pub(super) const PRESSED_PART: u64 = 32;

/// The shortest log at which a checkpoint is due, bytes; and the longest, as parts of the pool and of its fastest tier.
const LOG_BYTES_MIN: u64 = 64 << 10;
const LOG_POOL_PART: u64 = 16;
const LOG_TIER_PART: u64 = 32;

/// What the log keeps for background work at most, bytes; a quarter of a segment where these are small.
const LOG_MARGIN_BYTES_MAX: u64 = 1 << 20;
const LOG_MARGIN_SEGMENT_PART: u64 = 4;

/// How full of records memory is, or how deep the tables are, from when on work is in a hurry and commits are slowed; 1: full.
const LOADED_PRESSURE: f64 = 0.5;
pub(crate) const THROTTLED_PRESSURE: f64 = 0.75;
const FULL_PRESSURE: f64 = 1.0;

/// How many copies log and metadata have on a pool of so many devices.
pub(super) fn metadata_copies(devices: usize) -> u64 {
    devices.clamp(1, 2) as u64
}

/// Segments of a pool that stay free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watermarks {
    reserve: u64,
    freed_only: u64,
}

impl Watermarks {
    /// Those of a pool of `total` segments on so many devices, of which `staying` lie on devices that are not being emptied. What
    /// such a device holds takes none of the reserve, and counts no more.
    pub(super) fn new(staying: u64, total: u64, devices: usize) -> Self {
        Self::of_reserve(Self::reserve_of(staying), total, devices)
    }

    /// Those of a pool with this reserve.
    pub(super) fn of_reserve(reserve: u64, total: u64, devices: usize) -> Self {
        let freed_only = (FREED_ONLY * metadata_copies(devices))
            .min(reserve / FREED_ONLY_RESERVE_PART)
            .min(total / FREED_ONLY_POOL_PART);
        Self { reserve, freed_only }
    }

    /// The reserve of a pool of so many segments. A third of a very small one, where tables alone need several for a checkpoint.
    pub(super) fn reserve_of(total: u64) -> u64 {
        let small = (total / 20).clamp(8, 64);
        (total / 50).max(small).min(total / 3)
    }

    /// The reserve: what ordinary writers leave free for the log, metadata, deletion and compaction.
    pub(crate) fn reserve(self) -> u64 {
        self.reserve
    }

    /// Segments beyond the reserve that only those get who freed as much. Tables and the log lie on two devices where there are two.
    pub(crate) fn freed_only(self) -> u64 {
        self.freed_only
    }

    /// So many eighths of the reserve, rounded up.
    fn eighths(self, eighths: u64) -> u64 {
        (self.reserve * eighths).div_ceil(8)
    }

    /// So many eighths of the reserve and of what is for those who freed as much: for changes of records that nothing was reserved for.
    pub(super) fn eighths_for_changes(self, eighths: u64) -> u64 {
        ((self.reserve + self.freed_only) * eighths).div_ceil(8)
    }

    /// More than what gives space back may take: who writes leaves something to work in.
    pub(crate) fn promised(self) -> u64 {
        self.eighths(7)
    }

    /// For relayouts that give back more than they take.
    pub(crate) fn gain(self) -> u64 {
        self.eighths(6)
    }

    /// What no content may take, whoever writes it: without one segment for tables no checkpoint could be made, and nothing be freed
    /// any more.
    pub(crate) fn accepted(self) -> u64 {
        (self.reserve / 4).max(1)
    }

    /// What a segment for content leaves free: less where space for it was reserved, or where it is moved.
    pub(crate) fn of_segment(self, is_accepted: bool) -> u64 {
        match is_accepted {
            true => self.accepted(),
            false => self.reserve,
        }
    }

    /// With less free than this a checkpoint comes early, as it gives back log and tables.
    pub(super) fn checkpoint(self) -> u64 {
        self.reserve
    }

    /// With less free than this each tier is compacted, whether it is short by itself or not.
    pub(super) fn compaction(self) -> u64 {
        self.reserve * 2 + 2
    }

    /// With less free than this background work gives way to nobody, and no second copy of metadata is made by itself.
    pub(crate) fn low(self) -> u64 {
        self.reserve * 3
    }
}

/// Of so many segments of a tier, those that what is moved there leaves free.
pub(super) fn left_by_moves(segments: u64) -> u64 {
    (segments / MOVES_LEAVE_PART).max(MOVES_LEAVE_MIN)
}

/// Log length at which a checkpoint is due, bytes: less than `most` on a small pool or fast tier, so that the log does not fill it.
pub(super) fn log_limit(most: u64, pool_bytes: u64, fastest_bytes: u64) -> u64 {
    most.min(pool_bytes / LOG_POOL_PART)
        .min(fastest_bytes / LOG_TIER_PART)
        .max(LOG_BYTES_MIN)
}

/// How much of what the log keeps for background work stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Margin {
    /// All of it: for who writes.
    All,
    /// Half: for what destroys, and for background work.
    Half,
}

impl Margin {
    /// Bytes, with segments of this size.
    pub(super) fn bytes(self, segment_bytes: u64) -> u64 {
        let all = (segment_bytes / LOG_MARGIN_SEGMENT_PART).min(LOG_MARGIN_BYTES_MAX);
        match self {
            Self::All => all,
            Self::Half => all / 2,
        }
    }
}

/// How far tables and checkpoints are behind commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backlog {
    /// Not far.
    Small,
    /// Records come faster than they are written into tables: merges come first.
    Loaded,
    /// Commits are slowed.
    Throttled,
    /// Who commits works for it.
    Full,
}

impl Backlog {
    /// That of a log of so many bytes, where a checkpoint is due at `log_limit`, and of this pressure of records.
    pub(super) fn of(pressure: f64, log_bytes: u64, log_limit: u64) -> Self {
        if pressure >= FULL_PRESSURE || log_bytes >= log_limit * 3 {
            Self::Full
        } else if pressure >= THROTTLED_PRESSURE || log_bytes >= log_limit * 2 {
            Self::Throttled
        } else if pressure > LOADED_PRESSURE || log_bytes > log_limit / 2 * 3 {
            Self::Loaded
        } else {
            Self::Small
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_gain_lowers_the_mark() {
        for total in [3, 24, 30, 64, 128, 500, 2_000, 655_000] {
            for devices in [1, 2, 5] {
                let marks = Watermarks::new(total, total, devices);
                let content = marks.reserve() + marks.freed_only();
                let by_right = [
                    content,
                    marks.reserve(),
                    marks.promised(),
                    marks.gain(),
                    marks.accepted(),
                ];
                assert!(
                    by_right.is_sorted_by(|more, less| more >= less),
                    "{total}: {marks:?}"
                );
                assert!(marks.accepted() > 0 && content <= total / 2, "{total}: {marks:?}");
                assert!(marks.checkpoint() <= marks.compaction() && marks.reserve() <= marks.low());
            }
        }
    }

    #[test]
    fn the_reserve_is_a_twentieth_of_a_small_pool_and_a_fiftieth_of_a_large_one() {
        assert_eq!(
            [24, 128, 1_000, 10_000].map(Watermarks::reserve_of),
            [8, 8, 50, 200]
        );
        assert_eq!(
            [3, 15].map(Watermarks::reserve_of),
            [1, 5],
            "a third of a tiny one"
        );
    }

    #[test]
    fn a_backlog_grows_with_the_log_and_with_records() {
        let by_log = [100, 151, 200, 300].map(|bytes| Backlog::of(0.0, bytes, 100));
        let by_records = [0.5, 0.6, 0.75, 1.0].map(|pressure| Backlog::of(pressure, 0, 100));
        let all = [Backlog::Small, Backlog::Loaded, Backlog::Throttled, Backlog::Full];
        assert_eq!(by_log, all);
        assert_eq!(by_records, all);
        assert!(all.is_sorted());
    }
}
