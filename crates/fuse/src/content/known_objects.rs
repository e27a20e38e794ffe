//! `KnownObjects`: which objects the kernel knows, in a few bytes for each: it may know millions.
//!
//! Invariants: what is known of objects whose numbers lie side by side lies together, since what is made together is numbered so;
//! an object is known while it has lookups; memory that is no longer needed is given back, and what is taken is counted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use hashbrown::HashMap;

/// Objects in a group.
const GROUP: u64 = 16;
/// Maps with fewer places do not shrink.
const PLACES_KEPT: usize = 64;

/// What is known of the objects of a group, by bits and places.
#[derive(Clone, Copy, Default)]
struct Group {
    /// 0: not known. At its most, `KnownObjects::beyond` has the rest.
    lookups: [u16; GROUP as usize],
    held: u16,
    shown: u16,
    cached: u16,
}

/// See the module.
#[derive(Default)]
pub struct KnownObjects {
    groups: HashMap<u64, Group>,
    /// Lookups of objects beyond those that a group counts.
    beyond: HashMap<u64, u64>,
    known: usize,
    /// Where memory is counted, and how much of it is from here, bytes.
    count: Arc<AtomicU64>,
    counted_bytes: u64,
}

fn place(object: u64) -> usize {
    (object % GROUP) as usize
}

fn bit(object: u64) -> u16 {
    1 << place(object)
}

fn set(bits: &mut u16, object: u64, is_set: bool) {
    match is_set {
        true => *bits |= bit(object),
        false => *bits &= !bit(object),
    }
}

impl KnownObjects {
    /// None; memory counts in `count`.
    pub fn new(count: Arc<AtomicU64>) -> Self {
        Self {
            groups: HashMap::new(),
            beyond: HashMap::new(),
            known: 0,
            count,
            counted_bytes: 0,
        }
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.known
    }

    fn group(&mut self, object: u64) -> Option<&mut Group> {
        let group = self.groups.get_mut(&(object / GROUP))?;
        (group.lookups[place(object)] > 0).then_some(group)
    }

    /// One lookup more.
    pub fn add(&mut self, object: u64) {
        let places = self.groups.capacity();
        let lookups = &mut self.groups.entry(object / GROUP).or_default().lookups[place(object)];
        match *lookups {
            0 => self.known += 1,
            u16::MAX => *self.beyond.entry(object).or_default() += 1,
            _ => {}
        }
        *lookups = lookups.saturating_add(1);
        if self.groups.capacity() != places {
            self.count_memory();
        }
    }

    /// Some lookups fewer; with the last one it is known no more: then, whether it was held.
    pub fn sub(&mut self, object: u64, lookups: u64) -> Option<bool> {
        let beyond = match self.beyond.is_empty() {
            true => 0,
            false => self.beyond.remove(&object).unwrap_or(0),
        };
        let group = self.group(object)?;
        let counted = &mut group.lookups[place(object)];
        let left = (u64::from(*counted) + beyond).saturating_sub(lookups);
        *counted = u16::try_from(left).unwrap_or(u16::MAX);
        let beyond = left - u64::from(*counted);
        if left > 0 {
            if beyond > 0 {
                self.beyond.insert(object, beyond);
            }
            return None;
        }
        let held = group.held & bit(object) != 0;
        set(&mut group.held, object, false);
        set(&mut group.shown, object, false);
        set(&mut group.cached, object, false);
        let is_empty = group.lookups == [0; GROUP as usize];
        self.known -= 1;
        if is_empty {
            self.groups.remove(&(object / GROUP));
            let places = self.groups.capacity();
            if places > PLACES_KEPT && self.groups.len() < places / 8 {
                self.groups.shrink_to(self.groups.len() * 2);
                self.beyond.shrink_to(self.beyond.len() * 2);
                self.count_memory();
            }
        }
        Some(held)
    }

    /// Marks a known object as held; false if it is not known, or was held before.
    pub fn hold(&mut self, object: u64) -> bool {
        let Some(group) = self.group(object) else {
            return false;
        };
        let held = group.held & bit(object) != 0;
        set(&mut group.held, object, true);
        !held
    }

    /// Marks a known object as shown or not.
    pub fn show(&mut self, object: u64, shown: bool) {
        if let Some(group) = self.group(object) {
            set(&mut group.shown, object, shown);
        }
    }

    /// No object is shown.
    pub fn show_none(&mut self) {
        self.groups.values_mut().for_each(|group| group.shown = 0);
    }

    /// Whether an object is known and shown.
    pub fn is_shown(&self, object: u64) -> bool {
        let group = self.groups.get(&(object / GROUP));
        group.is_some_and(|group| group.shown & bit(object) != 0)
    }

    /// Marks a known object as one whose content the kernel may keep.
    pub fn cache(&mut self, object: u64) {
        if let Some(group) = self.group(object) {
            set(&mut group.cached, object, true);
        }
    }

    /// Whether an object is known, and the kernel may keep content of it.
    pub fn is_cached(&self, object: u64) -> bool {
        let group = self.groups.get(&(object / GROUP));
        group.is_some_and(|group| group.cached & bit(object) != 0)
    }

    /// Knows none any more; gives those that were held.
    pub fn clear(&mut self) -> Vec<u64> {
        let mut held = Vec::new();
        for (number, group) in std::mem::take(&mut self.groups) {
            held.extend(
                (0..GROUP)
                    .map(|at| number * GROUP + at)
                    .filter(|object| group.held & bit(*object) != 0),
            );
        }
        self.beyond = HashMap::new();
        self.known = 0;
        self.count_memory();
        held
    }

    fn count_memory(&mut self) {
        let bytes = (self.groups.allocation_size() + self.beyond.allocation_size()) as u64;
        self.count.fetch_add(bytes, Relaxed);
        self.count.fetch_sub(self.counted_bytes, Relaxed);
        self.counted_bytes = bytes;
    }
}

impl Drop for KnownObjects {
    fn drop(&mut self) {
        self.count.fetch_sub(self.counted_bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_known_until_its_last_lookup_is_taken_back_however_many_there_were() {
        let mut known = KnownObjects::default();
        (0..200_000).for_each(|_| known.add(7));
        known.add(8);
        assert!(known.hold(7) && !known.hold(7) && !known.hold(9));
        known.show(7, true);
        known.cache(7);
        known.cache(9);
        assert!(known.is_shown(7) && !known.is_shown(8));
        assert!(known.is_cached(7) && !known.is_cached(8) && !known.is_cached(9));
        assert_eq!(known.sub(7, 100_000), None);
        known.add(7);
        assert_eq!(known.sub(7, 100_000), None);
        assert_eq!((known.sub(7, 1), known.sub(7, 1)), (Some(true), None));
        assert!(!known.is_shown(7) && !known.is_cached(7) && known.len() == 1);
        assert_eq!(known.sub(8, u64::MAX), Some(false));
        assert_eq!(known.len(), 0);
    }

    #[test]
    fn a_million_objects_take_a_few_megabytes_and_give_them_back() {
        let count = Arc::new(AtomicU64::new(0));
        let mut known = KnownObjects::new(count.clone());
        (0..1_000_000).for_each(|object| known.add(object));
        let full = count.load(Relaxed);
        assert!((1 << 20..8 << 20).contains(&full), "{full}");
        (0..999_000).for_each(|object| assert_eq!(known.sub(object, 1), Some(false)));
        assert!(count.load(Relaxed) < full / 100, "{}", count.load(Relaxed));
        assert!(known.hold(999_999) && known.clear() == [999_999]);
        assert_eq!(count.load(Relaxed), 0);
    }
}
