//! `ObjectPins`: which single objects and directories are pinned to a tier, so that what is written to them, or beneath
//! them, lands there.
//!
//! Invariants: as long as nothing is pinned, asking takes no lock. The mover keeps the records and says here what holds; the
//! live half says here what it wrote for the sake of a directory, and when a name moved, so that the mover finds what lies
//! beneath without looking at it all the time.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
};

use terrace_sync::{RwLock, rank};

/// The pin of a directory, as far as something beneath goes by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryPin {
    /// Number of the tier.
    pub tier: u8,
    /// The object of the directory.
    pub directory: u64,
}

#[derive(Default)]
struct Known {
    /// Tier by dataset and object, directories included.
    tiers: HashMap<(u32, u64), u8>,
    /// Datasets with pinned directories.
    with_directories: HashSet<u32>,
    /// Bodies that lie beneath a pinned directory, and the pin of that.
    beneath: HashMap<(u32, u64), DirectoryPin>,
    /// Those of them that were written since the mover began to look.
    written: HashMap<(u32, u64), DirectoryPin>,
}

/// See the module.
#[derive(Default)]
pub struct ObjectPins {
    any: AtomicBool,
    moved: AtomicBool,
    known: RwLock<Known, rank::Leaf>,
}

impl ObjectPins {
    /// These and no others are pinned from now on; `with_directories` names the datasets in which directories are.
    pub fn replace(&self, tiers: HashMap<(u32, u64), u8>, with_directories: HashSet<u32>) {
        let mut known = self.known.write();
        self.any.store(!tiers.is_empty(), Ordering::Release);
        known.tiers = tiers;
        known.with_directories = with_directories;
    }

    /// The tier of an object that has a pin of its own.
    pub fn tier_of(&self, dataset: u32, object: u64) -> Option<u8> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.known.read().tiers.get(&(dataset, object)).copied()
    }

    /// Whether directories of a dataset are pinned.
    pub fn has_directories(&self, dataset: u32) -> bool {
        self.any.load(Ordering::Acquire) && self.known.read().with_directories.contains(&dataset)
    }

    /// Something is written to a body that lies beneath a pinned directory.
    pub fn note_beneath(&self, dataset: u32, body: u64, pin: DirectoryPin) {
        if self.known.read().written.get(&(dataset, body)) != Some(&pin) {
            let mut known = self.known.write();
            known.written.insert((dataset, body), pin);
            known.beneath.insert((dataset, body), pin);
        }
    }

    /// The tier of the nearest pinned directory above a body, as far as is known.
    pub fn tier_beneath(&self, dataset: u32, body: u64) -> Option<u8> {
        self.pin_beneath(dataset, body).map(|pin| pin.tier)
    }

    /// The pin of that directory.
    pub fn pin_beneath(&self, dataset: u32, body: u64) -> Option<DirectoryPin> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let known = self.known.read();
        let pin = known.beneath.get(&(dataset, body)).copied();
        // Until the next look, what lay beneath the last one that was pinned is still named.
        pin.filter(|_| known.with_directories.contains(&dataset))
    }

    /// The bodies of a dataset that lie beneath directories that are pinned to this tier, as far as is known.
    pub fn bodies_beneath(&self, dataset: u32, tier: u8) -> BTreeSet<u64> {
        let known = self.known.read();
        let beneath = known.beneath.iter();
        let of_it = beneath.filter(|((other, _), pin)| (*other, pin.tier) == (dataset, tier));
        of_it.map(|((_, body), _)| *body).collect()
    }

    /// The mover begins to look for what lies beneath pinned directories.
    pub fn begin_look(&self) {
        self.moved.store(false, Ordering::Release);
        self.known.write().written.clear();
    }

    /// What it found; what was written meanwhile holds besides.
    pub fn end_look(&self, mut found: HashMap<(u32, u64), DirectoryPin>) {
        let mut known = self.known.write();
        found.extend(known.written.iter().map(|(place, pin)| (*place, *pin)));
        known.beneath = found;
    }

    /// A name moved in a dataset: what lies beneath a directory may be something else now.
    pub fn note_moved(&self, dataset: u32) {
        if self.has_directories(dataset) {
            self.moved.store(true, Ordering::Release);
        }
    }

    /// Whether a name moved since the last look began.
    pub fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_during_a_look_is_not_forgotten_by_its_end() {
        let pins = ObjectPins::default();
        let by_5 = DirectoryPin {
            tier: 1,
            directory: 5,
        };
        pins.replace([((1, 5), 1)].into(), [1].into());
        pins.note_beneath(1, 6, by_5);
        pins.begin_look();
        pins.note_beneath(1, 7, by_5);
        pins.end_look([((1, 8), by_5)].into());
        let known = |body| pins.tier_beneath(1, body);
        assert_eq!((known(6), known(7), known(8)), (None, Some(1), Some(1)));
        pins.replace([((1, 5), 1), ((1, 6), 1)].into(), [].into());
        assert_eq!(pins.tier_beneath(1, 8), None, "no directory is pinned any more");
        pins.replace([((1, 5), 1)].into(), [1].into());
        pins.note_moved(2);
        assert!(!pins.has_moved(), "no directory of that is pinned");
        pins.note_moved(1);
        assert!(pins.has_moved());
    }
}
