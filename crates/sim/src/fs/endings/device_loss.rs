//! An end of a run: a device of the pool is gone for good.
//!
//! What must hold: no byte reads as another; what cannot be read is an error; the device can be given up, and from then on
//! the pool opens without it, shows the same, and takes what is new.

use terrace_engine::Engine;
use terrace_pool::DeviceState;

use crate::{
    ensure,
    fs::{checks::Survivors, machine::LostDevice, world::World},
    hardware::FaultKind,
    trace, violation,
    violation::{Check, Violation},
};

/// See the module.
pub(crate) struct LoseDevice;

impl LoseDevice {
    /// Ends the run; `false` if there is no device that could be gone.
    pub(crate) fn end(&self, world: &mut World) -> Check<bool> {
        let members: Vec<usize> = world.rig.members.disks();
        if members.len() < 2 {
            return Ok(false);
        }
        if !world.at_rest()? {
            return Ok(true);
        }
        let lost = *world.rig.random.pick(&members);
        trace!(world.rig.trace, "disk {lost} is lost for good");
        world.rig.coverage.hit(FaultKind::LostForGood);
        world.rig.machine.with_disk(lost, |disk, _| disk.vanished = true);
        ensure!(
            world.rig.open(false).is_err(),
            "a pool opens without one of its devices although nobody allowed that"
        );
        let engine = match world.rig.open(true) {
            Ok(engine) => engine,
            Err(error) => {
                // What has no second copy, of the log or of tables: a device was full, failed, or joined later.
                trace!(world.rig.trace, "opening without it: {error}");
                return Ok(true);
            }
        };
        let path = format!("/simulated/disk{lost}");
        let lost_bytes = Self::unreadable_bytes(world, &engine)?;
        let missing = engine.pool().devices().into_iter();
        let missing: Vec<_> = missing
            .filter(|device| device.state == DeviceState::Missing)
            .map(|device| (device.number, device.path))
            .collect();
        let [(number, _)] = &missing[..] else {
            violation!("disk {lost} is gone, but missing are {missing:?}");
        };
        let given_up = engine.give_up_device(&number.to_string());
        trace!(world.rig.trace, "{path} is given up: {given_up:?}");
        match given_up {
            Ok(Some(job)) => {
                if !LostDevice::of(world, &engine).see_off(job, *number)? {
                    return Ok(true);
                }
            }
            Ok(None) => {}
            Err(error) => {
                let words = error.to_string();
                ensure!(
                    words.contains("is full"),
                    "the lost device cannot be given up: {words}"
                );
                return Ok(true);
            }
        }
        let before = Self::unreadable_bytes(world, &engine)?;
        ensure!(
            before <= lost_bytes,
            "{before} bytes cannot be read since the device was given up, {lost_bytes} before"
        );
        LostDevice::of(world, &engine).check_named(before)?;
        let as_before = LostDevice::of(world, &engine).write_after()?;
        if let Err(error) = engine.close() {
            ensure!(error.to_string().contains("is full"), "cannot close: {error}");
        }
        drop(engine);
        world.rig.machine.kill();
        let engine = world
            .rig
            .open(false)
            .map_err(|error| Violation(format!("without the lost device the pool does not open: {error}")))?;
        if !as_before {
            return Ok(true);
        }
        let after = Self::unreadable_bytes(world, &engine)?;
        ensure!(
            after <= before,
            "{after} bytes cannot be read after another opening, {before} before"
        );
        Ok(true)
    }

    /// How much cannot be read; what can is as the models say.
    fn unreadable_bytes(world: &World, engine: &Engine) -> Check<u64> {
        let survivors = Survivors {
            models: &world.models,
            trace: &world.rig.trace,
        };
        Ok(survivors.compare(engine, true)?.bytes)
    }
}
