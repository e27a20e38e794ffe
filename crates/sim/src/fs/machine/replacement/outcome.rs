//! What a replacement leaves: a pool that is whole without the disk that was replaced.
//!
//! Invariant: where everything had its second copy no copy is missing at rest, and any other disk of a tier with two may go.

use std::sync::Arc;

use terrace_engine::Engine;
use terrace_pool::{DeviceState, Presence};

use super::Gone;
use crate::{
    ensure,
    fs::{level::Run, machine::Lost},
    rig::MIB,
    trace,
    violation::{Check, Violation},
};

impl Run {
    /// The replacement has come to its end: every device is there, every copy is, and any other disk of the tier may go.
    pub(crate) fn is_complete(&mut self, engine: Arc<Engine>, lost: &Lost, gone: &Gone) -> Check {
        let has_room = |words: &str| !words.contains("full");
        let mut whole = false;
        for _ in 0..40 {
            self.settle(&engine, gone)?;
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
        trace!(self.trace, "at rest: {}", engine.status().state_detail);
        // Where there is no room for all copies, the devices stay behind.
        let room = engine.store().space().available_bytes > 4 * MIB;
        ensure!(
            whole || !room || lost.bytes > 0,
            "a missing disk was replaced, and at rest the pool has {devices:?}"
        );
        self.engine = Some(engine.clone());
        let completed = self.complete_copies();
        self.engine = None;
        let complete = match completed {
            Ok((complete, completed)) => {
                ensure!(
                    completed == 0 || !whole || !gone.covered,
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
        self.rig.machine.kill();
        if let Err(error) = closed {
            ensure!(!has_room(&error.to_string()), "cannot close: {error}");
            return Ok(());
        }
        let engine = self.rig.open(false).map_err(|error| {
            Violation(format!(
                "a missing disk was replaced, and the pool does not open: {error}"
            ))
        })?;
        let after = self.compare_survivors(&engine, gone.covered)?;
        self.has_not_lost_more(lost, &after)?;
        if !complete || !whole || !gone.covered {
            return Ok(());
        }
        // Now another one of a tier that keeps two copies may go, too.
        let devices = engine.pool().devices();
        let could_go: Vec<usize> = devices
            .iter()
            .filter(|info| {
                tiers
                    .get(usize::from(info.tier))
                    .is_some_and(|tier| tier.settings.copies > 1)
            })
            .filter(|info| devices.iter().filter(|other| other.tier == info.tier).count() > 1)
            .filter_map(|info| info.path.trim_start_matches("/simulated/disk").parse().ok())
            .collect();
        drop(engine);
        self.rig.machine.kill();
        if could_go.is_empty() {
            return Ok(());
        }
        let next = *self.replacing.random.pick(&could_go);
        trace!(self.trace, "disk {next} is gone, too");
        self.rig.machine.with_disk(next, |disk, _| disk.vanished = true);
        let engine = self.rig.open(true).map_err(|error| {
            Violation(format!(
                "a missing disk was replaced, and the pool does not open without disk {next}: {error}"
            ))
        })?;
        let without = self.compare_survivors(&engine, gone.covered)?;
        ensure!(
            without.bytes == 0,
            "a missing disk was replaced, and without disk {next} {} bytes cannot be read: {:?}",
            without.bytes,
            without.causes.first()
        );
        Ok(())
    }
}
