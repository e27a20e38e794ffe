//! Calls that write, cut, reserve and read the data of files.
//!
//! Invariant: what is read is, byte for byte, what the model holds.

use terrace_dataset::{AllocateMode, Context, SetAttributes, Strip, Tree};

use super::call::{Change, Done};
use crate::{
    ensure,
    fs::{
        level::Run,
        state::{Refused, TreeModel},
    },
    models::Content,
    violation::Check,
};

/// From here on a file is long: it is freed in the background.
const LONG_BYTES: u64 = 16 << 20;

/// What one chunk holds at most.
const CHUNK_BYTES: u64 = 128 << 10;

/// Whether a change is one by a caller without CAP_FSETID. Goes by the numbers of the call, so that no chance is used for it.
pub(crate) fn strips(numbers: u64) -> bool {
    numbers.is_multiple_of(3)
}

/// User 0, with CAP_FSETID or without.
pub(crate) fn caller(strips: bool) -> Context {
    Context {
        strip: if strips { Strip::SetId } else { Strip::ByUser },
        ..Context::root()
    }
}

/// The set-id bits in the model after a change.
pub(crate) fn stripped(tree: &mut TreeModel, object: u64, strips: bool) -> Result<(), Refused> {
    match strips {
        true => tree.strip_set_id(object),
        false => Ok(()),
    }
}

impl Run {
    pub(crate) fn write(&mut self, index: usize, object: u64) -> Check {
        let size = self.filesystems[index]
            .history
            .newest()
            .tree
            .file(object)
            .map_or(0, |file| file.size);
        let most = *self.random.pick(&[300, 5_000, 70_000, 400_000]);
        let data = if self.random.chance(1, 12) {
            vec![0; self.random.between(1, most) as usize]
        } else {
            Content::choose(&mut self.random, most).bytes()
        };
        if self.random.chance(1, 8) {
            return self.rewrite(index, object, size);
        }
        let offset = match self.random.below(10) {
            0..=3 => size,
            4 => self.random.below(1 << 22),
            5 => self.random.below(200) * 4096,
            // Around the end, in its block or beyond it.
            6 => size.saturating_sub(self.random.below(700)),
            _ => self.random.below(size.max(1)),
        };
        if self.random.chance(1, 6) {
            let words = format!("append {} bytes to {object}", data.len());
            return self.call(index, &words, |fs, tree| {
                let result = fs.append(&Context::root(), object, &data, false);
                let written = result.as_ref().map_or(data.len(), |(_, written)| *written);
                let model = tree.write(object, size, &data[..written]);
                if let Ok((at, _)) = result
                    && at != size
                {
                    return Done::wrong(format!("appended at {at}, not {size}"));
                }
                Done::of(result, model, vec![object]).stamping(&[(object, Change::Content)])
            });
        }
        let words = format!("write {} bytes at {offset} of {object}", data.len());
        self.write_to(index, object, offset, &data, &words)
    }

    fn write_to(&mut self, index: usize, object: u64, offset: u64, data: &[u8], words: &str) -> Check {
        self.call(index, words, |fs, tree| {
            let strips = strips(offset + data.len() as u64);
            let result = fs.write(&Context::root(), object, offset, data, strips);
            let written = result.as_ref().map_or(data.len(), |written| *written);
            if written == 0 || written > data.len() {
                return Done::wrong(format!("{written} of {} bytes written", data.len()));
            }
            let file = tree.file(object);
            let promised = file.is_ok_and(|file| file.is_promised(offset, data.len() as u64));
            let model = tree.write(object, offset, &data[..written]);
            let model = model.and_then(|()| stripped(tree, object, strips));
            Done::of(result, model, vec![object])
                .stamping(&[(object, Change::Content)])
                .promised(promised)
        })
    }

