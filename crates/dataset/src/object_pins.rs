//! `ObjectPins`: which single objects are pinned to a tier, so that what is written to them lands there.
//!
//! Invariant: as long as nothing is pinned, asking takes no lock. The mover keeps the records and says here what holds.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::RwLock;

/// Tier by dataset and object.
#[derive(Default)]
pub struct ObjectPins {
    any: AtomicBool,
    tiers: RwLock<HashMap<(u32, u64), u8>>,
}

impl ObjectPins {
    /// These and no others are pinned from now on.
    pub fn replace(&self, tiers: HashMap<(u32, u64), u8>) {
        let mut current = self.tiers.write();
        self.any.store(!tiers.is_empty(), Ordering::Release);
        *current = tiers;
    }

    /// The tier of an object that has a pin of its own.
    pub fn tier_of(&self, dataset: u32, object: u64) -> Option<u8> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.tiers.read().get(&(dataset, object)).copied()
    }
}
