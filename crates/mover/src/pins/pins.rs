//! Pins: objects and datasets whose content stays on one tier.
//!
//! A dataset is pinned by its property `pin`; a single object by a record of the mover, kept by tier name so that it
//! survives a change of the tiers. The record goes, a little later, with the object.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use terrace_dataset::{FileKind, InodeRecord, keys, split_value};
use terrace_store::{Batch, Store, StoreError};

const TIER_BYTES_MAX: usize = 64;
/// Records of deleted objects that are dropped in one batch.
const FORGOTTEN_AT_ONCE: usize = 256;

/// The pins of single objects.
#[derive(Default)]
pub(crate) struct Pins {
    /// Tier name by dataset and object.
    objects: BTreeMap<(u32, u64), String>,
    /// The same by body, as far as it is known.
    bodies: BTreeMap<(u32, u64), String>,
    /// Which of them are directories: what is beneath is pinned with them.
    directories: BTreeSet<(u32, u64)>,
    /// Objects that are gone, and whose records are still there.
    gone: BTreeSet<(u32, u64)>,
}

impl Pins {
    pub(crate) fn load(store: &dyn Store) -> Result<Self, StoreError> {
        let mut pins = Self::default();
        let (mut from, to) = keys::table_range(keys::TABLE_PIN);
        loop {
            let page = store.scan(&from, &to, 256)?;
            for (key, value) in &page {
                if let (Ok(place), Ok(tier)) = (keys::parse_pin(key), std::str::from_utf8(value)) {
                    pins.objects
                        .insert(place, tier.chars().take(TIER_BYTES_MAX).collect());
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == 256 => from = last.iter().copied().chain([0]).collect(),
                _ => break,
            }
        }
        pins.find_bodies(store)?;
        Ok(pins)
    }

    /// Looks up which bodies the pinned objects have now; an object that is gone loses its pin.
    pub(crate) fn find_bodies(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let mut bodies = BTreeMap::new();
        let mut gone = Vec::new();
        let mut directories = BTreeSet::new();
        for ((dataset, object), tier) in &self.objects {
            match inode_of(store, *dataset, *object)? {
                Some(inode) if inode.kind == FileKind::Directory => {
                    directories.insert((*dataset, *object));
                }
                Some(inode) => drop(bodies.insert((*dataset, inode.body), tier.clone())),
                None if store.get(&keys::inode(*dataset, *object))?.is_none() => {
                    gone.push((*dataset, *object))
                }
                // Its inode cannot be understood: what holds of it is not known.
                None => {}
            }
        }
        self.directories = directories;
        gone.iter().for_each(|place| drop(self.objects.remove(place)));
        self.gone.extend(gone);
        self.bodies = bodies;
        Ok(())
    }

    /// Drops the records of objects that are gone, some at a time; those that cannot be dropped now stay for the next call.
    pub(crate) fn forget_gone(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let some: Vec<(u32, u64)> = self.gone.iter().take(FORGOTTEN_AT_ONCE).copied().collect();
        if some.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.privileged();
        some.iter()
            .for_each(|(dataset, object)| batch.delete(keys::pin(*dataset, *object)));
        match store.commit(batch) {
            Err(error @ StoreError::Stopped(_)) => return Err(error),
            Err(error) => tracing::warn!(%error, "pins of deleted objects could not be forgotten yet"),
            Ok(_) => self.gone.retain(|place| !some.contains(place)),
        }
        Ok(())
    }

    pub(crate) fn set(
        &mut self,
        store: &dyn Store,
        dataset: u32,
        object: u64,
        tier: Option<&str>,
    ) -> Result<(), StoreError> {
        let mut batch = Batch::new();
        match tier {
            Some(tier) => batch.put(keys::pin(dataset, object), tier.as_bytes()),
            None => batch.delete(keys::pin(dataset, object)),
        }
        let sequence = store.commit(batch)?;
        store.flush(sequence)?;
        self.gone.remove(&(dataset, object));
        match tier {
            Some(tier) => drop(self.objects.insert((dataset, object), tier.to_owned())),
            None => drop(self.objects.remove(&(dataset, object))),
        }
        self.find_bodies(store)
    }

    /// Number of the tier of each pinned object, where the pool has it.
    pub(crate) fn by_number(&self, tiers: &[&str]) -> std::collections::HashMap<(u32, u64), u8> {
        let numbered = self.objects.iter().filter_map(|(place, name)| {
            let at = tiers.iter().position(|tier| tier == name)?;
            Some((*place, at as u8))
        });
        numbered.collect()
    }

    /// Datasets in which something is pinned.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = u32> {
        self.objects.keys().map(|(dataset, _)| *dataset)
    }

    /// The pinned directories with the names of their tiers.
    pub(crate) fn directories(&self) -> impl Iterator<Item = ((u32, u64), &str)> {
        let tier = |place: &(u32, u64)| Some((*place, self.objects.get(place)?.as_str()));
        self.directories.iter().filter_map(tier)
    }

    pub(crate) fn of_object(&self, dataset: u32, object: u64) -> Option<&str> {
        self.objects.get(&(dataset, object)).map(String::as_str)
    }

    /// The objects of a dataset that are pinned to another tier than this.
    pub(crate) fn elsewhere(&self, dataset: u32, tier: &str) -> HashSet<u64> {
        let pinned = self.objects.range((dataset, 0)..=(dataset, u64::MAX));
        let elsewhere = pinned.filter(|(_, other)| *other != tier);
        elsewhere.map(|((_, object), _)| *object).collect()
    }

    pub(crate) fn of_body(&self, dataset: u32, body: u64) -> Option<&str> {
        self.bodies.get(&(dataset, body)).map(String::as_str)
    }
}

/// The number under which an object's regions stand; `None` if it is gone or damaged.
pub(crate) fn body_of(store: &dyn Store, dataset: u32, object: u64) -> Result<Option<u64>, StoreError> {
    Ok(inode_of(store, dataset, object)?.map(|inode| inode.body))
}

pub(crate) fn inode_of(
    store: &dyn Store,
    dataset: u32,
    object: u64,
) -> Result<Option<InodeRecord>, StoreError> {
    let Some(value) = store.get(&keys::inode(dataset, object))? else {
        return Ok(None);
    };
    let inode = split_value(&value).and_then(|(_, payload)| InodeRecord::decode(payload));
    Ok(inode.ok())
}
