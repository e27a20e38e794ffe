//! Changing content: write, truncate, punch, allocate.
//!
//! Invariants: what has to be read (the rest of a block that is changed in part) is read before the gate is entered;
//! room is taken before the first byte is accepted, so that a flush cannot run out of it; the object's inode lock
//! orders writers. Nothing waits for a commit: a change goes on top of what is frozen.

use super::{
    admission::Admission,
    discard::PORTION_BYTES,
    preallocate::{is_preallocated, preallocated_part, release_blocks},
    write_ahead::WriteAhead,
};
use crate::{
    commit::FREED_AT_ONCE_BYTES,
    live::{DatasetState, DirtyEpoch, ObjectTable},
    objects::{Block, Object, Page, State},
    posix::FsError,
    reading::{ContentReader, Extents},
    records::{FILE_BYTES_MAX, FileKind},
    relayout::Relayouts,
};
use std::sync::Arc;

use terrace_store::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes taken over at once while the gate is held, so that a freeze waits only briefly.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes written in sequence from which on pages are kept in buffers of 128 KiB.
const STREAM_BYTES: u64 = 128 << 10;

/// What `write` answers where so many bytes were written before something went wrong: an error only where none was.
pub(crate) fn some_written((done, result): (usize, Result<(), FsError>)) -> Result<usize, FsError> {
    match (done, result) {
        (0, Err(error)) => Err(error),
        (done, _) => Ok(done),
    }
}

/// The block at the start or end of a write that is changed only in part, as it was.
struct Base {
    block: u64,
    page: Option<Page>,
}

/// What is written at one place.
struct Part<'a> {
    offset: u64,
    data: &'a [u8],
}

impl Part<'_> {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    fn first(&self) -> u64 {
        self.offset / BLOCK
    }

    fn last(&self) -> u64 {
        self.end().div_ceil(BLOCK)
    }

    /// Its blocks of which only a part is written.
    fn partial_blocks(&self) -> impl Iterator<Item = (&Self, u64)> {
        let first = (!self.offset.is_multiple_of(BLOCK)).then(|| self.first());
        let last = (!self.end().is_multiple_of(BLOCK)).then(|| self.last() - 1);
        first.into_iter().chain(last).map(move |block| (self, block))
    }
}

/// See the module.
pub(crate) struct ContentWriter {
    pub(super) dataset: Arc<DatasetState>,
    pub(super) table: Arc<ObjectTable>,
    pub(super) epoch: Arc<DirtyEpoch>,
    pub(super) admission: Arc<Admission>,
    ahead: Arc<WriteAhead>,
    pub(super) reader: Arc<ContentReader>,
    pub(super) extents: Arc<Extents>,
    pub(super) relayouts: Arc<Relayouts>,
}

