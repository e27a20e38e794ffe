//! `Settings`: what was set and acknowledged, beside the content of files: tiers, properties, pins.
//!
//! What must hold: it is durable when the call returns, so that it is there after every opening. What failed on the way
//! may be there or not, and counts for nothing.

use std::collections::BTreeMap;

use terrace_pool::{Landing, TierSettings};

/// What is known to be set.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    tiers: BTreeMap<String, TierSettings>,
    /// How far they hold.
    holds: BTreeMap<String, Option<f64>>,
    migration: Option<String>,
    /// By dataset and property.
    properties: BTreeMap<(String, String), String>,
    /// By the number of the dataset and the object; `None`: it has no pin.
    pins: BTreeMap<(u32, u64), Option<String>>,
}

impl Settings {
    /// A tier was set otherwise, or that failed. What lands there does not land on others any more.
    pub(crate) fn tier(&mut self, settings: TierSettings, done: bool) {
        let name = settings.name.clone();
        let lands = settings.landing;
        match done {
            true => {
                for other in self.tiers.values_mut() {
                    other.landing.sequential &= !lands.sequential;
                    other.landing.random &= !lands.random;
                }
                self.tiers.insert(name, settings);
            }
            false => {
                self.tiers.remove(&name);
                // It may have been taken from them, or not.
                let is_sure = |other: &TierSettings| other.landing.and(lands) == Landing::OFF;
                self.tiers.retain(|_, other| is_sure(other));
            }
        }
    }

    /// How far a tier holds was set, or that failed.
    pub(crate) fn hold(&mut self, tier: &str, level: Option<f64>, done: bool) {
        match done {
            true => drop(self.holds.insert(tier.to_owned(), level)),
            false => drop(self.holds.remove(tier)),
        }
    }

    /// Migration was switched, or that failed.
    pub(crate) fn migration(&mut self, value: &str, done: bool) {
        self.migration = done.then(|| value.to_owned());
    }

    /// An object was pinned (`Some`) or is not any more, or that failed.
    pub(crate) fn pin(&mut self, dataset: u32, object: u64, tier: Option<&str>, done: bool) {
        match done {
            true => drop(self.pins.insert((dataset, object), tier.map(str::to_owned))),
            false => drop(self.pins.remove(&(dataset, object))),
        }
    }

    /// A property of a dataset was set, and is this now; `None`: that failed.
    pub(crate) fn property(&mut self, dataset: &str, property: &str, value: Option<String>) {
        let key = (dataset.to_owned(), property.to_owned());
        match value {
            Some(value) => drop(self.properties.insert(key, value)),
            None => drop(self.properties.remove(&key)),
        }
    }

    /// What a tier must be set to, if that is known.
    pub(crate) fn wanted_tier(&self, name: &str) -> Option<&TierSettings> {
        self.tiers.get(name)
    }

    /// How far a tier must hold, if that is known.
    pub(crate) fn wanted_hold(&self, tier: &str) -> Option<Option<f64>> {
        self.holds.get(tier).copied()
    }

    pub(crate) fn wanted_migration(&self) -> Option<&String> {
        self.migration.as_ref()
    }

    /// Properties of datasets that are known: dataset, property, value.
    pub(crate) fn wanted_properties(&self) -> impl Iterator<Item = (&str, &str, &String)> {
        let known = self.properties.iter();
        known.map(|((dataset, property), value)| (dataset.as_str(), property.as_str(), value))
    }

    /// Pins of a dataset's objects that are known; `None`: the object has none.
    pub(crate) fn wanted_pins(&self, dataset: u32) -> impl Iterator<Item = (u64, &Option<String>)> {
        let of_dataset = self.pins.range((dataset, 0)..=(dataset, u64::MAX));
        of_dataset.map(|((_, object), pin)| (*object, pin))
    }
}
