//! Writing through: the whole chunks of a large write go to the store from where they came, and never become
//! pages. Copied into pages first, they would be out of the processor's caches when they are hashed, and the copy alone costs
//! half as much as the hash. But who is alone gets on faster with pages, which another processor stores, until writers would be slowed. A
//! write that belongs to no stream must be whole chunks, of which nothing was written since the last commit: what is written over again and
//! again is better kept in RAM. What a write of a stream has before its first whole chunk and behind its last becomes pages, and meets
//! there what the writes beside it have of those chunks: a kernel cuts the requests for a block device where their memory
//! happens to lie, not where chunks begin.
//!
//! Invariants: as for what is written ahead (`write_ahead.rs`): the layer holds the chunks until the commit that refers to
//! them. The content is stored under no lock, and takes its place in the layer at one moment, with what becomes pages, like
//! that of any other write; room for all of it was taken before. What cannot be written so is written as pages, which says why.

use super::{admission::Admission, write_ahead::WriteAhead};
use crate::{
    commit::{ChunkWriter, Part, Run, STREAM_BYTES, blocks_of, joined, runs_of_data},
    live::{DatasetState, DirtyEpoch, Stored},
    objects::{Object, State},
    posix::FsError,
    reading::Extents,
    settings::Durability,
};
use std::{
    borrow::Cow,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use terrace_store::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Smaller writes cost the store more, one by one, than the copy.
const BYTES_MIN: usize = 64 << 10;
/// Of larger ones a freeze would wait too long for what is put in its place at a time.
const BYTES_MAX: usize = 1 << 20;

/// Large writes that are made while a queue of them is taken for one, since more than two were under way at once.
const QUEUE_WRITES: usize = 16;

/// Who may be writing through, to find out whether anybody is beside him.
#[derive(Default)]
struct Large {
    under_way: AtomicUsize,
    /// Writes until a queue is over: of several at a time each is now and then alone for a moment.
    queued: AtomicUsize,
}

impl Large {
    /// One more, until what is returned is dropped; and whether there are others.
    fn enter(&self) -> (LargeWrite<'_>, bool) {
        let others = self.under_way.fetch_add(1, Relaxed);
        let left = self.queued.load(Relaxed);
        // Lost or counted twice beside others, that is no harm.
        let next = if others > 1 {
            QUEUE_WRITES
        } else {
            left.saturating_sub(1)
        };
        if next != left {
            self.queued.store(next, Relaxed);
        }
        (LargeWrite(self), others > 0 || left > 0)
    }
}

struct LargeWrite<'a>(&'a Large);

impl Drop for LargeWrite<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

/// Content that is stored, on its way into the layer; the room that was taken for the whole write comes back when this is
/// dropped.
pub(crate) struct Through<'a> {
    epoch: &'a DirtyEpoch,
    room_bytes: u64,
    /// Which bytes of the write are stored.
    inner: Range<usize>,
    stored: Stored,
}

impl Drop for Through<'_> {
    fn drop(&mut self) {
        self.epoch.rooms().give(self.room_bytes);
    }
}

/// See the module.
pub(crate) struct WriteThrough {
    dataset: Arc<DatasetState>,
    epoch: Arc<DirtyEpoch>,
    chunks: Arc<ChunkWriter>,
    admission: Arc<Admission>,
    ahead: Arc<WriteAhead>,
    extents: Arc<Extents>,
    /// Who may be writing through.
    large: Large,
}

