//! `ByHand`: what somebody moved down by hand, so that heat does not bring it up again as soon as it is there.
//!
//! Invariants: such an object stays down for [`MINUTES`], or until it was read half as much again as before the move; how
//! much that was is forgotten with the move, so that later it comes up for what it is read then; what was hardly read is
//! not noted: it comes up like anything else. Bounded, and in RAM only: after a restart it needs no more than the usual reads.

use std::collections::BTreeMap;

use terrace_cache::{HALF_LIFE_MINUTES, Heat};

/// Minutes for which it stays at most.
const MINUTES: u32 = 30;
/// Of the reads before the move, the part that brings it up before that.
const PART: f32 = 0.5;
/// Objects that are noted at most; of more, those that were moved first.
const OBJECTS_MAX: usize = 4096;

struct Moved {
    at_minutes: u32,
    /// Reads before the move, decayed until then.
    reads: f32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct ByHand {
    objects: BTreeMap<(u32, u64), Moved>,
}

impl ByHand {
    /// A region of this object is on its way down, and was read this often before.
    pub(crate) fn note(&mut self, dataset: u32, body: u64, reads: f32, minutes: u32) {
        if reads <= 0.0 || self.objects.len() >= OBJECTS_MAX && !self.objects.contains_key(&(dataset, body)) {
            return;
        }
        let moved = self.objects.entry((dataset, body)).or_insert(Moved {
            at_minutes: minutes,
            reads: 0.0,
        });
        moved.at_minutes = minutes;
        moved.reads += reads;
    }

    /// Somebody moves this object up, or elsewhere (0: all of the dataset): no longer held.
    pub(crate) fn release(&mut self, dataset: u32, body: u64) {
        self.objects
            .retain(|place, _| place.0 != dataset || body != 0 && place.1 != body);
    }

    /// Lets go of what has stayed long enough, and of what is read so much that it should not.
    pub(crate) fn look(&mut self, heat: &Heat, minutes: u32) {
        self.objects.retain(|(dataset, body), moved| {
            let since = minutes.saturating_sub(moved.at_minutes);
            let decayed = moved.reads * 0.5f32.powf(since as f32 / HALF_LIFE_MINUTES as f32);
            since < MINUTES && heat.reads_of(*dataset, *body, minutes) < decayed * PART
        });
    }

    /// Whether this object stays where it is for now.
    pub(crate) fn holds(&self, dataset: u32, body: u64) -> bool {
        self.objects.contains_key(&(dataset, body))
    }
}

#[cfg(test)]
mod tests {
    use terrace_cache::Access;

    use super::*;

    #[test]
    fn it_holds_for_a_while_or_until_it_is_read_as_before() {
        let heat = Heat::new(1000);
        let mut by_hand = ByHand::default();
        by_hand.note(1, 2, 30.0, 100);
        by_hand.note(1, 2, 10.0, 100);
        by_hand.note(1, 3, 0.0, 100);
        assert!(by_hand.holds(1, 2) && !by_hand.holds(1, 3));
        heat.record(1, 2, 0, Access::Read, 15.0, 101);
        heat.record(1, 2, 7, Access::Read, 4.0, 101);
        by_hand.look(&heat, 101);
        assert!(by_hand.holds(1, 2), "19 of 40");
        heat.record(1, 2, 7, Access::Read, 1.0, 101);
        by_hand.look(&heat, 101);
        assert!(!by_hand.holds(1, 2));
        by_hand.note(1, 2, 30.0, 200);
        by_hand.look(&heat, 200 + MINUTES - 1);
        assert!(by_hand.holds(1, 2));
        by_hand.look(&heat, 200 + MINUTES);
        assert!(!by_hand.holds(1, 2));
        (0..2 * OBJECTS_MAX as u64).for_each(|body| by_hand.note(1, body, 1.0, 200));
        assert_eq!(by_hand.objects.len(), OBJECTS_MAX);
        by_hand.release(1, 7);
        assert!(!by_hand.holds(1, 7) && by_hand.holds(1, 8));
        by_hand.release(1, 0);
        assert!(!by_hand.holds(1, 8));
    }
}
