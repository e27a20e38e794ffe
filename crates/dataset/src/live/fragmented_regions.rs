//! `Fragments`: regions that commits left in many pieces, until they have come to rest.
//!
//! Invariants: bounded: beyond [`FRAGMENTS_MAX`] nothing more is noticed until some were taken; a region that is written
//! again waits anew; of the early ones those come first of which most was written over (greedy, as segments are cleaned), and those of
//! which as much was go round; what was taken early and put back is not taken early again unless as much of it was written over
//! in between; a reader in order counts for what lies there until
//! the next commit changes it; it is a hint, kept in records so that it outlasts a restart (what was noticed rests anew then): nothing is lost with it but the
//! layout of what nobody writes any more.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
};

use terrace_codec::{Reader, Writer};
use terrace_sync::{Mutex, rank};

/// Regions that are noticed at most: 16 GiB of content.
const FRAGMENTS_MAX: usize = 16_384;

/// Of a record: what an object has beyond it is in RAM only.
const RECORD_BYTES_MAX: usize = 64 << 10;

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

/// A region of which all was written over, or nobody knows how much, in [`part_of`].
pub const WHOLE_PART: u16 = 256;

/// So many of so many blocks, in 256ths.
pub fn part_of(blocks: u32, of: u32) -> u16 {
    (blocks.min(of) * u32::from(WHOLE_PART) / of.max(1)) as u16
}

/// Since when a region rests.
#[derive(Debug, Clone, Copy)]
struct Noticed {
    at: u64,
    /// How much of it commits have written over in chunks of which others lived on, since it was last looked at, in 256ths; what is
    /// written over again counts again.
    part: u16,
    /// It was looked at before it had rested.
    early: bool,
    /// The same for readers in order.
    for_readers: bool,
}

impl Noticed {
    fn new(at: u64, part: u16) -> Self {
        Self {
            at,
            part,
            early: false,
            for_readers: false,
        }
    }
}

/// Dataset, body and object.
type Place = (u32, u64, u64);

impl Fragment {
    fn place(&self) -> Place {
        (self.dataset, self.body, self.object)
    }
}

