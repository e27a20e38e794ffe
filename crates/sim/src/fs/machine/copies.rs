//! Copies of everything: completing them, and the disks without which nothing is missed then.

use std::sync::Arc;

use terrace_chunk::ScrubCursor;
use terrace_engine::Engine;
use terrace_pool::{DeviceInfo, DeviceState, Presence};
use terrace_store::StoreError;

use crate::{
    act::Act,
    fs::{background::Tick, rig::Rig, world::World},
    trace,
    trace::Trace,
    violation::Check,
};

/// All copies in a pool.
pub(super) struct Copies {
    engine: Arc<Engine>,
    trace: Trace,
}

impl Copies {
    /// In the pool of the rig, which is open.
    pub(super) fn of(rig: &Rig) -> Check<Self> {
        Ok(Self::within(rig.engine()?, &rig.trace))
    }

    pub(super) fn within(engine: Arc<Engine>, trace: &Trace) -> Self {
        Self {
            engine,
            trace: trace.clone(),
        }
    }

    /// Gives everything its second copy; whether it has that, and how many were missing.
    pub(super) fn complete(&self) -> Result<(bool, u64), StoreError> {
        let chunks = self.engine.chunks();
        let scrubbed = chunks.scrub_step(&mut ScrubCursor::default(), u64::MAX)?;
        let mirrored = chunks.mirror_now()?;
        chunks.checkpoint()?;
        trace!(
            self.trace,
            "{} copies completed, {} repaired, {} short, {} damaged, mirrored: {mirrored}",
            scrubbed.completed,
            scrubbed.repaired,
            scrubbed.short,
            scrubbed.damaged.len()
        );
        let complete = mirrored && scrubbed.short + scrubbed.unmended == 0 && scrubbed.damaged.is_empty();
        Ok((complete, scrubbed.completed + scrubbed.repaired))
    }
}

/// A disk without which nothing is missed now, once everything has its copies.
pub(super) struct Dispensable;

impl Dispensable {
    /// Completes all copies, and picks one.
    pub(super) fn find(&self, world: &mut World) -> Check<Option<usize>> {
        let engine = world.rig.engine()?;
        let devices = engine.pool().devices();
        let tiers = engine.pool().tiers();
        let is_well =
            |info: &DeviceInfo| info.state == DeviceState::Online && info.presence == Presence::Whole;
        if !devices.iter().all(is_well) {
            return Ok(None);
        }
        let (copies, tier) = (
            |tier: u8| tiers[usize::from(tier)].settings.copies,
            |info: &DeviceInfo| info.tier,
        );
        let could_go = |info: &&DeviceInfo| {
            let of_tier = devices
                .iter()
                .filter(|other| tier(other) == info.tier && !other.draining);
            copies(info.tier) > 1 && of_tier.count() > 1 && !info.draining
        };
        let could_go: Vec<u16> = devices.iter().filter(could_go).map(|info| info.number).collect();
        let disks = world.rig.members.disks_of(&could_go);
        if disks.is_empty() {
            return Ok(None);
        }
        Tick.perform(world)?;
        match Copies::of(&world.rig)?.complete() {
            Ok((true, _)) if !world.rig.condition.is_failing() => Ok(Some(*world.rig.pulling.pick(&disks))),
            Ok(_) => Ok(None),
            Err(error) => {
                world.excuse("completing copies", &error.to_string())?;
                Ok(None)
            }
        }
    }
}