impl ContentWriter {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        table: &Arc<ObjectTable>,
        epoch: &Arc<DirtyEpoch>,
        admission: &Arc<Admission>,
        ahead: &Arc<WriteAhead>,
        reader: &Arc<ContentReader>,
        extents: &Arc<Extents>,
        relayouts: &Arc<Relayouts>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
            epoch: epoch.clone(),
            admission: admission.clone(),
            ahead: ahead.clone(),
            reader: reader.clone(),
            extents: extents.clone(),
            relayouts: relayouts.clone(),
        })
    }

    /// Writes `data` at `offset`; `after` runs with the state locked, at the moment of each part of the write. Returns how many
    /// bytes were written, and what went wrong behind them. The caller holds the object's inode lock, exclusively unless these are
    /// whole blocks.
    pub(crate) fn write_object(
        &self,
        object: &Arc<Object>,
        offset: u64,
        data: &[u8],
        after: &mut dyn FnMut(&mut State),
    ) -> (usize, Result<(), FsError>) {
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|end| *end <= FILE_BYTES_MAX);
        if end.is_none() {
            return (0, Err(FsError::FileTooBig));
        }
        let mut done = 0;
        while done < data.len() {
            let length = (data.len() - done).min(WRITE_BYTES);
            let at = offset + done as u64;
            let written = match self.write_piece(object, at, &data[done..done + length], after) {
                Ok(()) => Ok(length),
                Err(error @ (FsError::NoSpace | FsError::QuotaExceeded)) => {
                    // What room was set aside for has some.
                    match preallocated_part(object, at, length) {
                        Some(part) => self
                            .write_piece(object, at, &data[done..done + part], after)
                            .map(|()| part),
                        None => Err(error),
                    }
                }
                Err(error) => Err(error),
            };
            match written {
                Ok(length) => done += length,
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    fn write_piece(
        &self,
        object: &Arc<Object>,
        offset: u64,
        data: &[u8],
        after: &mut dyn FnMut(&mut State),
    ) -> Result<(), FsError> {
        self.write_parts(object, &[Part { offset, data }], after)
    }

    /// Writes all of these parts, and does what comes `after` with them, in one step: an error has changed nothing. At most two of
    /// their blocks are written in part.
    fn write_parts(
        &self,
        object: &Arc<Object>,
        parts: &[Part<'_>],
        after: &mut dyn FnMut(&mut State),
    ) -> Result<(), FsError> {
        let clean_bytes = |state: &State| {
            let clean = |part: &Part<'_>| state.data.clean_blocks(part.first(), part.last());
            parts.iter().map(clean).sum::<u64>() * BLOCK
        };
        let mut bases: [Option<Base>; 2] = [None, None];
        // Of what was taken, what stands in the place of mapped blocks.
        let (mut taken, mut over_taken) = (0u64, 0u64);
        loop {
            // Room first: an upper bound of what becomes dirty; the rest is given back.
            let want = clean_bytes(&object.state());
            if want > taken {
                let (more, paid) = (want - taken, taken - over_taken);
                let mut over_now = 0;
                let mut over = || {
                    // A commit may have made more blocks clean since they were counted: what is new is paid for first.
                    let mapped =
                        |part: &Part<'_>| self.extents.mapped_bytes(object, part.first(), part.last());
                    let mapped: u64 = parts.iter().map(mapped).sum();
                    let clean = clean_bytes(&object.state());
                    over_now = more.saturating_sub(clean.saturating_sub(mapped).saturating_sub(paid));
                    over_now
                };
                let is_preallocated = || {
                    let is_preallocated =
                        |part: &Part<'_>| is_preallocated(object, part.first(), part.last());
                    parts.iter().all(is_preallocated)
                };
                if let Err(error) = self.admission.take_room_over(more, &mut over, &is_preallocated) {
                    self.epoch.rooms().give(taken);
                    return Err(error);
                }
                (taken, over_taken) = (want, over_taken + over_now);
            }
            let gate = self.epoch.enter();
            let mut state = object.state();
            if state.freed {
                self.epoch.rooms().give(taken);
                return Err(FsError::Stale);
            }
            if clean_bytes(&state) > taken {
                // A freeze took dirty pages away meanwhile.
                drop((state, gate));
                continue;
            }
            let mut partial = parts.iter().flat_map(Part::partial_blocks);
            let lacking = partial.find(|(part, block)| self.lacks_base(&state, part, *block, &bases));
            if let Some((_, block)) = lacking {
                drop((state, gate));
                match self.reader.read_block(object, block) {
                    Ok(page) => {
                        let place = usize::from(bases[0].as_ref().is_some_and(|base| base.block != block));
                        bases[place] = Some(Base { block, page });
                    }
                    Err(error) => {
                        self.epoch.rooms().give(taken);
                        return Err(error);
                    }
                }
                continue;
            }
            let base = |block: u64| {
                let base = bases.iter().flatten().find(|base| base.block == block)?;
                base.page.as_ref().map(|page| &page[..])
            };
            let became = match parts.split_last() {
                Some((end, others)) => {
                    let mut put = |part: &Part<'_>, after: &mut dyn FnMut(&mut State)| {
                        self.put_pages(object, &mut state, part.offset, part.data, base, after)
                    };
                    let others: u64 = others.iter().map(|part| put(part, &mut |_| {})).sum();
                    others + put(end, after)
                }
                None => {
                    after(&mut state);
                    self.epoch.mark_inode(object, &mut state);
                    0
                }
            };
            drop((state, gate));
            if taken > became {
                self.epoch.rooms().give(taken - became);
            }
            return Ok(());
        }
    }

    /// Makes `data` pages of an object, and returns how many bytes became dirty by it. The gate and the state are held, and
    /// there is room; `base` has what is below blocks that are written in part.
    pub(crate) fn put_pages<'a>(
        &self,
        object: &Arc<Object>,
        state: &mut State,
        offset: u64,
        data: &[u8],
        base: impl Fn(u64) -> Option<&'a [u8]>,
        after: &mut dyn FnMut(&mut State),
    ) -> u64 {
        let end = offset + data.len() as u64;
        state.writes.note(offset, data.len() as u64);
        let sequential = state.writes.run_bytes() >= STREAM_BYTES;
        let became = state
            .data
            .write(offset, data, sequential, self.epoch.buffers(), base)
            * BLOCK;
        state.inode.size = state.inode.size.max(end);
        after(state);
        self.epoch.mark_inode(object, state);
        self.epoch.add_dirty(became);
        self.ahead.queue_ahead(object, state, offset, end);
        became
    }

    /// Whether a block that is written in part must be read first: it has content below that is not at hand.
    fn lacks_base(&self, state: &State, part: &Part<'_>, block: u64, bases: &[Option<Base>; 2]) -> bool {
        if bases.iter().flatten().any(|base| base.block == block) || state.data.is_dirty(block) {
            return false;
        }
        let start = block * BLOCK;
        let size = state.inode.size;
        // Nothing of the old content shows: behind the end of the file, or overwritten up to it.
        if start >= size || (part.offset <= start && part.end() >= size) {
            return false;
        }
        !matches!(state.data.block(block), Block::Void)
    }

    /// Sets the size. The caller holds the object's inode lock exclusively.
    pub(crate) fn truncate_object(
        &self,
        object: &Arc<Object>,
        size: u64,
        after: &mut dyn FnMut(&mut State),
    ) -> Result<(), FsError> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::FileTooBig);
        }
        let (old, mapped_bytes) = {
            let state = object.state();
            (state.inode.size, state.inode.blocks * BLOCK)
        };
        // The whole content of a large file is left to the sweep, and the size of a volume stands in its dataset's record as well.
        if size > 0 && object.kind == FileKind::File {
            for end in self.ends_on_the_way(object, size, old)? {
                self.set_size(object, end, &mut |_| {})?;
                self.epoch.pending_frees().add_content(PORTION_BYTES);
                self.admission.commit_pending_frees()?;
            }
        }
        self.set_size(object, size, after)?;
        let gone = old.saturating_sub(size).min(mapped_bytes);
        self.epoch.pending_frees().add_uncounted(gone);
        self.epoch.pending_frees().add_content(gone.min(PORTION_BYTES));
        Ok(())
    }

    fn set_size(
        &self,
        object: &Arc<Object>,
        size: u64,
        after: &mut dyn FnMut(&mut State),
    ) -> Result<(), FsError> {
        let old = object.state().inode.size;
        let cut = size < old && !size.is_multiple_of(BLOCK);
        let mut page = if cut {
            self.reader.read_block(object, size / BLOCK)?
        } else {
            None
        };
        if let Some(page) = &mut page {
            page[(size % BLOCK) as usize..].fill(0);
        }
        // Making a file shorter works on a full pool too: the block in its middle uses the reserve.
        let taken = if page.is_some() && self.admission.take_room(BLOCK).is_ok() {
            BLOCK
        } else {
            0
        };
        let gate = self.epoch.enter();
        let mut state = object.state();
        if state.freed {
            self.epoch.rooms().give(taken);
            return Err(FsError::Stale);
        }
        if size < old {
            let from = if page.is_some() {
                size / BLOCK
            } else {
                size.div_ceil(BLOCK)
            };
            // Dropping everything first lets a kept block be counted once.
            let gone = state.data.punch(from, u64::MAX, self.epoch.buffers());
            self.epoch.dropped(gone);
            if let Some(page) = &page {
                let became = state.data.write(
                    size / BLOCK * BLOCK,
                    &page[..],
                    false,
                    self.epoch.buffers(),
                    |_| None,
                );
                self.epoch.add_dirty(became * BLOCK);
                if taken == 0 {
                    // Nothing was taken: what the commit gives back must not exceed what is held.
                    self.epoch.rooms().force(became * BLOCK);
                }
            }
        } else {
            self.epoch.rooms().give(taken);
        }
        if size <= old {
            release_blocks(&mut state, size.div_ceil(BLOCK), u64::MAX);
        }
        state.inode.size = size;
        if size == 0 && state.recorded_size > FREED_AT_ONCE_BYTES && object.kind == FileKind::File {
            // The old content is left to the sweep as a whole, however large it is.
            state.inode.body = self.dataset.next_object();
        }
        after(&mut state);
        self.epoch.mark_inode(object, &mut state);
        drop((state, gate));
        Ok(())
    }

    /// Makes `offset..offset + length` read as zero, without a change of size, and gives its room back, unless what is preallocated
    /// is to stay so. The caller holds the object's inode lock exclusively.
    pub(crate) fn punch_object(
        &self,
        object: &Arc<Object>,
        offset: u64,
        length: u64,
        stays_preallocated: bool,
        after: &mut dyn FnMut(&mut State),
    ) -> Result<(), FsError> {
        let size = object.state().inode.size;
        let end = offset.checked_add(length).ok_or(FsError::FileTooBig)?;
        let end = if end >= size { u64::MAX } else { end };
        let (first, last) = (
            offset.div_ceil(BLOCK),
            if end == u64::MAX { u64::MAX } else { end / BLOCK },
        );
        let zero = [0u8; BLOCK_BYTES];
        let mut edges = Vec::new();
        if offset < size {
            // The parts of blocks at both ends.
            let head_end = (first * BLOCK).min(end).min(size);
            if head_end > offset && !offset.is_multiple_of(BLOCK) {
                edges.extend(self.edge(object, offset, &zero[..(head_end - offset) as usize])?);
            }
            if last != u64::MAX && last >= first && last * BLOCK < end {
                edges.extend(self.edge(object, last * BLOCK, &zero[..(end - last * BLOCK) as usize])?);
            }
        }
        self.write_parts(object, &edges, &mut |state| {
            if first < last {
                let gone = state.data.punch(first, last, self.epoch.buffers());
                self.epoch.dropped(gone);
            }
            if !stays_preallocated {
                // What lies behind the end of the file too, as far as it was asked for.
                release_blocks(state, offset.div_ceil(BLOCK), (offset + length) / BLOCK);
            }
            after(state);
        })
    }

    /// A part of a block that is to read as zero, unless it does so already.
    fn edge<'a>(
        &self,
        object: &Arc<Object>,
        offset: u64,
        zero: &'a [u8],
    ) -> Result<Option<Part<'a>>, FsError> {
        let is_there = self.reader.read_block(object, offset / BLOCK)?.is_some();
        Ok(is_there.then_some(Part { offset, data: zero }))
    }
}
