//! What must hold of the pool's devices: no more of one is used than its labels give, and none that has left is missed.

use terrace_chunk::ScrubCursor;
use terrace_pool::DeviceState;

use super::invariant::{Compared, Invariant};
use crate::{
    ensure,
    fs::{models::Models, rig::Rig},
};

/// The pool uses of each device what its labels give it, and no more. (One that is being shrunk counts as smaller.)
pub(crate) struct DeviceSizes;

impl Invariant for DeviceSizes {
    fn check(&self, rig: &mut Rig, _models: &mut Models) -> Compared {
        let engine = rig.engine()?;
        let pool = engine.pool();
        for device in pool.devices() {
            let given = pool.segments_in(device.size_bytes);
            ensure!(
                device.segments <= given || device.state == DeviceState::Missing,
                "device {} is used for {} segments, and its labels give it {given}",
                device.number,
                device.segments
            );
        }
        Ok(())
    }
}

/// A disk has left: every chunk can be read.
pub(crate) struct Readable;

impl Invariant for Readable {
    fn check(&self, rig: &mut Rig, _models: &mut Models) -> Compared {
        let progress = rig
            .engine()?
            .chunks()
            .verify_step(&mut ScrubCursor::default(), u64::MAX);
        ensure!(
            progress.lost.is_empty() || !rig.is_powered(),
            "a disk left the pool, and {} chunks cannot be read: {:?}",
            progress.lost.len(),
            progress.lost.first()
        );
        Ok(())
    }
}
