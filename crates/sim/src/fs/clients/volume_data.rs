//! Calls to the run's volume: writes, discards, zeroes and reads.
//!
//! Invariant: what is read is, byte for byte, what the model holds; a write that failed for a reason outside is a state
//! that may be found later.

use std::sync::Arc;

use terrace_dataset::{FsError, Volume};

use super::workload::FilesystemCall;
use crate::{
    act::Act,
    ensure,
    fs::{
        checks::ReservedFits,
        models::{BlocksModel, Promise, VolumeState},
        world::{Consequence, World},
    },
    models::Content,
    trace,
    violation::Check,
};

/// What a volume is cut into if nothing else is said.
const CHUNK_OF_VOLUME: u64 = 16 << 10;

/// A client of one volume of the world.
pub(crate) struct VolumeClient<'w> {
    pub(crate) world: &'w mut World,
    pub(crate) index: usize,
}

impl<'w> VolumeClient<'w> {
    pub(crate) fn of(world: &'w mut World, index: usize) -> Self {
        Self { world, index }
    }

    pub(crate) fn handle(&self) -> Option<Arc<Volume>> {
        self.world.rig.handles.volume(self.index)
    }

    pub(crate) fn model_mut(&mut self) -> &mut VolumeState {
        &mut self.world.models.volumes[self.index]
    }

    /// The newest state of the model.
    pub(crate) fn content(&self) -> &BlocksModel {
        self.world.models.volumes[self.index].history.newest()
    }

    /// What became of a call that makes the volume this model.
    pub(crate) fn written(
        &mut self,
        result: Result<(), FsError>,
        model: BlocksModel,
        handle: &Volume,
    ) -> Check {
        let Err(error) = result else {
            let volume = self.model_mut();
            volume.history.push(model);
            if volume.promise == Promise::Sync {
                volume.history.synced();
            }
            return Ok(());
        };
        let index = self.index;
        self.world.check(&ReservedFits { index, error: &error })?;
        match self.world.judge("volume", &error)? {
            Consequence::GoOn if self.model_mut().promise == Promise::Sync => {
                // Done and not made durable, perhaps.
                let mut shown = vec![0; model.size as usize];
                if let Err(error) = handle.read(0, &mut shown) {
                    return self.world.after_error("reading the volume", &error);
                }
                if shown == model.read(0, shown.len()) {
                    self.model_mut().history.push(model);
                }
                Ok(())
            }
            Consequence::GoOn => Ok(()),
            Consequence::Reopen => {
                self.model_mut().history.push(model);
                self.world.recover(false)
            }
        }
    }
}

/// One call to the first volume, or to a filesystem where there is none.
pub(crate) struct VolumeCall;

impl Act<World> for VolumeCall {
    fn perform(&mut self, world: &mut World) -> Check {
        if world.models.volumes.is_empty() {
            return FilesystemCall.perform(world);
        }
        let mut client = VolumeClient::of(world, 0);
        let Some(handle) = client.handle() else {
            return Ok(());
        };
        let mut model = client.content().clone();
        let random = &mut client.world.rig.random;
        let offset = random.below(model.size);
        let offset = if random.chance(1, 2) {
            offset / 4096 * 4096
        } else {
            offset
        };
        let length = random.skewed(200_000).max(1).min(model.size - offset);
        let choice = random.below(10);
        let (words, result) = match choice {
            0..=5 => {
                let mut offset = offset;
                let mut data = Content::choose(random, 200_000).bytes();
                if random.chance(1, 4) && !data.is_empty() {
                    // Whole chunks, many at once: such writes go past the pages.
                    offset = offset / CHUNK_OF_VOLUME * CHUNK_OF_VOLUME;
                    let length = random.between(8, 24) * CHUNK_OF_VOLUME;
                    let length = length.min((model.size - offset) / CHUNK_OF_VOLUME * CHUNK_OF_VOLUME);
                    data = data.iter().copied().cycle().take(length as usize).collect();
                }
                data.truncate((model.size - offset) as usize);
                model.write(offset, &data);
                (
                    format!("write {} at {offset}", data.len()),
                    handle.write(offset, &data),
                )
            }
            6 => {
                model.zero(offset, length);
                (
                    format!("discard {length} at {offset}"),
                    handle.discard(offset, length),
                )
            }
            7 => {
                model.zero(offset, length);
                (
                    format!("write zeroes {length} at {offset}"),
                    handle.write_zeroes(offset, length),
                )
            }
            _ => {
                let mut buffer = vec![0; length as usize];
                let result = handle.read(offset, &mut buffer);
                if result.is_ok() {
                    ensure!(
                        buffer == model.read(offset, length as usize),
                        "{length} bytes read at {offset} of a volume are not those that were written"
                    );
                }
                (format!("read {length} at {offset}"), result)
            }
        };
        trace!(client.world.rig.trace, "volume: {words}: {}", result.is_ok());
        if choice > 7 && result.is_ok() {
            return Ok(());
        }
        client.written(result, model, &handle)
    }
}
