//! A volume as those use it that serve it (NBD, vhost-user, ublk), in some of the runs, beside the others: writes whole and in
//! pieces, zeroes and discards at and beside the bounds of chunks, writes through the cache (FUA: the change, then a flush of
//! this volume), questions about data and holes; on every rung of durability, which changes at any time.
//!
//! What must hold: what a flush promised on that rung is there after whatever follows at once, and a flush of one volume makes
//! nothing of the others go back; a commit that asks for durability whatever the rung is has it on each; what is told to be a
//! hole reads as zeroes, and whole blocks that were discarded are told to be one; a higher rung makes durable what was there.

use std::sync::Arc;

use terrace_dataset::{BlockDevice, BlockRead, FsError, NewDataset, Volume};

use crate::{
    act::Act,
    ensure,
    fs::{
        admin::SetPromise,
        clients::VolumeClient,
        models::{BLOCK, BlocksModel, Promise, VolumeState},
        world::World,
    },
    hardware::Random,
    models::{Content, History},
    trace,
    violation::{Check, Violation},
};

/// What a guest's long write is cut into.
const PIECE_BYTES: usize = 64 << 10;
/// A sector, the smallest that a client may ask for.
const SECTOR: u64 = 512;

/// The volume that is served.
pub(crate) struct Serving {
    /// Chance of its own, so that it does not change what else a seed does.
    random: Random,
    happens: bool,
    /// Which of the run's volumes it is.
    index: usize,
    chunk_bytes: u64,
}

impl Serving {
    pub(crate) fn new(seed: u64) -> Self {
        // A number with which the seeds that are kept do as they did.
        let mut random = Random::new(seed ^ 0xB10C_0203_9D00);
        Self {
            happens: random.chance(1, 3),
            random,
            index: 0,
            chunk_bytes: 0,
        }
    }

    /// A range of a volume of this size, at the bounds of chunks, beside them, or anywhere.
    fn range(&mut self, size: u64) -> (u64, u64) {
        let random = &mut self.random;
        let chunk = self.chunk_bytes;
        let offset = random.below(size.div_ceil(chunk)) * chunk;
        let chunks = random.between(1, (400_000 / chunk).min(8)) * chunk;
        let beside = *random.pick(&[SECTOR, BLOCK as u64, chunk / 2, chunk - SECTOR]);
        let (offset, length) = match random.below(7) {
            0 | 1 => (offset, chunks),
            2 => (offset.saturating_sub(beside), chunks),
            3 => (offset + beside, chunks),
            4 => (offset, chunks + beside),
            5 => (
                random.below(size / SECTOR) * SECTOR,
                (random.skewed(256) + 1) * SECTOR,
            ),
            _ => (random.below(size), random.skewed(200_000) + 1),
        };
        let offset = offset.min(size - 1);
        (offset, length.min(size - offset))
    }

    fn data(&mut self, length: u64) -> Vec<u8> {
        if self.random.chance(1, 8) {
            return vec![0; length as usize];
        }
        let content = Content::choose(&mut self.random, 200_000).bytes();
        content.into_iter().cycle().take(length as usize).collect()
    }
}

impl Act<World> for Serving {
    /// Makes the volume that is served.
    fn begin(&mut self, world: &mut World) -> Check {
        if !self.happens {
            return Ok(());
        }
        let random = &mut self.random;
        let name = "pool/served".to_string();
        let chunk_bytes = *random.pick(&[4 << 10, 16 << 10, 64 << 10, 128 << 10]);
        let size = random.between(1, 700) * BLOCK as u64;
        let promise = *random.pick(&Promise::ALL);
        trace!(
            world.rig.trace,
            "create {name} of {size}, chunks of {chunk_bytes}, {promise:?}"
        );
        let new = NewDataset {
            properties: vec![
                ("durability".into(), promise.word().into()),
                ("chunk_size".into(), format!("{}K", chunk_bytes >> 10)),
            ],
            volume_bytes: Some(size),
            sparse: true,
            ..NewDataset::default()
        };
        let engine = world.rig.engine()?;
        let made = engine.datasets().create(&name, &new);
        made.map_err(|error| Violation(format!("cannot make {name}: {error}")))?;
        let handle = engine.datasets().volume(&name);
        let handle = handle.map_err(|error| Violation(format!("{name} does not open: {error}")))?;
        (self.index, self.chunk_bytes) = (world.models.volumes.len(), chunk_bytes);
        world.rig.handles.open_volume(self.index, handle);
        world.models.volumes.push(VolumeState {
            name,
            promise,
            history: History::new(BlocksModel::sized(size)),
            snapshots: Default::default(),
        });
        Ok(())
    }