/// What is noticed of an object, to be kept: `None` if there is nothing any more.
#[derive(Debug, PartialEq, Eq)]
pub struct FragmentRecord {
    /// Dataset.
    pub dataset: u32,
    /// The number under which its regions stand.
    pub body: u64,
    /// The object.
    pub object: u64,
    /// Its regions, encoded.
    pub regions: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Inner {
    noticed: BTreeMap<Fragment, Noticed>,
    /// Those of them that were read in order since a commit left them.
    read: BTreeSet<Fragment>,
    /// Whose regions are others than the records say.
    changed: BTreeSet<Place>,
    /// When a commit last left any in pieces.
    noted: u64,
    /// The last one that was taken early.
    last_early: Option<Fragment>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Fragments {
    inner: Mutex<Inner, rank::Leaf>,
}

impl Fragments {
    /// A commit left this region in pieces, and this `part` of it dead in chunks that live on ([`part_of`], [`WHOLE_PART`] where that is
    /// not known), at this time (nanoseconds of the monotonic clock).
    pub fn note(&self, fragment: Fragment, part: u16, now: u64) {
        let mut noticed = Noticed::new(now, part.min(WHOLE_PART));
        let mut inner = self.inner.lock();
        inner.noted = now;
        inner.read.remove(&fragment);
        if let Some(known) = inner.noticed.get_mut(&fragment) {
            if !known.early {
                noticed.part = noticed.part.saturating_add(known.part).min(WHOLE_PART);
            }
            *known = noticed;
        } else {
            inner.add(fragment, noticed);
        }
    }

    /// Takes up to `limit` regions that no commit has changed since `before`, neighbours together.
    pub fn take(&self, before: u64, limit: usize) -> Vec<Fragment> {
        let mut inner = self.inner.lock();
        let due = inner.noticed.iter().filter(|(_, noticed)| noticed.at <= before);
        let due: Vec<Fragment> = due.map(|(fragment, _)| *fragment).take(limit).collect();
        due.iter().for_each(|fragment| inner.remove(fragment));
        due
    }

    /// Somebody reads this region in order: if a commit left it in pieces, he waits for each of them.
    pub fn note_read(&self, fragment: Fragment) {
        let mut inner = self.inner.lock();
        let noticed = inner.noticed.get(&fragment);
        if noticed.is_some_and(|noticed| !noticed.for_readers) {
            inner.read.insert(fragment);
        }
    }

    /// Whether there are regions that were read in order and that no commit has changed since `before`; `alone`: and no commit has
    /// left any other in pieces since then.
    pub fn is_any_read(&self, before: u64, alone: bool) -> bool {
        let inner = self.inner.lock();
        if alone && inner.noted > before {
            return false;
        }
        let at = |fragment: &Fragment| inner.noticed.get(fragment).map(|noticed| noticed.at);
        inner.read.iter().filter_map(at).any(|at| at <= before)
    }

    /// Takes up to `limit` regions that were read in order and that no commit has changed since `before`: each but once until it
    /// is written again. With the time to [put it back](Self::put_back_for_readers) with.
    pub fn take_read(&self, before: u64, limit: usize) -> Vec<(Fragment, u64)> {
        let mut inner = self.inner.lock();
        let at = |fragment: &Fragment| inner.noticed.get(fragment).map(|noticed| noticed.at);
        let read = inner
            .read
            .iter()
            .filter_map(|fragment| Some((*fragment, at(fragment)?)));
        let due: Vec<_> = read.filter(|(_, at)| *at <= before).take(limit).collect();
        due.iter().for_each(|(fragment, _)| inner.remove(fragment));
        due
    }

    /// Takes up to `limit` regions that no commit has changed since `before`, although they have not rested long, and of which at
    /// least `part` was written over: each but once until so much of it is again. With the time to [put it back](Self::put_back) with.
    pub fn take_early(&self, before: u64, part: u16, limit: usize) -> Vec<(Fragment, u64)> {
        let mut inner = self.inner.lock();
        let (past, rest) = match inner.last_early {
            Some(last) => (Excluded(last), Some(..=last)),
            None => (Unbounded, None),
        };
        let rest = rest.into_iter().flat_map(|rest| inner.noticed.range(rest));
        let round = inner.noticed.range((past, Unbounded)).chain(rest);
        let due = round.filter(|(_, noticed)| !noticed.early && noticed.part >= part && noticed.at <= before);
        let mut due: Vec<_> = due
            .enumerate()
            .map(|(at, (fragment, noticed))| (Reverse(noticed.part), at, *fragment, noticed.at))
            .collect();
        // Of many, a few.
        if limit < due.len() {
            due.select_nth_unstable_by_key(limit, |(part, at, ..)| (*part, *at));
            due.truncate(limit);
        }
        due.sort_unstable_by_key(|(part, at, ..)| (*part, *at));
        let due: Vec<_> = due
            .into_iter()
            .map(|(_, _, fragment, since)| (fragment, since))
            .collect();
        due.iter().for_each(|(fragment, _)| inner.remove(fragment));
        inner.last_early = due.last().map(|(fragment, _)| *fragment).or(inner.last_early);
        due
    }

    /// This one that was taken early was not worth it, or was not `looked` at: it goes on resting, unless it was written
    /// meanwhile.
    pub fn put_back(&self, fragment: Fragment, at: u64, looked: bool) {
        let mut inner = self.inner.lock();
        if !inner.noticed.contains_key(&fragment) {
            let noticed = Noticed::new(at, WHOLE_PART);
            inner.add(
                fragment,
                Noticed {
                    early: looked,
                    ..noticed
                },
            );
        }
    }

    /// The same of what was taken for readers. Where it is not worth it for these, it is not for what is taken early.
    pub fn put_back_for_readers(&self, fragment: Fragment, at: u64, looked: bool) {
        let mut inner = self.inner.lock();
        if !inner.noticed.contains_key(&fragment) {
            let noticed = Noticed {
                early: looked,
                for_readers: looked,
                ..Noticed::new(at, WHOLE_PART)
            };
            inner.add(fragment, noticed);
        }
    }

    /// Up to `limit` objects whose regions changed since they were last taken, to be kept as records.
    pub fn take_changed(&self, limit: usize) -> Vec<FragmentRecord> {
        let mut inner = self.inner.lock();
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some((dataset, body, object)) = inner.changed.pop_first()
        {
            let at = |region, object| Fragment {
                dataset,
                body,
                region,
                object,
            };
            let all = inner.noticed.range(at(0, 0)..=at(u64::MAX, u64::MAX));
            let mut regions = Writer::new();
            let mut next = 0;
            for (fragment, _) in all.filter(|(fragment, _)| fragment.object == object) {
                if regions.len() >= RECORD_BYTES_MAX {
                    break;
                }
                regions.varint(fragment.region - next);
                next = fragment.region.saturating_add(1);
            }
            taken.push(FragmentRecord {
                dataset,
                body,
                object,
                regions: (!regions.is_empty()).then(|| regions.into_bytes()),
            });
        }
        taken
    }

    /// Takes back what [`take_changed`](Self::take_changed) encoded; it rests from now on. What is damaged is left out.
    pub fn load(&self, (dataset, body, object): Place, encoded: &[u8], now: u64) {
        let mut inner = self.inner.lock();
        let mut reader = Reader::new(encoded);
        let mut next = 0u64;
        while let Ok(skipped) = reader.varint("region")
            && let Some(region) = next.checked_add(skipped)
        {
            let fragment = Fragment {
                dataset,
                body,
                region,
                object,
            };
            let noticed = Noticed::new(now, WHOLE_PART);
            if inner.noticed.len() >= FRAGMENTS_MAX {
                return;
            }
            inner.noticed.insert(fragment, noticed);
            next = region.saturating_add(1);
        }
    }

    /// How many are noticed.
    pub fn count(&self) -> usize {
        self.inner.lock().noticed.len()
    }
}

impl Inner {
    fn remove(&mut self, fragment: &Fragment) {
        self.noticed.remove(fragment);
        self.read.remove(fragment);
        self.changed.insert(fragment.place());
    }

    fn add(&mut self, fragment: Fragment, noticed: Noticed) {
        if self.noticed.len() < FRAGMENTS_MAX {
            self.noticed.insert(fragment, noticed);
            self.changed.insert(fragment.place());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(region: u64) -> Fragment {
        Fragment {
            dataset: 1,
            body: 2,
            region,
            object: 2,
        }
    }

    #[test]
    fn those_come_first_of_which_most_was_written_over() {
        let fragments = Fragments::default();
        for (region, blocks) in [(1, 64), (2, 192), (3, 100), (4, 20)] {
            fragments.note(at(region), part_of(blocks, 256), 10);
        }
        let taken = |part, limit| {
            let taken = fragments.take_early(10, part, limit);
            taken
                .into_iter()
                .map(|(fragment, _)| fragment.region)
                .collect::<Vec<_>>()
        };
        assert_eq!(taken(WHOLE_PART / 4, 2), [2, 3]);
        assert_eq!(taken(WHOLE_PART / 2, 2), [], "of none of the others so much");
        // Nobody knows what of it is dead: it was not looked at.
        fragments.put_back(at(2), 10, false);
        // What is written over after it was looked at counts alone, what is written over again adds up.
        fragments.put_back(at(3), 10, true);
        fragments.note(at(3), part_of(60, 256), 10);
        fragments.note(at(4), part_of(50, 256), 10);
        assert_eq!(taken(WHOLE_PART / 4, 9), [2, 4, 1]);
        fragments.note(at(3), part_of(60, 256), 10);
        assert_eq!(taken(WHOLE_PART / 4, 9), [3]);
        assert_eq!((part_of(300, 256), part_of(0, 0)), (WHOLE_PART, 0));
    }

    #[test]
    fn what_rests_is_taken_and_no_more_is_kept_than_there_is_room_for() {
        let fragments = Fragments::default();
        for region in 0..2 * FRAGMENTS_MAX as u64 {
            fragments.note(at(region), WHOLE_PART, 10);
        }
        assert_eq!(fragments.count(), FRAGMENTS_MAX);
        fragments.note(at(1), WHOLE_PART, 20);
        assert_eq!(fragments.take(10, 2), [at(0), at(2)]);
        assert_eq!(fragments.take(9, 2), []);
        assert_eq!(fragments.take(20, 1), [at(1)]);
    }

    #[test]
    fn what_was_put_back_rests_on_and_is_taken_early_again_only_once_it_was_written() {
        let fragments = Fragments::default();
        fragments.note(at(1), WHOLE_PART, 10);
        fragments.note(at(2), WHOLE_PART, 10);
        assert_eq!(fragments.take_early(9, 0, 5), []);
        assert_eq!(fragments.take_early(10, 0, 5), [(at(1), 10), (at(2), 10)]);
        fragments.note(at(2), WHOLE_PART, 30);
        fragments.put_back(at(1), 10, true);
        fragments.put_back(at(2), 10, true);
        assert_eq!(
            fragments.take_early(29, 0, 5),
            [],
            "one was looked at, one was just written"
        );
        assert_eq!(fragments.take_early(30, 0, 5), [(at(2), 30)]);
        fragments.put_back(at(2), 30, false);
        assert_eq!(
            fragments.take_early(30, 0, 5),
            [(at(2), 30)],
            "nobody looked at it"
        );
        assert_eq!(
            fragments.take(10, 5),
            [at(1)],
            "it has rested since it was written"
        );
    }

    #[test]
    fn what_is_read_in_order_is_taken_once_it_was_left_alone_for_a_moment() {
        let fragments = Fragments::default();
        (1..=4).for_each(|region| fragments.note(at(region), WHOLE_PART, 10));
        [1, 2, 3, 7]
            .into_iter()
            .for_each(|region| fragments.note_read(at(region)));
        fragments.note(at(2), WHOLE_PART, 11);
        assert_eq!(fragments.take_read(9, 5), []);
        assert!(fragments.is_any_read(10, false) && !fragments.is_any_read(9, false));
        assert!(fragments.is_any_read(11, true) && !fragments.is_any_read(10, true));
        let taken = fragments.take_read(20, 5);
        assert_eq!(
            taken,
            [(at(1), 10), (at(3), 10)],
            "a commit changed one, and one is in order"
        );
        // Looked at in vain, it is for nobody until it is written again.
        fragments.put_back_for_readers(at(1), 10, true);
        fragments.put_back_for_readers(at(3), 10, false);
        fragments.note_read(at(1));
        fragments.note_read(at(3));
        assert_eq!(fragments.take_read(20, 5), [(at(3), 10)]);
        assert_eq!(fragments.take_early(20, 0, 5), [(at(2), 11), (at(4), 10)]);
        fragments.note(at(1), WHOLE_PART, 30);
        fragments.note_read(at(1));
        assert_eq!(fragments.take_read(30, 5), [(at(1), 30)]);
        assert_eq!(fragments.count(), 0);
    }

    #[test]
    fn those_that_are_written_all_the_time_do_not_keep_the_others_waiting() {
        let fragments = Fragments::default();
        let mut taken = Vec::new();
        for now in 0..4 {
            for region in 0..6 {
                fragments.note(at(region), WHOLE_PART, now);
            }
            let some = fragments.take_early(now, 0, 4);
            for (fragment, since) in &some {
                fragments.put_back(*fragment, *since, true);
            }
            taken.extend(some.into_iter().map(|(fragment, _)| fragment.region));
        }
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3]);
    }

    #[test]
    fn what_was_noticed_reads_back_and_is_kept_again_only_when_it_changed() {
        let fragments = Fragments::default();
        let at = |region, object| Fragment {
            dataset: 1,
            body: 2,
            region,
            object,
        };
        for region in [0, 1, 7, 300, u64::MAX - 1, u64::MAX] {
            fragments.note(at(region, 2), WHOLE_PART, 10);
        }
        fragments.note(at(5, 3), WHOLE_PART, 10);
        let kept = fragments.take_changed(1);
        assert_eq!((kept.len(), kept[0].object), (1, 2));
        let others = fragments.take_changed(5);
        assert_eq!((others.len(), others[0].object), (1, 3));
        fragments.note(at(7, 2), WHOLE_PART, 20);
        assert_eq!(fragments.take_changed(5), [], "only the time is another");
        let again = Fragments::default();
        again.load((1, 2, 2), kept[0].regions.as_deref().unwrap_or_default(), 50);
        again.load((1, 2, 3), others[0].regions.as_deref().unwrap_or_default(), 50);
        assert_eq!(again.take_changed(5), []);
        assert_eq!(again.take(49, 10), []);
        let expected = [
            at(0, 2),
            at(1, 2),
            at(5, 3),
            at(7, 2),
            at(300, 2),
            at(u64::MAX - 1, 2),
            at(u64::MAX, 2),
        ];
        assert_eq!(again.take(50, 10), expected);
        let gone = again.take_changed(5);
        assert!(gone.len() == 2 && gone.iter().all(|record| record.regions.is_none()));
        // What nobody wrote is taken as far as it goes.
        again.load((1, 2, 2), &[3, 0xff, 0xff], 60);
        again.load((1, 2, 4), &[0xff; 40], 60);
        assert_eq!(again.take(60, 10), [at(3, 2)]);
    }
}
