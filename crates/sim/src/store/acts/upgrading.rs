//! Pools of older format versions: some runs begin with one, and at some time somebody upgrades it, whatever goes wrong meanwhile.
//!
//! What must hold: a pool keeps its version until then; from the moment when the upgrade was acknowledged it has the newest, also
//! after every opening.

use crate::{
    act::Act,
    store::world::{StoreWorld, Upgrade},
    trace,
    violation::Check,
};

/// Upgrades a pool, in the mean after some fifty turns.
pub(crate) struct UpgradeFormat;

impl Act<StoreWorld> for UpgradeFormat {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        if world.upgrade == Upgrade::Done || !world.is_sound() {
            return Ok(());
        }
        world.check_version()?;
        if !world.upgrading.chance(1, 50) {
            return Ok(());
        }
        trace!(world.trace, "upgrade");
        world.upgrade = Upgrade::Begun;
        match world.store()?.upgrade_format() {
            Ok(()) => world.upgrade = Upgrade::Done,
            Err(error) => world.after_error("an upgrade", &error)?,
        }
        Ok(())
    }
}
