//! Places of tables of which no copy could be read: known from the first reader that met one, whoever that was.
//!
//! Invariants: a place stays known until it was read, or its table is not part of the tree any more; at most a hundred are kept; readers of
//! what is sound take no lock while there is none.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use crate::{Extent, tree::Tree};

/// Places that are kept.
const PLACES_MAX: usize = 100;

/// An extent of which a part cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableExtent {
    /// The extent.
    pub extent: Extent,
    /// What was met there.
    pub cause: String,
}

/// What readers met.
#[derive(Default)]
pub(crate) struct Unreadable {
    any: AtomicBool,
    /// By where the part starts in its extent.
    places: Mutex<BTreeMap<(Extent, u32), String>>,
}

impl Unreadable {
    pub(crate) fn note(&self, extent: Extent, offset: u32, cause: String) {
        let mut places = self.places.lock();
        if places.len() < PLACES_MAX {
            places.insert((extent, offset), cause);
            self.any.store(true, Ordering::Release);
        }
    }

    /// It was read after all.
    pub(crate) fn forget(&self, extent: Extent, offset: u32) {
        self.retain(|place| *place != (extent, offset));
    }

    /// All of it was read.
    pub(crate) fn forget_all_of(&self, extent: Extent) {
        self.retain(|(other, _)| *other != extent);
    }

    fn retain(&self, keep: impl Fn(&(Extent, u32)) -> bool) {
        if self.any.load(Ordering::Acquire) {
            let mut places = self.places.lock();
            places.retain(|place, _| keep(place));
            self.any.store(!places.is_empty(), Ordering::Release);
        }
    }
}

impl Tree {
    /// Extents of the tree of which readers met a part that cannot be read from any copy, as far as it was not read since.
    pub fn known_unreadable(&self) -> Vec<UnreadableExtent> {
        let known = &self.reader.unreadable;
        if !known.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let extents = self.extents();
        known.retain(|(extent, _)| extents.contains(extent));
        let mut found: Vec<UnreadableExtent> = Vec::new();
        for ((extent, _), cause) in known.places.lock().iter() {
            if found.last().is_none_or(|last| last.extent != *extent) {
                let cause = cause.clone();
                found.push(UnreadableExtent {
                    extent: *extent,
                    cause,
                });
            }
        }
        found
    }
}
