//! Calls that write, cut, reserve and read the data of files.
//!
//! Invariant: what is read is, byte for byte, what the model holds.

use terrace_dataset::{AllocateMode, Context, FileKind, SetAttributes, Strip, Tree};

use super::{
    call::{Change, Client, Done},
    names::Create,
    seek::Seek,
    workload::{Chosen, FileCall},
};
use crate::{
    ensure,
    fs::models::{Refused, TreeModel},
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

/// Data of any length anywhere in a file or beyond it; a new file where there is none.
pub(crate) struct Write;

impl FileCall for Write {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let Some(object) = chosen.file else {
            return Create(FileKind::File).perform(client, chosen);
        };
        let size = client.size_of(object);
        let most = *client.random().pick(&[300, 5_000, 70_000, 400_000]);
        let data = if client.random().chance(1, 12) {
            vec![0; client.random().between(1, most) as usize]
        } else {
            Content::choose(client.random(), most).bytes()
        };
        if client.random().chance(1, 8) {
            return Self::rewrite(client, object, size);
        }
        let offset = match client.random().below(10) {
            0..=3 => size,
            4 => client.random().below(1 << 22),
            5 => client.random().below(200) * 4096,
            // Around the end, in its block or beyond it.
            6 => size.saturating_sub(client.random().below(700)),
            _ => client.random().below(size.max(1)),
        };
        if client.random().chance(1, 6) {
            let words = format!("append {} bytes to {object}", data.len());
            return client.call(&words, |fs, tree| {
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
        Self::write_to(client, object, offset, &data, &words)
    }
}

impl Write {
    fn write_to(client: &mut Client<'_>, object: u64, offset: u64, data: &[u8], words: &str) -> Check {
        client.call(words, |fs, tree| {
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
    pub(super) fn write_the_preallocated(client: &mut Client<'_>) -> Check {
        let files = client.tree().promised_files();
        for object in files.into_iter().take(4) {
            let blocks: Vec<u64> = match client.tree().file(object) {
                Ok(file) => file.promised().iter().copied().collect(),
                Err(_) => continue,
            };
            for _ in 0..3 {
                let aside = client.aside();
                let at = blocks[aside.index(blocks.len())];
                let run = blocks.iter().filter(|block| **block >= at).zip(at..);
                let run = run.take_while(|(block, next)| **block == *next).count() as u64;
                let count = aside.between(1, run.min(40));
                let content = Content {
                    texture: aside.below(4) as u8,
                    seed: aside.next(),
                    length: (count * 4096) as u32,
                };
                let words = format!("write {count} preallocated blocks from {at} on of {object}");
                Self::write_to(client, object, at * 4096, &content.bytes(), &words)?;
                if client.tree().file(object).is_err() || client.handle().is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Writes a stream over what is there, or beyond it, with blocks of zeroes in it.
    fn rewrite(client: &mut Client<'_>, object: u64, size: u64) -> Check {
        let first = client.random().below(size / CHUNK_BYTES + 1);
        for number in first..first + client.random().between(1, 3) {
            let mut data = Content {
                texture: client.random().below(4) as u8,
                seed: client.random().next(),
                length: CHUNK_BYTES as u32,
            }
            .bytes();
            if client.random().chance(1, 2) {
                let from = client.random().index(CHUNK_BYTES as usize / 4096) * 4096;
                let to = from + client.random().index((CHUNK_BYTES as usize - from) / 4096 + 1) * 4096;
                data[from..to].fill(0);
            }
            let offset = number * CHUNK_BYTES;
            client.call(&format!("stream to {offset} of {object}"), |fs, tree| {
                let result = fs.write(&Context::root(), object, offset, &data, false);
                let written = result.as_ref().map_or(data.len(), |written| *written);
                let model = tree.write(object, offset, &data[..written]);
                Done::of(result, model, vec![object])
            })?;
        }
        Ok(())
    }
}

/// Another size of a file.
pub(crate) struct Truncate;

impl FileCall for Truncate {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let Some(object) = chosen.file else {
            return Ok(());
        };
        let size = client.size_of(object);
        let new = match client.random().below(5) {
            0 => 0,
            1 => size + client.random().below(1 << 20),
            _ => client.random().below(size + 1),
        };
        // Long files have their own way of going away.
        let new = match client.aside().below(16) {
            0 => LONG_BYTES + client.aside().below(LONG_BYTES),
            1..=7 if size > LONG_BYTES => 0,
            _ => new,
        };
        let words = format!("truncate {object} from {size} to {new}");
        client.call(&words, |fs, tree| {
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
}

/// A range of a file is reserved, made zero, or made a hole.
pub(crate) struct Allocate;

impl FileCall for Allocate {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let Some(object) = chosen.file else {
            return Ok(());
        };
        let size = client.size_of(object);
        let offset = client.random().below(size.max(1) + 5000);
        let length = client.random().skewed(300_000).max(1);
        let keep_size = client.random().chance(1, 2);
        let mode = *client.random().pick(&[
            AllocateMode::Punch,
            AllocateMode::Punch,
            AllocateMode::Zero { keep_size },
            AllocateMode::Reserve { keep_size },
        ]);
        let words = format!("allocate {mode:?} {length} bytes at {offset} of {object}");
        client.call(&words, |fs, tree| {
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
}

/// A range of a file is read, or looked through for data and holes.
pub(crate) struct Read;

impl FileCall for Read {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let Some(object) = chosen.file else {
            return Ok(());
        };
        if client.handle().is_none() {
            return Ok(());
        }
        let Some(size) = client.file(object).map(|file| file.size) else {
            return Ok(());
        };
        let offset = client.random().below(size + 4096);
        let length = client.random().skewed(300_000) as usize;
        if client.random().chance(1, 4) {
            return Seek::choose(client, offset).within(client, object);
        }
        Self::read_and_compare(client, object, offset, length)?;
        Self::read_again(client, object, offset)
    }
}

impl Read {
    /// Reads a range, and compares it with the model.
    fn read_and_compare(client: &mut Client<'_>, object: u64, offset: u64, length: usize) -> Check {
        let (Some(handle), Some(file)) = (client.handle(), client.file(object)) else {
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
            Err(error) => client.world.after_error("read", &error),
        }
    }

    /// In some runs the same again and again, past RAM, beside the mover: so it is hot, chunk by chunk.
    pub(crate) fn read_again(client: &mut Client<'_>, object: u64, offset: u64) -> Check {
        for _ in 1..client.world.rig.reads_of_the_same {
            let Some(engine) = client.world.rig.engine.clone() else {
                return Ok(());
            };
            engine.environment().cache.clear();
            if let Err(error) = engine.mover().step() {
                return client.world.excuse("step of the mover", &error.to_string());
            }
            drop(engine);
            Self::read_and_compare(client, object, offset, 4096)?;
        }
        Ok(())
    }
}
