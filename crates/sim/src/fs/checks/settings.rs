//! What was set and acknowledged is set after every opening.

use terrace_engine::Engine;
use terrace_pool::{DeviceState, Landing};

use super::invariant::{Compared, Invariant};
use crate::{
    ensure,
    fs::{models::Models, rig::Rig},
};

/// Properties of the labels that say what shall become of a device.
const LEAVING_PREFIX: &str = "device.";
/// One that stays, and only loses its end.
const SHRINK_PREFIX: &str = "shrink:";

/// What a property of a dataset is now.
pub(crate) fn value_of(engine: &Engine, dataset: &str, property: &str) -> Option<String> {
    let found = engine.datasets().properties().get(dataset, property).ok()?;
    found.first().map(|found| found.value.clone())
}

/// After an opening: everything is set as it was.
pub(crate) struct SettingsKept;

impl Invariant for SettingsKept {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let engine = rig.engine()?;
        for tier in engine.pool().tiers() {
            let wanted = models.settings.wanted_tier(&tier.settings.name);
            ensure!(
                wanted.is_none_or(|wanted| *wanted == tier.settings),
                "a tier is set to {:?} after opening, and was set to {wanted:?}",
                tier.settings
            );
            let held = engine.hold_of(&tier.settings.name);
            let wanted = models.settings.wanted_hold(&tier.settings.name);
            ensure!(
                wanted.is_none_or(|wanted| wanted == held),
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
        let wanted = models.settings.wanted_migration();
        let migration = engine.pool().property("migration");
        ensure!(
            wanted.is_none() || migration.as_ref() == wanted,
            "migration is {migration:?} after opening, and was set to {wanted:?}"
        );
        for (dataset, property, wanted) in models.settings.wanted_properties() {
            let found = value_of(&engine, dataset, property);
            ensure!(
                found.as_ref() == Some(wanted),
                "{property} of {dataset} is {found:?} after opening, and was set to {wanted}"
            );
        }
        for (index, handle) in rig.handles.filesystems() {
            let filesystem = &models.filesystems[index];
            let number = handle.dataset().number();
            let shown = filesystem.history.newest().tree.without_unnamed();
            let pins = models.settings.wanted_pins(number);
            // One that is gone has no pin, or one that nobody sees.
            for (object, wanted) in pins.filter(|(object, _)| shown.node(*object).is_some()) {
                let found = engine.mover().own_pin(number, object);
                ensure!(
                    found == *wanted,
                    "object {object} of {} is pinned to {found:?} after opening, not to {wanted:?}",
                    filesystem.name
                );
            }
        }
        check_leaving(&engine)
    }
}

/// A device of which it is written down that it is being emptied takes nothing new.
fn check_leaving(engine: &Engine) -> Compared {
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
