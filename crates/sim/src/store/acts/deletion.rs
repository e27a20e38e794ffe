//! The end of a run: everything is deleted, and the room must be back.

use terrace_store::Store;

use super::{
    background::{Checkpoint, Rest},
    stops::CloseAndOpen,
};
use crate::{
    act::Act,
    ensure,
    store::{model::MARKER_KEY, world::StoreWorld},
    trace,
    violation::Check,
};

/// See the module.
pub(crate) struct DeleteEverything;

impl Act<StoreWorld> for DeleteEverything {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        world.calm();
        world.ending = true;
        world.rig.machine.cut_power_after(None);
        world.recover(false)?;
        world.rig.machine.cut_power_after(None);
        world.held.clear();
        let keys: Vec<Vec<u8>> = world
            .model
            .live()
            .keys()
            .filter(|key| key.as_slice() != MARKER_KEY)
            .cloned()
            .collect();
        for keys in keys.chunks(20) {
            world.commit(
                keys.iter().map(|key| (key.clone(), None)).collect(),
                Vec::new(),
                true,
            )?;
        }
        world.flush()?;
        Rest.perform(world)?;
        Checkpoint.perform(world)?;
        Rest.perform(world)?;
        let space = world.store()?.space();
        trace!(
            world.trace,
            "at the end {} chunks, {} bytes available", space.chunks, space.available_bytes
        );
        ensure!(
            space.chunks == 0,
            "{} chunks are left after everything was deleted",
            space.chunks
        );
        ensure!(
            space.logical_bytes == 0 && space.unique_bytes == 0 && space.chunk_stored_bytes == 0,
            "after everything was deleted there are {} logical, {} unique, {} stored bytes",
            space.logical_bytes,
            space.unique_bytes,
            space.chunk_stored_bytes
        );
        // A quarter of the pool must be writable at the least; with data on a copy each, half of that.
        let size = world.rig.shape.usable_bytes();
        ensure!(
            space.available_bytes >= size / 10,
            "only {} of {size} bytes are available after everything was deleted",
            space.available_bytes
        );
        CloseAndOpen.perform(world)
    }
}
