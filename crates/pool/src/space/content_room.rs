//! How much content free segments can hold, where each tier keeps as many copies as it is told to.
//!
//! Invariant: what is counted can be had: copies of one thing lie on different devices, so what is free on a device that the
//! others of its tier cannot match is not counted (see `Allocator`, which takes segments so that no less is left).

/// Free segments, as content can use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContentRoom {
    /// Segments, those of all copies.
    pub raw: u64,
    /// Segments' worth of content: each tier's free segments by the copies that it keeps.
    sets: u64,
    /// The fewest copies of a tier that has some.
    fewest_copies: u64,
}

impl ContentRoom {
    /// Counts one more tier, with so many free segments on each of its devices.
    pub(super) fn add(&mut self, free: Vec<u64>, copies: u8) {
        // With fewer devices a tier goes on with fewer copies.
        let copies = u64::from(copies).clamp(1, (free.len() as u64).max(1));
        self.add_sets(matched_sets(free, copies as usize), copies);
    }

    fn add_sets(&mut self, sets: u64, copies: u64) {
        if sets > 0 {
            self.raw += sets * copies;
            self.sets += sets;
            self.fewest_copies = match self.fewest_copies {
                0 => copies,
                fewest => fewest.min(copies),
            };
        }
    }

    /// Counts the tier of a device that leaves: each of the others has so many free segments, and gets some; beside the least of
    /// each, `anywhere` get free in all, nobody knows on which. What is counted can be had wherever that is.
    pub(super) fn add_with_freed(&mut self, devices: &[(u64, Freed)], anywhere: u64, copies: u8) {
        let copies = u64::from(copies).clamp(1, (devices.len() as u64).max(1));
        let sure: Vec<u64> = devices.iter().map(|(free, freed)| free + freed.least).collect();
        let with_more = devices.iter().zip(&sure);
        let with_more = with_more.map(|((_, freed), sure)| sure + freed.more.min(anywhere));
        let all = sure.iter().sum::<u64>() + anywhere;
        let sets = (0..copies as usize).map(|spared| {
            // All of it on those that have the most already.
            let fullest =
                (most(with_more.clone(), spared)).min(most(sure.iter().copied(), spared) + anywhere);
            all.saturating_sub(fullest) / (copies - spared as u64)
        });
        self.add_sets(sets.min().unwrap_or(0), copies);
    }

    /// Segments' worth of content if so many segments stay free, wherever these lie in the end.
    pub fn beyond(&self, reserve: u64) -> u64 {
        self.sets.saturating_sub(self.sets_of(reserve))
    }

    /// Segments' worth of content that is missing for so many segments to stay free.
    pub fn missing(&self, reserve: u64) -> u64 {
        self.sets_of(reserve).saturating_sub(self.sets)
    }

    fn sets_of(&self, reserve: u64) -> u64 {
        reserve.div_ceil(self.fewest_copies.max(1))
    }
}

/// Segments of a device that get free while another one leaves, as copies of what moves from there go with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Freed {
    /// So many at least.
    pub least: u64,
    /// So many more at most.
    pub more: u64,
}

/// How many sets of `copies` segments, each of a set on another device, these free segments give.
fn matched_sets(mut free: Vec<u64>, copies: usize) -> u64 {
    free.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
    // Even if each set takes one from each of the fullest `spared` devices, the others must give the rest.
    let sets = (0..copies).map(|spared| {
        let others: u64 = free.iter().skip(spared).sum();
        others / (copies - spared) as u64
    });
    sets.min().unwrap_or(0)
}

/// The sum of the `count` largest.
fn most(numbers: impl Iterator<Item = u64>, count: usize) -> u64 {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
    numbers.iter().take(count).sum()
}

/// Whether a device with `free` segments must give one to every set of which `missing` are to be found on devices that have
/// `all` free together, or what it has free beyond the others' would be of no use.
pub(super) fn must_give(free: u64, all: u64, missing: u64) -> bool {
    free * missing >= all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(free: Vec<u64>, copies: u8) -> u64 {
        let mut room = ContentRoom::default();
        room.add(free, copies);
        room.raw
    }

    #[test]
    fn only_what_has_a_match_on_another_device_counts() {
        assert_eq!(matched(vec![], 2), 0);
        assert_eq!(matched(vec![7], 1), 7);
        assert_eq!(matched(vec![7], 2), 7, "one device goes on with one copy");
        assert_eq!(matched(vec![20, 10], 1), 30);
        assert_eq!(matched(vec![20, 10], 2), 20);
        assert_eq!(matched(vec![20, 0], 2), 0);
        assert_eq!(matched(vec![5, 4, 4], 2), 12);
        assert_eq!(matched(vec![9, 2, 2], 3), 6);
    }

    #[test]
    fn what_gets_free_somewhere_counts_as_far_as_it_can_be_had_wherever_that_is() {
        let sets = |devices: &[(u64, u64, u64)], anywhere, copies| {
            let devices = devices.iter();
            let devices = devices.map(|(free, least, more)| {
                let (least, more) = (*least, *more);
                (*free, Freed { least, more })
            });
            let mut room = ContentRoom::default();
            room.add_with_freed(&devices.collect::<Vec<_>>(), anywhere, copies);
            room.beyond(0)
        };
        assert_eq!(sets(&[(7, 0, 0), (9, 2, 0)], 0, 2), 7);
        assert_eq!(sets(&[(7, 3, 0), (9, 2, 0)], 0, 2), 10);
        // One copy goes anywhere.
        assert_eq!(sets(&[(7, 0, 5), (9, 0, 5)], 5, 1), 21);
        // It may all be on the one that has more already, or as much of it as can be.
        assert_eq!(sets(&[(7, 0, 5), (9, 0, 5)], 5, 2), 7);
        assert_eq!(sets(&[(7, 0, 5), (9, 0, 1)], 5, 2), 9);
        assert_eq!(sets(&[(7, 0, 5), (9, 0, 5)], 1, 2), 7);
        assert_eq!(sets(&[(7, 1, 4), (9, 0, 4)], 4, 2), 8);
        assert_eq!(sets(&[(40, 0, 60), (40, 0, 60), (40, 0, 60)], 60, 2), 80);
        // A third copy beside two that have enough.
        assert_eq!(sets(&[(16, 0, 28), (9, 0, 28), (32, 0, 28)], 56, 3), 9);
        assert_eq!(sets(&[], 0, 2), 0);
    }

    #[test]
    fn each_tier_counts_with_its_own_copies_and_the_reserve_where_it_costs_most() {
        let mut room = ContentRoom::default();
        room.add(vec![100, 100], 2);
        room.add(vec![300], 1);
        assert_eq!((room.raw, room.beyond(0), room.beyond(8)), (500, 400, 392));
        let mut room = ContentRoom::default();
        room.add(vec![100, 100], 2);
        room.add(vec![], 1);
        assert_eq!((room.beyond(0), room.beyond(9)), (100, 95));
        assert_eq!((room.missing(200), room.missing(205)), (0, 3));
        assert_eq!(ContentRoom::default().beyond(3), 0);
        assert_eq!(ContentRoom::default().missing(3), 3);
    }
}
