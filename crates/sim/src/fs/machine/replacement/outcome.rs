//! What a replacement leaves: a pool that is whole without the disk that was replaced.
//!
//! Invariant: where everything had its second copy no copy is missing at rest, and any other disk of a tier with two may go.

use std::sync::Arc;

use terrace_engine::Engine;
use terrace_pool::{DeviceState, Presence, TierInfo};

use super::{super::copies::Copies, Replacement};
use crate::{
    ensure,
    fs::{checks::Lost, rig::disk_of_path},
    rig::MIB,
    trace,
    violation::{Check, Violation},
};

impl Replacement<'_> {
    /// The replacement has come to its end: every device is there, every copy is, and any other disk of the tier may go.
    pub(super) fn is_complete(&mut self, engine: Arc<Engine>, lost: &Lost) -> Check {
        let has_room = |words: &str| !words.contains("full");
        let mut whole = false;
        for _ in 0..40 {
            self.settle(&engine)?;
            let devices = engine.pool().devices();
            whole = devices
                .iter()
                .all(|info| info.state == DeviceState::Online && info.presence == Presence::Whole);
            if whole {
                break;
            }
        }
        let devices = engine.pool().devices();
        ensure!(
            devices.iter().all(|info| info.state == DeviceState::Online),
            "a missing disk was replaced, and the pool has {devices:?}"
        );
        trace!(self.world.rig.trace, "at rest: {}", engine.status().state_detail);
        // Where there is no room for all copies, the devices stay behind.
        let room = engine.store().space().available_bytes > 4 * MIB;
        ensure!(
            whole || !room || lost.bytes > 0,
            "a missing disk was replaced, and at rest the pool has {devices:?}"
        );
        let completed = Copies::within(engine.clone(), &self.world.rig.trace).complete();
        let complete = match completed {
            Ok((complete, completed)) => {
                ensure!(
                    completed == 0 || !whole || !self.gone.covered,
                    "a missing disk was replaced, the background rests, and {completed} copies were missing"
                );
                complete
            }
            Err(error) => {
                ensure!(!has_room(&error.to_string()), "completing copies: {error}");
                false
            }
        };
        let tiers = engine.pool().tiers();
        let closed = engine.close();
        drop(engine);
        self.world.rig.machine.kill();
        if let Err(error) = closed {
            ensure!(!has_room(&error.to_string()), "cannot close: {error}");
            return Ok(());
        }
        let engine = self.world.rig.open(false).map_err(|error| {
            Violation(format!(
                "a missing disk was replaced, and the pool does not open: {error}"
            ))
        })?;
        let after = self.survivors(&engine)?;
        after.is_no_more_than(lost)?;
        if !complete || !whole || !self.gone.covered {
            return Ok(());
        }
        self.go_without_another(engine, &tiers)
    }

    /// Now another one of a tier that keeps two copies may go, too.
    fn go_without_another(&mut self, engine: Arc<Engine>, tiers: &[TierInfo]) -> Check {
        let devices = engine.pool().devices();
        let could_go: Vec<usize> = devices
            .iter()
            .filter(|info| {
                tiers
                    .get(usize::from(info.tier))
                    .is_some_and(|tier| tier.settings.copies > 1)
            })
            .filter(|info| devices.iter().filter(|other| other.tier == info.tier).count() > 1)
            .filter_map(|info| disk_of_path(&info.path))
            .collect();
        drop(engine);
        self.world.rig.machine.kill();
        if could_go.is_empty() {
            return Ok(());
        }
        let next = *self.random.pick(&could_go);
        trace!(self.world.rig.trace, "disk {next} is gone, too");
        self.world
            .rig
            .machine
            .with_disk(next, |disk, _| disk.vanished = true);
        let engine = self.world.rig.open(true).map_err(|error| {
            Violation(format!(
                "a missing disk was replaced, and the pool does not open without disk {next}: {error}"
            ))
        })?;
        let without = self.survivors(&engine)?;
        ensure!(
            without.bytes == 0,
            "a missing disk was replaced, and without disk {next} {} bytes cannot be read: {:?}",
            without.bytes,
            without.causes.first()
        );
        Ok(())
    }
}