    /// Writes to ranges for which room is set aside, while there is a file that fills the pool.
    pub(crate) fn write_the_preallocated(&mut self, index: usize) -> Check {
        let files = self.filesystems[index].history.newest().tree.promised_files();
        for object in files.into_iter().take(4) {
            let blocks: Vec<u64> = match self.filesystems[index].history.newest().tree.file(object) {
                Ok(file) => file.promised().iter().copied().collect(),
                Err(_) => continue,
            };
            for _ in 0..3 {
                let at = blocks[self.aside.index(blocks.len())];
                let run = blocks.iter().filter(|block| **block >= at).zip(at..);
                let run = run.take_while(|(block, next)| **block == *next).count() as u64;
                let count = self.aside.between(1, run.min(40));
                let content = Content {
                    texture: self.aside.below(4) as u8,
                    seed: self.aside.next(),
                    length: (count * 4096) as u32,
                };
                let words = format!("write {count} preallocated blocks from {at} on of {object}");
                self.write_to(index, object, at * 4096, &content.bytes(), &words)?;
                let tree = &self.filesystems[index].history.newest().tree;
                if tree.file(object).is_err() || self.filesystems[index].handle.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Writes a stream over what is there, or beyond it, with blocks of zeroes in it.
    fn rewrite(&mut self, index: usize, object: u64, size: u64) -> Check {
        let first = self.random.below(size / CHUNK_BYTES + 1);
        for number in first..first + self.random.between(1, 3) {
            let mut data = Content {
                texture: self.random.below(4) as u8,
                seed: self.random.next(),
                length: CHUNK_BYTES as u32,
            }
            .bytes();
            if self.random.chance(1, 2) {
                let from = self.random.index(CHUNK_BYTES as usize / 4096) * 4096;
                let to = from + self.random.index((CHUNK_BYTES as usize - from) / 4096 + 1) * 4096;
                data[from..to].fill(0);
            }
            let offset = number * CHUNK_BYTES;
            self.call(index, &format!("stream to {offset} of {object}"), |fs, tree| {
                let result = fs.write(&Context::root(), object, offset, &data, false);
                let written = result.as_ref().map_or(data.len(), |written| *written);
                let model = tree.write(object, offset, &data[..written]);
                Done::of(result, model, vec![object])
            })?;
        }
        Ok(())
    }

    pub(crate) fn truncate(&mut self, index: usize, object: u64) -> Check {
        let size = self.filesystems[index]
            .history
            .newest()
            .tree
            .file(object)
            .map_or(0, |file| file.size);
        let new = match self.random.below(5) {
            0 => 0,
            1 => size + self.random.below(1 << 20),
            _ => self.random.below(size + 1),
        };
        // Long files have their own way of going away.
        let new = match self.aside.below(16) {
            0 => LONG_BYTES + self.aside.below(LONG_BYTES),
            1..=7 if size > LONG_BYTES => 0,
            _ => new,
        };
        let words = format!("truncate {object} from {size} to {new}");
        self.call(index, &words, |fs, tree| {
            let change = SetAttributes {
                size: Some(new),
                ..SetAttributes::default()
            };
            let strips = strips(size + new);
            let result = fs.set_attributes(&caller(strips), object, &change);
            let model = tree.resize(object, new);
            let model = model.and_then(|()| stripped(tree, object, strips));
            Done::of(result, model, vec![object])
                .stamping(&[(object, Change::Content)])
                .freeing(new <= size)
        })
    }

    pub(crate) fn allocate(&mut self, index: usize, object: u64) -> Check {
        let size = self.filesystems[index]
            .history
            .newest()
            .tree
            .file(object)
            .map_or(0, |file| file.size);
        let offset = self.random.below(size.max(1) + 5000);
        let length = self.random.skewed(300_000).max(1);
        let keep_size = self.random.chance(1, 2);
        let mode = *self.random.pick(&[
            AllocateMode::Punch,
            AllocateMode::Punch,
            AllocateMode::Zero { keep_size },
            AllocateMode::Reserve { keep_size },
        ]);
        let words = format!("allocate {mode:?} {length} bytes at {offset} of {object}");
        self.call(index, &words, |fs, tree| {
            let strips = strips(offset + length);
            let result = fs.allocate(&caller(strips), object, mode, offset, length);
            let model = match mode {
                AllocateMode::Punch => tree.punch(object, offset, length),
                AllocateMode::Zero { keep_size } => tree
                    .zero(object, offset, length, !keep_size)
                    .and_then(|()| tree.preallocate(object, offset, length, false)),
                AllocateMode::Reserve { keep_size } => tree.preallocate(object, offset, length, !keep_size),
            };
            let model = model.and_then(|()| stripped(tree, object, strips));
            Done::of(result, model, vec![object]).stamping(&[(object, Change::Content)])
        })
    }

    pub(crate) fn read(&mut self, index: usize, object: u64) -> Check {
        let filesystem = &self.filesystems[index];
        if filesystem.handle.is_none() {
            return Ok(());
        }
        let Ok(size) = filesystem
            .history
            .newest()
            .tree
            .file(object)
            .map(|file| file.size)
        else {
            return Ok(());
        };
        let offset = self.random.below(size + 4096);
        let length = self.random.skewed(300_000) as usize;
        if self.random.chance(1, 4) {
            return self.seek(index, object, offset);
        }
        self.read_and_compare(index, object, offset, length)?;
        self.read_again(index, object, offset)
    }

    fn read_and_compare(&mut self, index: usize, object: u64, offset: u64, length: usize) -> Check {
        let filesystem = &self.filesystems[index];
        let file = filesystem.history.newest().tree.file(object).cloned();
        let (Some(handle), Ok(file)) = (filesystem.handle.clone(), file) else {
            return Ok(());
        };
        let mut buffer = vec![0xEE; length];
        match handle.read(object, offset, &mut buffer) {
            Ok(read) => {
                ensure!(
                    buffer[..read] == file.read(offset, length),
                    "{read} bytes read at {offset} of object {object} are not those that were written"
                );
                Ok(())
            }
            Err(error) => self.after_error("read", &error),
        }
    }

    /// In some runs the same again and again, past RAM, beside the mover: so it is hot, chunk by chunk.
    fn read_again(&mut self, index: usize, object: u64, offset: u64) -> Check {
        for _ in 1..self.rig.reads_of_the_same {
            let Some(engine) = self.engine.clone() else {
                return Ok(());
            };
            engine.environment().cache.clear();
            if let Err(error) = engine.mover().step() {
                return self.excuse("step of the mover", &error.to_string());
            }
            drop(engine);
            self.read_and_compare(index, object, offset, 4096)?;
        }
        Ok(())
    }

    /// In the same runs, what was moved by hand is moved at once, and some of it then read.
    pub(crate) fn use_what_was_moved(&mut self, index: usize, files: &[u64]) -> Check {
        if self.rig.reads_of_the_same < 2 {
            return Ok(());
        }
        let engine = self.engine()?;
        for _ in 0..64 {
            if let Err(error) = engine.mover().step() {
                return self.excuse("step of the mover", &error.to_string());
            }
        }
        drop(engine);
        for object in files.iter().take(4) {
            self.read_again(index, *object, 0)?;
        }
        Ok(())
    }
}
