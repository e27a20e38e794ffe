//! Writing through: a large write of a stream that consists of whole chunks goes to the store from where it came, and never
//! becomes pages. Copied into pages first, it would be out of the processor's caches when it is hashed, and the copy alone costs
//! half as much as the hash.
//!
//! Invariants: as for what is written ahead (`write_ahead.rs`): the layer holds the chunks until the commit that refers to
//! them. The content is stored under no lock, and takes its place in the layer at one moment, like that of any other write;
//! room for all of it was taken before. What cannot be written so is written as pages, which says why.

use std::sync::Arc;

use terrace_store::BLOCK_BYTES;

use crate::{
    error::FsError,
    freeze::STREAM_BYTES,
    live::LiveDataset,
    object::{Object, State},
    pieces::{Part, blocks_of, runs_of_data},
    settings::Durability,
    write_ahead::Stored,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Smaller writes cost the store more, one by one, than the copy.
const BYTES_MIN: usize = 128 << 10;
/// Of larger ones a freeze would wait too long for what is put in its place at a time.
const BYTES_MAX: usize = 1 << 20;

/// Content that is stored, on its way into the layer; the room that was taken for it comes back when this is dropped.
pub(crate) struct Through<'a> {
    live: &'a LiveDataset,
    room_bytes: u64,
    stored: Stored,
}

impl Drop for Through<'_> {
    fn drop(&mut self) {
        self.live.rooms.give(self.room_bytes);
    }
}

impl LiveDataset {
    /// Stores what is to be written, if it suits; no lock is held.
    pub(crate) fn store_through(
        &self,
        object: &Arc<Object>,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<Through<'_>>, FsError> {
        let settings = self.settings();
        let chunk = u64::from(blocks_of(settings.chunk_bytes)) * BLOCK;
        let suits = (BYTES_MIN..=BYTES_MAX).contains(&data.len())
            && offset.is_multiple_of(chunk)
            && (data.len() as u64).is_multiple_of(chunk)
            && settings.durability != Durability::Ram;
        if !suits {
            return Ok(None);
        }
        let mut writes = object.state.lock().writes;
        writes.note(offset, data.len() as u64);
        if writes.run_bytes() < self.ahead_run_bytes() {
            return Ok(None);
        }
        let flow = match writes.run_bytes() >= STREAM_BYTES {
            true => terrace_store::Flow::Sequential,
            false => terrace_store::Flow::Random,
        };
        let (first, last) = (offset / BLOCK, (offset + data.len() as u64) / BLOCK);
        let mut over = || self.mapped_bytes(object, first, last);
        self.take_room_over(data.len() as u64, &mut over)?;
        let mut through = Through {
            live: self,
            room_bytes: data.len() as u64,
            stored: Vec::new(),
        };
        let mut parts = Vec::new();
        for run in runs_of_data(data, settings.chunk_bytes) {
            let block = first + u64::from(run.index);
            if !run.zero {
                let from = run.index as usize * BLOCK_BYTES;
                parts.push(Part {
                    content: &data[from..from + run.count as usize * BLOCK_BYTES],
                    object: object.number,
                    block,
                    flow,
                });
            }
            through.stored.push((block, run.count, None));
        }
        let checkpoint = self.dataset.current_checkpoint();
        let mut written = match self.store_parts(&settings, checkpoint, &parts) {
            Ok(written) => written.into_iter().zip(&parts).peekable(),
            Err(error) => {
                tracing::debug!(%error, "a stream could not be written through");
                return Ok(None);
            }
        };
        for (block, _, chunk) in &mut through.stored {
            *chunk = written
                .next_if(|(_, part)| part.block == *block)
                .map(|(written, _)| written);
        }
        Ok(Some(through))
    }

    /// Puts what was stored in its place, as [`write_object`](Self::write_object) does with content. The caller holds the
    /// object's inode lock.
    pub(crate) fn put_through(
        &self,
        object: &Arc<Object>,
        offset: u64,
        length: u64,
        mut through: Through<'_>,
        after: &mut dyn FnMut(&mut State),
    ) -> Result<(), FsError> {
        let gate = self.enter();
        let mut state = object.state.lock();
        if state.freed {
            return Err(FsError::Stale);
        }
        state.writes.note(offset, length);
        let blocks = offset / BLOCK..(offset + length) / BLOCK;
        let gone = self.put_ahead(&mut state, blocks, std::mem::take(&mut through.stored));
        state.inode.size = state.inode.size.max(offset + length);
        after(&mut state);
        self.mark_inode(object, &mut state);
        // For what was dirty room had been taken before.
        through.room_bytes = gone * BLOCK;
        drop((state, gate));
        Ok(())
    }
}