    /// Now and then requests come for it.
    fn perform(&mut self, world: &mut World) -> Check {
        if !self.happens || !world.rig.is_powered() || !self.random.chance(1, 4) {
            return Ok(());
        }
        let index = self.index;
        let Some(handle) = world.rig.handles.volume(index) else {
            return Ok(());
        };
        let size = world.models.volumes[index].history.newest().size;
        let (offset, length) = self.range(size);
        let uncertain = world.models.volumes[index].history.uncertain();
        let changed = match self.random.below(12) {
            0..=3 => self.request_write(world, &handle, offset, length)?,
            4 | 5 => self.request_zeroes(world, &handle, offset, length, true)?,
            6 | 7 => self.request_zeroes(world, &handle, offset, length, false)?,
            8 => return self.request_flush(world, &handle, false),
            9 => return self.request_status(world, &handle, offset, length),
            10 => return self.request_reads(world, &handle, offset, length),
            _ => return self.set_rung(world),
        };
        trace!(world.rig.trace, "served: {changed}, {uncertain} uncertain before");
        match changed && self.random.chance(1, 2) {
            true => self.request_flush(world, &handle, true),
            false => Ok(()),
        }
    }
}

impl Serving {
    /// A write, whole or in pieces; whether all of it was done, and the volume is still open.
    fn request_write(
        &mut self,
        world: &mut World,
        handle: &Arc<Volume>,
        offset: u64,
        length: u64,
    ) -> Check<bool> {
        let data = self.data(length);
        let in_pieces = self.random.chance(1, 2);
        // Drawn and not used: without it every kept seed would mean another run.
        self.random.chance(1, 3);
        trace!(
            world.rig.trace,
            "served: write {length} at {offset}, in pieces: {in_pieces}"
        );
        let piece = if in_pieces { PIECE_BYTES } else { data.len() };
        let mut at = offset;
        for piece in data.chunks(piece.max(1)) {
            let mut model = world.models.volumes[self.index].history.newest().clone();
            model.write(at, piece);
            let written = handle.write(at, piece);
            if !self.request_done(world, written, model, handle)? {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
        Ok(true)
    }

    fn request_zeroes(
        &mut self,
        world: &mut World,
        handle: &Arc<Volume>,
        offset: u64,
        length: u64,
        discards: bool,
    ) -> Check<bool> {
        let mut model = world.models.volumes[self.index].history.newest().clone();
        // What is no whole block of it is written first, and a commit may come between: no sector is half done, but not all are
        // done at once.
        let (block, end) = (BLOCK as u64, offset + length);
        let (head, tail) = (offset.next_multiple_of(block).min(end), end / block * block);
        let mut parts = Vec::new();
        for (from, to) in [(offset, head), (tail.max(head), end)] {
            if from < to {
                model.zero(from, to - from);
                parts.push(model.clone());
            }
        }
        model.zero(offset, length);
        trace!(
            world.rig.trace,
            "served: zero {length} at {offset}, discard: {discards}"
        );
        let device: &dyn BlockDevice = &**handle;
        let done = match discards {
            true => device.discard(offset, length),
            false => device.write_zeroes(offset, length),
        };
        if done.is_err() {
            // Some of it may be done, as far as one can see.
            let mut shown = vec![0; model.size as usize];
            let is_shown = handle.read(0, &mut shown).is_ok();
            parts.retain(|part| is_shown && part.read(0, shown.len()) == shown);
        }
        for part in parts {
            world.models.volumes[self.index].history.push(part);
        }
        if !self.request_done(world, done, model, handle)? {
            return Ok(false);
        }
        // Whole blocks of it are holes now.
        let (from, to) = (offset.next_multiple_of(block), tail);
        if from < to {
            match handle.block_status(from, to - from, usize::MAX >> 1) {
                Ok(pieces) => ensure!(
                    pieces.iter().all(|piece| !piece.data),
                    "{length} bytes at {offset} of a volume were made zeroes, and are told to hold data: {pieces:?}"
                ),
                Err(error) => {
                    world.after_error("asking what is data", &error)?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether a request was done, and the same engine goes on.
    fn request_done(
        &self,
        world: &mut World,
        done: Result<(), FsError>,
        model: BlocksModel,
        handle: &Volume,
    ) -> Check<bool> {
        let is_done = done.is_ok();
        VolumeClient::of(world, self.index).written(done, model, handle)?;
        Ok(is_done)
    }

    /// A flush of this volume, after a write through the cache or by itself; now and then the power goes right behind it.
    fn request_flush(&mut self, world: &mut World, handle: &Arc<Volume>, through: bool) -> Check {
        let whatever = self.random.chance(1, 4);
        let done = match whatever {
            true => handle.flush_always(),
            false => BlockDevice::flush(&**handle),
        };
        if let Err(error) = done {
            return world.after_error("a flush of the served volume", &error);
        }
        let volume = &mut world.models.volumes[self.index];
        trace!(
            world.rig.trace,
            "served: flushed, through: {through}, whatever the rung: {whatever}, {:?}", volume.promise
        );
        if whatever || volume.promise.covers_flush() {
            volume.history.synced();
            world.models.flushed();
        }
        match self.random.below(16) {
            0 => world.recover(true),
            1 => {
                let after = self.random.skewed(60);
                world.rig.machine.cut_power_after(Some(after));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Data and holes of a range, of which only some may be told at once.
    fn request_status(&mut self, world: &mut World, handle: &Arc<Volume>, offset: u64, length: u64) -> Check {
        let limit = *self.random.pick(&[1, 2, 100]);
        let model = world.models.volumes[self.index].history.newest().clone();
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let pieces = match handle.block_status(at, end - at, limit) {
                Ok(pieces) => pieces,
                Err(error) => return world.after_error("asking what is data", &error),
            };
            ensure!(
                !pieces.is_empty(),
                "nothing is told of {} bytes at {at}",
                end - at
            );
            for piece in pieces {
                ensure!(
                    piece.offset == at && piece.length > 0 && piece.offset + piece.length <= end,
                    "of {at} to {end} of a volume {piece:?} is told"
                );
                ensure!(
                    piece.data
                        || model
                            .read(piece.offset, piece.length as usize)
                            .iter()
                            .all(|byte| *byte == 0),
                    "{piece:?} is told to be a hole, and holds data"
                );
                at += piece.length;
            }
        }
        Ok(())
    }

    /// Several reads at once, one of which may lie behind the end.
    fn request_reads(&mut self, world: &mut World, handle: &Arc<Volume>, offset: u64, length: u64) -> Check {
        let model = world.models.volumes[self.index].history.newest().clone();
        let (second, more) = self.range(model.size);
        let behind = self.random.chance(1, 6);
        let third = if behind { model.size - 1 } else { second / 2 };
        let wanted = [(offset, length), (second, more), (third, 2)];
        let mut buffers: Vec<Vec<u8>> = wanted
            .iter()
            .map(|(_, length)| vec![0xEE; *length as usize])
            .collect();
        let mut reads: Vec<BlockRead<'_>> = wanted
            .iter()
            .zip(&mut buffers)
            .map(|((offset, _), buffer)| BlockRead::new(*offset, buffer))
            .collect();
        handle.read_many(&mut reads);
        let outcomes: Vec<_> = reads.into_iter().map(|read| read.outcome).collect();
        for (((offset, length), outcome), buffer) in wanted.into_iter().zip(outcomes).zip(&buffers) {
            match outcome {
                Ok(()) => ensure!(
                    offset + length <= model.size && *buffer == model.read(offset, length as usize),
                    "{length} bytes read at {offset} of the served volume are not those that were written"
                ),
                Err(FsError::Invalid) if offset + length > model.size => {}
                Err(error) => return world.after_error("reading the served volume", &error),
            }
        }
        Ok(())
    }

    /// Another rung of durability; what a lower one left in RAM is durable on a higher one.
    fn set_rung(&mut self, world: &mut World) -> Check {
        let index = self.index;
        let name = world.models.volumes[index].name.clone();
        let promise = *self.random.pick(&Promise::ALL);
        let (is_set, found) = SetPromise { name: &name, promise }.set(world)?;
        let volume = &mut world.models.volumes[index];
        let before = std::mem::replace(&mut volume.promise, found);
        if is_set && promise.covers_flush() && !before.covers_flush() {
            volume.history.synced();
        }
        Ok(())
    }
}
