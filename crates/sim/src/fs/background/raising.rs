//! Blocks of the run get chunks of their own on some tier, as what is read often does.
//!
//! What must hold: nobody sees anything of it, now or in the past, whenever it is interrupted, and all counts stay exact.

use std::sync::Arc;

use terrace_dataset::{Fragment, FsError, HotPiece, ROOT, Tree, body_of_object, read_region};
use terrace_store::Store;

use crate::{
    act::Act,
    ensure,
    fs::{models::Body, world::World},
    hardware::Random,
    trace,
    violation::Check,
};

/// Raises some blocks of something, in one of eight turns.
pub(crate) struct Raise {
    random: Random,
}

impl Act<World> for Raise {
    fn perform(&mut self, world: &mut World) -> Check {
        if !self.random.chance(1, 8) {
            return Ok(());
        }
        if !world.models.volumes.is_empty() && self.random.chance(1, 3) {
            return self.raise_in_volume(world);
        }
        let index = self.random.index(world.models.filesystems.len());
        let Some(handle) = world.rig.handles.filesystem(index) else {
            return Ok(());
        };
        let tree = &world.models.filesystems[index].history.newest().tree;
        let files = tree.objects(|node| matches!(node.body, Body::File(_)));
        if files.is_empty() {
            return Ok(());
        }
        let object = *self.random.pick(&files);
        let Ok(file) = tree.file(object).cloned() else {
            return Ok(());
        };
        // RAM may have what is raised, or not.
        let mut buffer = vec![0xEE; 1 << 20];
        let offset = self.random.below(file.size.max(1)) & !((1 << 20) - 1);
        if self.random.chance(1, 2)
            && let Err(error) = handle.read(object, offset, &mut buffer[..100_000])
        {
            return world.after_error("read", &error);
        }
        let before = handle.attributes(object);
        if !self.raise_some(world, handle.dataset().number(), object, offset >> 20)? {
            return Ok(());
        }
        match (before, handle.attributes(object)) {
            (Ok(before), Ok(after)) => ensure!(
                before == after,
                "object {object} was {before:?} before blocks of it rose, and is {after:?} after it"
            ),
            (Err(error), _) | (_, Err(error)) => return world.after_error("attributes", &error),
        }
        match handle.read(object, offset, &mut buffer) {
            Ok(read) => {
                ensure!(
                    buffer[..read] == file.read(offset, buffer.len()),
                    "blocks of object {object} rose, and its content from {offset} on changed"
                );
                Ok(())
            }
            Err(error) => world.after_error("read", &error),
        }
    }
}

impl Raise {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0x4153_0000_0000),
        }
    }

    fn raise_in_volume(&mut self, world: &mut World) -> Check {
        let Some(handle) = world.rig.handles.volume(0) else {
            return Ok(());
        };
        let model = world.models.volumes[0].history.newest().clone();
        let offset = self.random.below(model.size.max(1)) & !((1 << 20) - 1);
        if !self.raise_some(world, handle.dataset().number(), ROOT, offset >> 20)? {
            return Ok(());
        }
        let mut buffer = vec![0xEE; (model.size - offset).min(1 << 20) as usize];
        match handle.read(offset, &mut buffer) {
            Ok(()) => {
                ensure!(
                    buffer == model.read(offset, buffer.len()),
                    "blocks of a volume rose, and its content from {offset} on changed"
                );
                Ok(())
            }
            Err(error) => world.after_error("read of a volume", &error),
        }
    }

    /// Raises some blocks of a region; whether the pool is as it was before, but for that.
    fn raise_some(&mut self, world: &mut World, dataset: u32, object: u64, region: u64) -> Check<bool> {
        let engine = world.rig.engine()?;
        let store: Arc<dyn Store> = engine.chunks().clone();
        let found = body_of_object(&store, dataset, object).and_then(|body| {
            let Some(body) = body else { return Ok(None) };
            let found = read_region(&*store, dataset, body, region)?;
            Ok(found.map(|found| (body, found.record)))
        });
        let (body, record) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(false),
            Err(error) => {
                world.after_error("a look for a region", &FsError::from(error))?;
                return Ok(false);
            }
        };
        let mut pieces = Vec::new();
        for run in record.runs() {
            let is_new = pieces.iter().all(|piece: &HotPiece| piece.chunk != run.chunk);
            if is_new && self.random.chance(1, 3) {
                let blocks = self.random.below(1 << 32) as u32;
                pieces.push(HotPiece {
                    fragment: Fragment {
                        dataset,
                        body,
                        region,
                        object,
                    },
                    chunk: run.chunk,
                    blocks: blocks & self.random.below(1 << 32) as u32 | 1 << run.index,
                });
            }
        }
        let tier = self.random.index(store.space().tiers.len()) as u8;
        let raised = engine.datasets().raise(&pieces, tier);
        trace!(
            world.rig.trace,
            "{} pieces of {object}, region {region}, to tier {tier}: {raised:?}",
            pieces.len()
        );
        match raised {
            Ok(_) => Ok(true),
            Err(error) => {
                world.after_error("raise", &error)?;
                Ok(false)
            }
        }
    }
}
