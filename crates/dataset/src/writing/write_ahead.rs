//! Writing ahead: what a stream has written is hashed, deduplicated, compressed and appended while the stream goes on,
//! so that the commit that makes it part of the file has little left to do, and so that little memory is dirty.
//!
//! Invariants: only complete slots of streams are written ahead, for they are the least likely to be overwritten; a
//! slot's pages give way to the chunks only if nothing has changed in it meanwhile; the layer holds the chunks until
//! the commit that refers to them, and a crash before leaves nothing but bytes that no record names. A freeze waits
//! for the few pieces that are on their way. A failure changes nothing: the pages stay dirty, and the commit reports it.
//! Large writes of a stream that consist of whole chunks never become pages (`write_through.rs`).

use crate::{
    commit::{Part, Run, STREAM_BYTES, flow, joined, runs},
    live::{LiveDataset, StoodStill, ahead_memory_bytes},
    objects::{Buffer, Layer, Object, SLOT_BLOCKS, Slot, State},
    posix::FsError,
    settings::Durability,
};
use std::{
    borrow::Cow,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, Flow, Written};

/// Slots that the flusher writes at once, and a stream that helps: what a freeze waits for at most.
const SLOTS_AT_ONCE: usize = 32;
const SLOTS_HELPED: usize = 8;
const SLOT_BYTES: u64 = CHUNK_BYTES_MAX as u64;

/// Runs of blocks: the first, how many, and the chunk that holds them; without one they are zero.
pub(crate) type Stored = Vec<(u64, u32, Option<Written>)>;

/// A slot on its way.
struct Candidate {
    object: Arc<Object>,
    number: u64,
    content: Buffer,
    flow: Flow,
    /// Room is set aside for some of it.
    plain: bool,
}

impl LiveDataset {
    /// Waits for writes ahead that are under way; an error if they may be blocked by a silent device.
    pub(crate) fn stand_still(&self) -> Result<StoodStill<'_>, FsError> {
        let store = self.dataset.store();
        Ok(self.ahead.stand_still(|since| store.check_answers(since))?)
    }

    /// What a commit would write or has written already, bytes.
    pub(crate) fn uncommitted_bytes(&self) -> u64 {
        self.dirty_bytes.load(Relaxed) + self.ahead.bytes()
    }

    /// Queues the slots that a write from `offset` to `end` completed, if it belongs to a stream. The gate and the
    /// state are held.
    pub(crate) fn queue_ahead(&self, object: &Arc<Object>, state: &mut State, offset: u64, end: u64) {
        let run = state.writes.run_bytes();
        let enough = self.ahead_run_bytes();
        if run < enough || self.settings().durability == Durability::Ram {
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
                self.ahead.push(object.clone(), number);
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
        let _writing = self.ahead.write();
        let candidates = self.take_candidates(most);
        if candidates.is_empty() || self.dataset.is_gone() {
            return false;
        }
        let settings = self.settings();
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
        let written = match self.store_parts(&settings, checkpoint, &parts) {
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
            let Some((object, number)) = self.ahead.pop() else {
                break;
            };
            let mut state = object.state.lock();
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
        let mut state = object.state.lock();
        if !state.freed && state.data.is_unchanged(number, &content) {
            let first = number * SLOT_BLOCKS;
            self.put_ahead(&mut state, first..first + SLOT_BLOCKS, stored);
        }
        drop(state);
        self.buffers.give(content);
    }

    /// Puts the chunks of a range of blocks, for which room was taken, into the layer; how many dirty blocks gave way.
    pub(crate) fn put_ahead(&self, state: &mut State, blocks: Range<u64>, stored: Stored) -> u64 {
        let bytes = (blocks.end - blocks.start) * BLOCK_BYTES as u64;
        let held = ahead_memory_bytes(&state.data);
        let gone = state
            .data
            .written_ahead(blocks.start, blocks.end, stored, &self.buffers);
        let more = ahead_memory_bytes(&state.data) - held;
        self.add_dirty(more);
        self.sub_dirty(gone * BLOCK_BYTES as u64);
        self.rooms.written_ahead(bytes);
        self.ahead.add(bytes);
        gone
    }

    /// A layer is dropped before it was frozen: what was written ahead for it counts no more.
    pub(crate) fn dropped_ahead(&self, layer: &Layer) {
        let bytes = layer.ahead_blocks() * BLOCK_BYTES as u64;
        if bytes > 0 {
            self.rooms.spend(bytes, bytes);
            self.sub_dirty(ahead_memory_bytes(layer));
        }
    }
}
