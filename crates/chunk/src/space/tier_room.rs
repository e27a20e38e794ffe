//! `TierRoom`: how much room a tier has, how much of it is garbage, and how soon that must be brought back.
//!
//! Invariants: everything is counted from memory, in time that depends on the devices and not on what lies on them; of a tier
//! only the devices count that take something new; garbage
//! that is hardly worth its compaction is no reason to hurry. What nothing refers to any more and is not reclaimed yet counts as
//! garbage of each tier that it may lie on: content would else sink, or land elsewhere, for what is dead. A tier is compacted before what lands has to go to a slower one:
//! the more was written over, the emptier are the segments by then, so not much earlier either (F2FS, Lee et al. 2015, cleans
//! on demand in the same way).

use super::watermarks::{PRESSED_PART, SHORT_PART, WORTH_PART};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TierRoom {
    pub(super) segments: u64,
    pub(super) free: u64,
    /// Free segments that are not for what lands.
    pub(super) floor: u64,
    pub(super) segment_bytes: u64,
    /// Committed and pending content.
    pub(super) live_bytes: u64,
    pub(super) garbage_bytes: u64,
}

impl TierRoom {
    /// At least so many segments stay free.
    pub(super) fn raise_floor(&mut self, segments: u64) {
        self.floor = self.floor.max(segments);
    }

    /// Beyond its floor, segments.
    fn beyond(&self) -> u64 {
        self.free.saturating_sub(self.floor)
    }

    fn part(&self, part: u64) -> u64 {
        (self.segments / part).max(1)
    }

    /// Whether compaction wins much.
    pub fn is_worth_it(&self) -> bool {
        self.garbage_bytes > (self.live_bytes / WORTH_PART).max(2 * self.segment_bytes)
    }

    /// Whether it is time to bring garbage back.
    pub fn is_short(&self) -> bool {
        self.beyond() < self.part(SHORT_PART).max(2)
    }

    /// Whether what lands finds no free segment here.
    pub fn is_at_floor(&self) -> bool {
        self.beyond() == 0
    }

    /// Whether garbage that is worth it should be brought back without regard for others.
    pub fn is_pressed(&self) -> bool {
        self.beyond() <= self.part(PRESSED_PART) && self.is_worth_it()
    }

    /// 1: there is no hurry, 0: it is pressed.
    pub fn throttle_share(&self) -> f64 {
        if !self.is_worth_it() {
            return 1.0;
        }
        let pressed = self.part(PRESSED_PART);
        let calm = 2 * self.part(SHORT_PART);
        let above = self.beyond().saturating_sub(pressed);
        (above as f64 / calm.saturating_sub(pressed).max(1) as f64).min(1.0)
    }

    /// Segments' worth of garbage.
    pub fn garbage_segments(&self) -> u64 {
        self.garbage_bytes / self.segment_bytes
    }

    /// Free segments.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Free bytes beyond the floor.
    pub fn landing_bytes(&self) -> u64 {
        self.beyond() * self.segment_bytes
    }

    /// Whether there is room for so many bytes of new content; garbage beyond one part in `garbage_part` of what lives is some.
    pub fn has_room_for(&self, bytes: u64, garbage_part: u64, mark: f64) -> bool {
        let no_room = (self.live_bytes / garbage_part.max(1)).max(2 * self.segment_bytes);
        let room = self.landing_bytes() + self.garbage_bytes.saturating_sub(no_room);
        let filled = self.segments.saturating_sub(self.free) * self.segment_bytes;
        let filled = filled.saturating_sub(self.garbage_bytes);
        let below_mark = (mark * (self.segments * self.segment_bytes) as f64) as u64;
        bytes <= room.min(below_mark.saturating_sub(filled))
    }

    /// Whether a segment can be taken for new content, beyond the floor and below the mark.
    pub fn has_room(&self, mark: f64) -> bool {
        let used = self.segments.saturating_sub(self.free);
        let filled = used.saturating_sub(self.garbage_segments());
        self.beyond() > 0 && (filled + 1) as f64 <= mark * self.segments as f64
    }

    /// Whether live content and metadata alone pass the mark above which new content goes to the next tier.
    pub fn is_above(&self, mark: f64) -> bool {
        let used = self.segments.saturating_sub(self.free);
        used.saturating_sub(self.garbage_segments()) as f64 >= mark * self.segments as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(free: u64, garbage_segments: u64) -> TierRoom {
        TierRoom {
            segments: 128,
            free,
            floor: 4,
            segment_bytes: 1 << 20,
            live_bytes: (128 - free - garbage_segments) << 20,
            garbage_bytes: garbage_segments << 20,
        }
    }

    #[test]
    fn what_is_worth_it_is_brought_back_the_sooner_the_less_is_free() {
        assert!(!room(30, 60).is_short() && room(30, 60).throttle_share() >= 1.0);
        let courtesies: Vec<f64> = (4..24).map(|free| room(free, 60).throttle_share()).collect();
        assert!(
            courtesies.is_sorted()
                && courtesies
                    .iter()
                    .any(|courtesy| *courtesy > 0.2 && *courtesy < 0.8)
        );
        assert!(room(11, 60).is_short() && !room(11, 60).is_pressed() && room(8, 60).is_pressed());
        assert!(room(4, 60).is_at_floor() && !room(5, 60).is_at_floor());
        assert!(room(4, 60).is_worth_it() && room(5, 60).throttle_share() <= 0.0);
        // A tier that is full of what lives waits for nobody in vain.
        assert!(
            !room(4, 10).is_worth_it() && !room(4, 10).is_pressed() && room(4, 10).throttle_share() >= 1.0
        );
        assert!(room(4, 10).is_above(0.85) && !room(4, 60).is_above(0.85));
    }

    #[test]
    fn garbage_is_room_as_far_as_it_is_worth_its_compaction() {
        let holds = |room: TierRoom, mib: u64, part, mark| room.has_room_for(mib << 20, part, mark);
        assert!(
            holds(room(14, 20), 10, 2, 1.0),
            "ten segments are free beyond the floor"
        );
        assert!(
            holds(room(6, 20), 2, 2, 1.0) && !holds(room(6, 20), 3, 2, 1.0),
            "garbage is a fifth of what lives"
        );
        // Three of twenty are beyond a sixth of the hundred and two.
        assert!(holds(room(6, 20), 5, 6, 1.0) && !holds(room(6, 20), 6, 6, 1.0));
        assert!(holds(room(6, 60), 10, 2, 1.0));
        // Of 64 segments up to the mark 62 live.
        assert!(holds(room(6, 60), 2, 2, 0.5) && !holds(room(6, 60), 3, 2, 0.5));
    }
}
