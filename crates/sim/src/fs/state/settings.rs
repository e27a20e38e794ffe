//! `Settings`: what was set and acknowledged, beside the content of files: tiers, properties, pins.
//!
//! What must hold: it is durable when the call returns, so that it is there after every opening. What failed on the way
//! may be there or not, and counts for nothing.

use std::collections::BTreeMap;

use terrace_engine::Engine;
use terrace_pool::{DeviceState, Landing, TierSettings};

use crate::{ensure, fs::level::Run, violation::Check};

/// Properties of the labels that say what shall become of a device.
const LEAVING_PREFIX: &str = "device.";
/// One that stays, and only loses its end.
const SHRINK_PREFIX: &str = "shrink:";

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

    /// A property of a dataset was set, or that failed: what it is now is remembered as the engine shows it.
    pub(crate) fn property(&mut self, engine: &Engine, dataset: &str, property: &str, done: bool) {
        let key = (dataset.to_owned(), property.to_owned());
        match value_of(engine, dataset, property).filter(|_| done) {
            Some(value) => drop(self.properties.insert(key, value)),
            None => drop(self.properties.remove(&key)),
        }
    }
}

fn value_of(engine: &Engine, dataset: &str, property: &str) -> Option<String> {
    let found = engine.datasets().get(dataset, property).ok()?;
    found.first().map(|found| found.value.clone())
}

impl Run {
    /// After an opening: everything is set as it was.
    pub(crate) fn check_settings(&self) -> Check {
        let engine = self.engine()?;
        for tier in engine.pool().tiers() {
            let wanted = self.settings.tiers.get(&tier.settings.name);
            ensure!(
                wanted.is_none_or(|wanted| *wanted == tier.settings),
                "a tier is set to {:?} after opening, and was set to {wanted:?}",
                tier.settings
            );
            let held = engine.hold_of(&tier.settings.name);
            let wanted = self.settings.holds.get(&tier.settings.name);
            ensure!(
                wanted.is_none_or(|wanted| *wanted == held),
                "a tier holds {held:?} after opening, and was set to {wanted:?}"
            );
        }
        let tiers = engine.pool().tiers();
        for takes in [
            |landing: Landing| landing.sequential,
            |landing: Landing| landing.random,
        ] {
            let taking = tiers.iter().filter(|tier| takes(tier.settings.landing));
            ensure!(
                taking.count() < 2,
                "writes of a kind land on two tiers: {tiers:?}"
            );
        }
        let migration = engine.pool().property("migration");
        ensure!(
            self.settings.migration.is_none() || migration == self.settings.migration,
            "migration is {migration:?} after opening, and was set to {:?}",
            self.settings.migration
        );
        for ((dataset, property), wanted) in &self.settings.properties {
            let found = value_of(&engine, dataset, property);
            ensure!(
                found.as_ref() == Some(wanted),
                "{property} of {dataset} is {found:?} after opening, and was set to {wanted}"
            );
        }
        for filesystem in &self.filesystems {
            let Some(handle) = &filesystem.handle else {
                continue;
            };
            let number = handle.dataset().number();
            let shown = filesystem.history.newest().tree.without_unnamed();
            let pins = self.settings.pins.range((number, 0)..=(number, u64::MAX));
            // One that is gone has no pin, or one that nobody sees.
            for ((_, object), wanted) in pins.filter(|((_, object), _)| shown.node(*object).is_some()) {
                let found = engine.mover().own_pin(number, *object);
                ensure!(
                    found == *wanted,
                    "object {object} of {} is pinned to {found:?} after opening, not to {wanted:?}",
                    filesystem.name
                );
            }
        }
        self.check_leaving(&engine)
    }

    /// A device of which it is written down that it is being emptied takes nothing new.
    fn check_leaving(&self, engine: &Engine) -> Check {
        let devices = engine.pool().devices();
        for (name, goal) in engine.pool().properties() {
            let number = name
                .strip_prefix(LEAVING_PREFIX)
                .and_then(|number| number.parse().ok());
            let Some(device) = devices.iter().find(|device| Some(device.number) == number) else {
                continue;
            };
            ensure!(
                device.draining || goal.starts_with(SHRINK_PREFIX) || device.state == DeviceState::Missing,
                "device {} is to be emptied ('{goal}'), and nothing keeps new content off it after opening",
                device.number
            );
        }
        Ok(())
    }
}
