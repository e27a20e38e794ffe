//! Writing ahead: what a stream has written is hashed, deduplicated, compressed and appended while the stream goes on,
//! so that the commit that makes it part of the file has little left to do, and so that little memory is dirty.
//!
//! Invariants: only complete slots of streams are written ahead, for they are the least likely to be overwritten; a
//! slot's pages give way to the chunks only if nothing has changed in it meanwhile; the layer holds the chunks until
//! the commit that refers to them, and a crash before leaves nothing but bytes that no record names. A freeze waits
//! for the few pieces that are on their way. A failure changes nothing: the pages stay dirty, and the commit reports it.
//! Large writes of a stream that consist of whole chunks never become pages (`write_through.rs`).

use crate::{
    commit::{ChunkWriter, Part, Run, STREAM_BYTES, flow, joined, runs},
    live::{DatasetState, DirtyEpoch, Stored},
    objects::{Buffer, Object, SLOT_BLOCKS, Slot, State},
    settings::Durability,
};
use std::{borrow::Cow, sync::Arc};

use terrace_store::{CHUNK_BYTES_MAX, Flow};

/// Slots that the flusher writes at once, and a stream that helps: what a freeze waits for at most.
const SLOTS_AT_ONCE: usize = 32;
const SLOTS_HELPED: usize = 8;
const SLOT_BYTES: u64 = CHUNK_BYTES_MAX as u64;

/// A slot on its way.
struct Candidate {
    object: Arc<Object>,
    number: u64,
    content: Buffer,
    flow: Flow,
    /// Room is set aside for some of it.
    plain: bool,
}

/// See the module.
pub(crate) struct WriteAhead {
    dataset: Arc<DatasetState>,
    epoch: Arc<DirtyEpoch>,
    chunks: Arc<ChunkWriter>,
}

impl WriteAhead {
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        epoch: &Arc<DirtyEpoch>,
        chunks: &Arc<ChunkWriter>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            epoch: epoch.clone(),
            chunks: chunks.clone(),
        })
    }

    /// Queues the slots that a write from `offset` to `end` completed, if it belongs to a stream. The gate and the
    /// state are held.
    pub(crate) fn queue_ahead(&self, object: &Arc<Object>, state: &mut State, offset: u64, end: u64) {
        let run = state.writes.run_bytes();
        let enough = self.ahead_run_bytes();
        if run < enough || self.dataset.settings().durability == Durability::Ram {
            return;
        }
        // The write that makes it a stream brings what was written before it.
        let before = run.saturating_sub(end - offset);
        let from = if before < enough {
            state.writes.start().min(offset)
        } else {
            offset
        };
        // The last slot too: of two writes that share one, either may be the later.
        for number in from / SLOT_BYTES..end.div_ceil(SLOT_BYTES) {
            if state.data.queue(number) {
                self.epoch.queue().push(object.clone(), number);
            }
        }
    }

    /// Bytes written in sequence from which on they are written ahead: as many as make a stream, less when memory is
    /// scarce.
    pub(crate) fn ahead_run_bytes(&self) -> u64 {
        let budget = &self.dataset.environment().budget;
        STREAM_BYTES.min(budget.dirty_limit_bytes() / 16)
    }

    /// Writes some queued slots ahead; whether there were any.
    pub(crate) fn write_ahead_step(&self) -> bool {
        self.write_slots_ahead(SLOTS_AT_ONCE)
    }

    /// The same for a stream that comes faster than they are written: as much as it brings itself, beside others who do so.
    pub(crate) fn help_write_ahead(&self) -> bool {
        self.write_slots_ahead(SLOTS_HELPED)
    }

    fn write_slots_ahead(&self, most: usize) -> bool {
        let _writing = self.epoch.queue().write();
        let candidates = self.take_candidates(most);
        if candidates.is_empty() || self.dataset.is_gone() {
            return false;
        }
        let settings = self.dataset.settings();
        let slots: Vec<Slot> = candidates
            .iter()
            .map(|candidate| Slot::complete(candidate.content.clone()))
            .collect();
        let store = self.dataset.store().as_ref();
        let mut places = Vec::new();
        let mut parts = Vec::new();
        for (at, (candidate, slot)) in candidates.iter().zip(&slots).enumerate() {
            let first = candidate.number * SLOT_BLOCKS;
            let content_of = |run: &Run| Cow::Borrowed(slot.run(run.index, run.count).unwrap_or_default());
            for run in joined(store, &settings, runs(slot, settings.chunk_bytes), content_of) {
                let block = first + u64::from(run.index);
                if let Some(content) = slot.run(run.index, run.count).filter(|_| !run.zero) {
                    parts.push(Part {
                        content,
                        trial: run.trial,
                        object: candidate.object.number,
                        block,
                        flow: candidate.flow,
                        plain: candidate.plain,
                    });
                }
                places.push((at, block, run.count, run.zero));
            }
        }
        let checkpoint = self.dataset.current_checkpoint();
        let written = match self.chunks.store_parts(&settings, checkpoint, &parts) {
            Ok(written) => written,
            Err(error) => {
                tracing::debug!(%error, "data could not be written ahead of its commit");
                return false;
            }
        };
        drop(parts);
        drop(slots);
        let mut written = written.into_iter();
        let mut places = places.into_iter().peekable();
        for (at, candidate) in candidates.into_iter().enumerate() {
            let mut stored = Vec::new();
            while let Some((_, block, count, zero)) = places.next_if(|place| place.0 == at) {
                stored.push((block, count, if zero { None } else { written.next() }));
            }
            self.take_over(candidate, stored);
        }
        true
    }

    fn take_candidates(&self, most: usize) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        while candidates.len() < most {
            let Some((object, number)) = self.epoch.queue().pop() else {
                break;
            };
            let mut state = object.state();
            let content = state.data.take_queued(number);
            // The last chunk of a file holds only the bytes up to its end: that is left to the commit.
            let within = (number + 1) * SLOT_BYTES <= state.inode.size;
            if let Some(content) = content.filter(|_| within && !state.freed) {
                let flow = flow(&state);
                let first = number * SLOT_BLOCKS;
                let preallocated = state.inode.preallocated.as_ref();
                let plain = preallocated.is_some_and(|all| all.intersects(first, first + SLOT_BLOCKS));
                drop(state);
                candidates.push(Candidate {
                    object,
                    number,
                    content,
                    flow,
                    plain,
                });
            }
        }
        candidates
    }

    /// Puts the chunks in the place of the pages, if those are still the same.
    fn take_over(&self, candidate: Candidate, stored: Stored) {
        let Candidate {
            object,
            number,
            content,
            ..
        } = candidate;
        let mut state = object.state();
        if !state.freed && state.data.is_unchanged(number, &content) {
            let first = number * SLOT_BLOCKS;
            self.epoch
                .put_ahead(&mut state, first..first + SLOT_BLOCKS, stored);
        }
        drop(state);
        self.epoch.buffers().give(content);
    }
}
