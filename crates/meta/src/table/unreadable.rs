//! Places of tables of which no copy could be read: known from the first reader that met one, whoever that was.
//!
//! Invariants: a place stays known until it was read, or its table is not part of the tree any more; at most a hundred are kept; readers of
//! what is sound take no lock while there is none.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use terrace_sync::{Mutex, rank};

use crate::Extent;

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
    places: Mutex<BTreeMap<(Extent, u32), String>, rank::Leaf>,
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

    /// What is known of these extents: of each one place. Others are not part of the tree any more, and are forgotten.
    pub(crate) fn of(&self, extents: impl FnOnce() -> Vec<Extent>) -> Vec<UnreadableExtent> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let extents = extents();
        self.retain(|(extent, _)| extents.contains(extent));
        let mut found: Vec<UnreadableExtent> = Vec::new();
        for ((extent, _), cause) in self.places.lock().iter() {
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
