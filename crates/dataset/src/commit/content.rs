//! Content of what was frozen, on its way to the store in groups.
//!
//! Invariants: the pages are cut as `chunking` says, and nothing is read to be written again; the chunk at the end of a file ends where
//! the file ends.

use super::{
    chunk_writer::ChunkWriter,
    chunking::{Part, Run, joined, runs},
    freeze::{Frozen, FrozenObject},
};
use crate::{
    objects::{Layer, SLOT_BLOCKS, Slot},
    posix::FsError,
    settings::Settings,
};
use std::{borrow::Cow, sync::Arc};
use terrace_store::{BLOCK_BYTES, ChunkId, Store, Trial, Written};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Content handed to the store at once, bytes.
const WRITE_BYTES: usize = 8 << 20;
/// Pieces handed to the store at once.
const WRITE_PIECES: usize = 512;

/// Blocks of an object that became one chunk, or (no chunk) a hole.
pub(super) struct Placed {
    pub(super) object: usize,
    pub(super) block: u64,
    pub(super) count: u32,
    pub(super) chunk: Option<ChunkId>,
}

/// Collects pieces and hands them to the store in groups.
pub(super) struct Writer<'a> {
    chunks: &'a ChunkWriter,
    store: &'a dyn Store,
    settings: Arc<Settings>,
    checkpoint: u64,
    waiting: Vec<(Placed, Cow<'a, [u8]>, Trial, &'a FrozenObject)>,
    waiting_bytes: usize,
    placed: Vec<Placed>,
    written: Vec<Written>,
}

impl<'a> Writer<'a> {
    /// Writes the content of what was frozen; what became of it, by object and block, and the chunks that it is in.
    pub(super) fn write_all(
        chunks: &'a ChunkWriter,
        store: &'a dyn Store,
        settings: Arc<Settings>,
        frozen: &'a Frozen,
    ) -> Result<(Vec<Placed>, Vec<Written>), FsError> {
        let mut writer = Writer {
            chunks,
            store,
            settings,
            checkpoint: frozen.checkpoint,
            waiting: Vec::new(),
            waiting_bytes: 0,
            placed: Vec::new(),
            written: Vec::new(),
        };
        for (at, object) in frozen.objects.iter().enumerate() {
            if let Some(layer) = object.data.as_ref().filter(|_| !object.freed) {
                writer.object(at, object, layer)?;
            }
        }
        writer.write()?;
        let (mut placed, written) = (writer.placed, writer.written);
        // Chunks and holes of one object come together, each after the other.
        placed.sort_by_key(|place| (place.object, place.block));
        Ok((placed, written))
    }

    fn add(
        &mut self,
        place: Placed,
        content: Cow<'a, [u8]>,
        trial: Trial,
        frozen: &'a FrozenObject,
    ) -> Result<(), FsError> {
        self.waiting_bytes += content.len();
        self.waiting.push((place, content, trial, frozen));
        if self.waiting_bytes >= WRITE_BYTES || self.waiting.len() >= WRITE_PIECES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), FsError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let parts: Vec<Part<'_>> = self
            .waiting
            .iter()
            .map(|(place, content, trial, frozen)| Part {
                content,
                trial: *trial,
                object: frozen.object.number,
                block: place.block,
                flow: frozen.flow,
                plain: frozen.inode.preallocated.as_ref().is_some_and(|ranges| {
                    ranges.intersects(place.block, place.block + u64::from(place.count))
                }),
            })
            .collect();
        let written = self.chunks.store_parts(&self.settings, self.checkpoint, &parts)?;
        drop(parts);
        for ((mut place, ..), chunk) in self.waiting.drain(..).zip(written) {
            place.chunk = Some(chunk.id);
            self.placed.push(place);
            self.written.push(chunk);
        }
        self.waiting_bytes = 0;
        Ok(())
    }

    /// The dirty blocks of one object.
    fn object(&mut self, at: usize, frozen: &'a FrozenObject, layer: &'a Layer) -> Result<(), FsError> {
        let settings = self.settings.clone();
        let size = frozen.inode.size;
        for (number, slot) in layer.slots() {
            let content_of =
                |run: &Run| content(slot, run, size.saturating_sub(number * SLOT_BLOCKS * BLOCK));
            let store = self.store;
            for run in joined(store, &settings, runs(slot, settings.chunk_bytes), content_of) {
                let Run {
                    index,
                    count,
                    zero,
                    trial,
                } = run;
                let block = number * SLOT_BLOCKS + u64::from(index);
                let place = Placed {
                    object: at,
                    block,
                    count,
                    chunk: None,
                };
                let content = if zero {
                    Cow::Borrowed(&[][..])
                } else {
                    content_of(&run)
                };
                if content.is_empty() {
                    self.placed.push(place);
                    continue;
                }
                self.add(place, content, trial, frozen)?;
            }
        }
        Ok(())
    }
}

/// The content of a run of a slot, of which so many bytes belong to the file.
fn content<'a>(slot: &'a Slot, run: &Run, file_bytes: u64) -> Cow<'a, [u8]> {
    let (index, count) = (run.index, run.count);
    let end = file_bytes.saturating_sub(u64::from(index) * BLOCK);
    let length = (u64::from(count) * BLOCK).min(end) as usize;
    if let Some(bytes) = slot.run(index, count) {
        return Cow::Borrowed(&bytes[..length]);
    }
    let mut packed = Vec::with_capacity(count as usize * BLOCK_BYTES);
    let pages = (index..index + count).filter_map(|at| slot.page(at));
    pages.for_each(|page| packed.extend_from_slice(page));
    packed.truncate(length);
    Cow::Owned(packed)
}