impl WriteThrough {
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        epoch: &Arc<DirtyEpoch>,
        chunks: &Arc<ChunkWriter>,
        admission: &Arc<Admission>,
        ahead: &Arc<WriteAhead>,
        extents: &Arc<Extents>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            epoch: epoch.clone(),
            chunks: chunks.clone(),
            admission: admission.clone(),
            ahead: ahead.clone(),
            extents: extents.clone(),
            large: Large::default(),
        })
    }

    /// Stores what is to be written, if it suits; no lock is held.
    pub(crate) fn store_through(
        &self,
        object: &Arc<Object>,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<Through<'_>>, FsError> {
        let settings = self.dataset.settings();
        let suits = data.len() <= BYTES_MAX
            && offset.is_multiple_of(BLOCK)
            && data.len().is_multiple_of(BLOCK_BYTES)
            && settings.durability != Durability::Ram;
        let inner = whole_chunks(offset, data.len(), blocks_of(settings.raw_chunk_bytes));
        if !suits || inner.len() < BYTES_MIN {
            return Ok(None);
        }
        let (_large, is_beside_others) = self.large.enter();
        if !is_beside_others && !self.dataset.environment().budget.is_slowing() {
            return Ok(None);
        }
        let (first, last) = (offset / BLOCK, (offset + data.len() as u64) / BLOCK);
        let (writes, is_new) = {
            let state = object.state();
            let mut writes = state.writes;
            writes.note(offset, data.len() as u64);
            let is_whole = inner.len() == data.len();
            (writes, is_whole && state.data.is_untouched(first, last))
        };
        if writes.run_bytes() < self.ahead.ahead_run_bytes() && !is_new {
            return Ok(None);
        }
        let flow = match writes.run_bytes() >= STREAM_BYTES {
            true => terrace_store::Flow::Sequential,
            false => terrace_store::Flow::Random,
        };
        let mut over = || self.extents.mapped_bytes(object, first, last);
        self.admission
            .take_room_over(data.len() as u64, &mut over, &|| false)?;
        let mut through = Through {
            epoch: &self.epoch,
            room_bytes: data.len() as u64,
            inner: inner.clone(),
            stored: Vec::new(),
        };
        let first = (offset + inner.start as u64) / BLOCK;
        let data = &data[inner];
        let mut parts = Vec::new();
        let content_of = |run: &Run| {
            let from = run.index as usize * BLOCK_BYTES;
            &data[from..from + run.count as usize * BLOCK_BYTES]
        };
        let store = self.dataset.store().as_ref();
        let runs = runs_of_data(data, settings.chunk_bytes);
        for run in joined(store, &settings, runs, |run| Cow::Borrowed(content_of(run))) {
            let block = first + u64::from(run.index);
            if !run.zero {
                parts.push(Part {
                    content: content_of(&run),
                    trial: run.trial,
                    object: object.number,
                    block,
                    flow,
                    plain: false,
                });
            }
            through.stored.push((block, run.count, None));
        }
        let checkpoint = self.dataset.current_checkpoint();
        let mut written = match self.chunks.store_parts(&settings, checkpoint, &parts) {
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

    /// Puts what was stored in its place, and the rest beside it, as `ContentWriter::write_object` does with content.
    /// The caller holds the object's inode lock.
    pub(crate) fn put_through(
        &self,
        object: &Arc<Object>,
        offset: u64,
        data: &[u8],
        mut through: Through<'_>,
        after: &mut dyn FnMut(&mut State),
    ) -> Result<(), FsError> {
        let gate = self.epoch.enter();
        let mut state = object.state();
        if state.freed {
            return Err(FsError::Stale);
        }
        let (end, inner) = (offset + data.len() as u64, through.inner.clone());
        state.writes.note(offset, data.len() as u64);
        // Of what was dirty before room had been taken then.
        let mut was_dirty = 0;
        for part in [0..inner.start, inner.end..data.len()] {
            let from = offset + part.start as u64;
            let became = state
                .data
                .write(from, &data[part.clone()], false, self.epoch.buffers(), |_| None);
            self.epoch.add_dirty(became * BLOCK);
            was_dirty += part.len() as u64 - became * BLOCK;
        }
        let blocks = (offset + inner.start as u64) / BLOCK..(offset + inner.end as u64) / BLOCK;
        let gone = self
            .epoch
            .put_ahead(&mut state, blocks, std::mem::take(&mut through.stored));
        state.inode.size = state.inode.size.max(end);
        after(&mut state);
        self.epoch.mark_inode(object, &mut state);
        through.room_bytes = gone * BLOCK + was_dirty;
        drop((state, gate));
        Ok(())
    }
}

/// Which bytes of a write of whole blocks are whole chunks of so many blocks; none: an empty range within it.
fn whole_chunks(offset: u64, length: usize, chunk_blocks: u32) -> Range<usize> {
    let chunk = u64::from(chunk_blocks) * BLOCK;
    let end = offset.saturating_add(length as u64);
    let first = offset.checked_next_multiple_of(chunk).unwrap_or(end).min(end);
    let last = (end - end % chunk).max(first);
    (first - offset) as usize..(last - offset) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_queue_nobody_is_alone_and_who_comes_back_alone_is_soon() {
        let large = Large::default();
        assert!(!large.enter().1 && !large.enter().1);
        {
            let (_one, _) = large.enter();
            let (_two, beside) = large.enter();
            assert!(beside);
        }
        assert!(!large.enter().1, "two halves of one request are no queue");
        {
            let (_one, _two) = (large.enter(), large.enter());
            let (_three, beside) = large.enter();
            assert!(beside);
        }
        let beside = (0..2 * QUEUE_WRITES).take_while(|_| large.enter().1).count();
        assert_eq!(beside, QUEUE_WRITES);
    }

    #[test]
    fn whole_chunks_lie_between_the_first_and_the_last_boundary() {
        const KIB: usize = 1 << 10;
        let chunks = |offset: usize, length: usize| {
            let found = whole_chunks((offset * KIB) as u64, length * KIB, 4);
            (found.start / KIB, found.end / KIB)
        };
        assert_eq!(chunks(0, 64), (0, 64));
        assert_eq!(chunks(4, 64), (12, 60));
        assert_eq!(chunks(16, 20), (0, 16));
        assert_eq!(chunks(12, 20), (4, 20));
        assert_eq!(chunks(4, 24), (12, 12), "between two boundaries none is whole");
        assert_eq!(chunks(4, 8), (8, 8));
    }
}
