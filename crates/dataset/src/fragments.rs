//! `Fragments`: regions that commits left in many pieces, until they have come to rest.
//!
//! Invariants: bounded: beyond [`FRAGMENTS_MAX`] nothing more is noticed until some were taken; a region that is written
//! again waits anew; it is a hint, in RAM only: nothing is lost with it but the layout of what nobody writes any more.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Regions that are noticed at most: 16 GiB of content.
const FRAGMENTS_MAX: usize = 16_384;

/// A region to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fragment {
    /// Dataset.
    pub dataset: u32,
    /// The number under which its regions stand.
    pub body: u64,
    /// Which of them.
    pub region: u64,
    /// The object.
    pub object: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Fragments {
    noticed: Mutex<BTreeMap<Fragment, u64>>,
}

impl Fragments {
    /// A commit left this region in pieces, at this time (nanoseconds of the monotonic clock).
    pub fn note(&self, fragment: Fragment, now: u64) {
        let mut noticed = self.noticed.lock();
        if noticed.len() < FRAGMENTS_MAX || noticed.contains_key(&fragment) {
            noticed.insert(fragment, now);
        }
    }

    /// Takes up to `limit` regions that no commit has changed since `before`, neighbours together.
    pub fn take(&self, before: u64, limit: usize) -> Vec<Fragment> {
        let mut noticed = self.noticed.lock();
        let due = noticed.iter().filter(|(_, at)| **at <= before);
        let due: Vec<Fragment> = due.map(|(fragment, _)| *fragment).take(limit).collect();
        for fragment in &due {
            noticed.remove(fragment);
        }
        due
    }

    /// How many are noticed.
    pub fn count(&self) -> usize {
        self.noticed.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rests_is_taken_and_no_more_is_kept_than_there_is_room_for() {
        let fragments = Fragments::default();
        let at = |region| Fragment {
            dataset: 1,
            body: 2,
            region,
            object: 2,
        };
        for region in 0..2 * FRAGMENTS_MAX as u64 {
            fragments.note(at(region), 10);
        }
        assert_eq!(fragments.count(), FRAGMENTS_MAX);
        fragments.note(at(1), 20);
        assert_eq!(fragments.take(10, 2), [at(0), at(2)]);
        assert_eq!(fragments.take(9, 2), []);
        assert_eq!(fragments.take(20, 1), [at(1)]);
    }
}
