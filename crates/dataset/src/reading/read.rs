//! Reading content: dirty pages, then frozen ones, then what the region records map, through the chunk cache.
//!
//! Invariants: pages are copied under the object's state lock, so none is seen half written; no lock is held while
//! the store is asked. A chunk that went away between the record and the read was replaced by a commit: everything
//! is looked up again.

use super::{
    block_read::BlockRead,
    extents::Extents,
    layers::{Source, Wanted, copy_pages},
    lookup::{BLOCK, Fetch, Lookup, PER_REGION, Past, ReadError},
    read_ahead::{LARGE_READ_BYTES, next_stretch},
    uncached::fetch_past,
};
use crate::{
    live::{DatasetState, ObjectTable},
    objects::Object,
    posix::FsError,
};
use std::sync::Arc;

use terrace_cache::{Access, ChunkRead, Fetched, Filled, ReadAt, Reuse, Service};
use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkPart};

/// A read counts a chunk once, unless so many pieces of others lie between two of its own.
const PIECES_BACK: usize = 32;
/// How often a lookup is repeated when chunks go away under it.
const RETRIES: usize = 100;

/// See the module.
pub(crate) struct ContentReader {
    pub(super) dataset: Arc<DatasetState>,
    pub(super) table: Arc<ObjectTable>,
    extents: Arc<Extents>,
}

impl ContentReader {
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        table: &Arc<ObjectTable>,
        extents: &Arc<Extents>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
            extents: extents.clone(),
        })
    }

    /// Reads at `offset`, at most to the end of the file.
    pub(crate) fn read_object(
        &self,
        object: &Arc<Object>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, FsError> {
        self.read_object_for(None, object, offset, buffer)
    }

    /// The same of a file, for a reader (the number of a process; 0 if that is not known).
    pub(crate) fn read_object_for(
        &self,
        reader: Option<u32>,
        object: &Arc<Object>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, FsError> {
        for _ in 0..RETRIES {
            match self.try_read(reader, object, offset, buffer) {
                Err(ReadError::Moved) => {}
                Err(ReadError::Failed(error)) => return Err(error),
                Ok(length) => return Ok(length),
            }
        }
        Err(FsError::io(format_args!(
            "object {} names a chunk that does not exist; run 'terrace scrub'",
            object.number
        )))
    }

    fn try_read(
        &self,
        reader: Option<u32>,
        object: &Arc<Object>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, ReadError> {
        let look = self.locate(reader, object, offset, buffer)?;
        self.fetch(object, look, buffer)
    }

    /// Fills what RAM did not know of a read.
    fn fetch(&self, object: &Arc<Object>, mut look: Lookup, buffer: &mut [u8]) -> Result<usize, ReadError> {
        if !look.fetches.is_empty() {
            if look.length >= LARGE_READ_BYTES {
                fetch_past(&self.dataset, [(&mut look, &mut *buffer)]);
            }
            // One piece of a chunk needs no call for many.
            let mut parts = Vec::new();
            let mut coming = None;
            if look.fetches.len() > 1 || look.ahead.is_some() {
                coming = self.parts(object, &look, &mut parts)?;
            }
            let fetched = self.fetch_parts(parts);
            drop(coming);
            self.fill(&look, &fetched, buffer)?;
            self.waited(&look);
        }
        Ok(look.length)
    }

    /// Reads several stretches at once: what they want of the devices is asked for together.
    pub(crate) fn read_object_at_once(&self, object: &Arc<Object>, reads: &mut [BlockRead<'_>]) {
        let mut looks: Vec<_> = reads
            .iter_mut()
            .map(|read| self.locate(None, object, read.offset, read.buffer))
            .collect();
        let large = looks.iter_mut().zip(reads.iter_mut()).filter_map(|(look, read)| {
            let look = look.as_mut().ok()?;
            (look.length >= LARGE_READ_BYTES).then_some((look, &mut *read.buffer))
        });
        fetch_past(&self.dataset, large);
        let (mut parts, mut coming) = (Vec::new(), Vec::new());
        for look in looks.iter().flatten() {
            // What cannot be looked ahead of is for the read itself to say.
            coming.extend(self.parts(object, look, &mut parts).ok().flatten());
        }
        let fetched = self.fetch_parts(parts);
        drop(coming);
        for (read, look) in reads.iter_mut().zip(looks) {
            let done = look.and_then(|look| {
                self.fill(&look, &fetched, read.buffer)?;
                self.waited(&look);
                Ok(look.length)
            });
            let done = match done {
                Err(ReadError::Moved) => self.read_object(object, read.offset, read.buffer),
                Err(ReadError::Failed(error)) => Err(error),
                Ok(length) => Ok(length),
            };
            read.outcome = match done {
                Ok(length) if length == read.buffer.len() => Ok(()),
                Ok(_) => Err(FsError::Invalid),
                Err(error) => Err(error),
            };
        }
    }

    fn fetch_parts(&self, parts: Vec<ChunkPart>) -> Fetched {
        self.dataset
            .environment()
            .cache
            .fetch(&**self.dataset.store(), parts)
    }

    /// Fills what RAM knows of a read and says where the rest is.
    fn locate(
        &self,
        reader: Option<u32>,
        object: &Arc<Object>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Lookup, ReadError> {
        let region = (offset / (PER_REGION * BLOCK)) as u32;
        let mut wanted = Vec::new();
        let (served, stretch) = self.stretch();
        let (length, sequential, ahead, (amount, is_noted), body, size) = {
            let mut state = object.state();
            if state.freed {
                return Err(FsError::Stale.into());
            }
            let length = buffer.len().min(
                state
                    .inode
                    .size
                    .saturating_sub(offset)
                    .try_into()
                    .unwrap_or(usize::MAX),
            );
            if length == 0 {
                return Ok(Lookup::default());
            }
            let size = state.inode.size;
            let (sequential, amount) = state.reads.note(offset, length, size);
            let amount = match reader {
                Some(reader) => self.visit(&mut state, reader, offset, region, amount),
                None => (amount, false),
            };
            let mut ahead = None;
            if sequential && length < LARGE_READ_BYTES {
                let stretch = stretch.min((state.reads.ahead_bytes() / BLOCK * BLOCK).max(BLOCK));
                ahead = next_stretch(state.ahead_to, offset..offset + length as u64, stretch, served);
            }
            if let Some(ahead) = &ahead {
                state.ahead_to = ahead.end;
            }
            copy_pages(&state, offset, &mut buffer[..length], &mut wanted);
            (length, sequential, ahead, amount, state.inode.body, size)
        };
        // What RAM answers counts as well: it must not look cold only because it is so hot that it is cached.
        if amount > 0.0 {
            let heat = &self.dataset.environment().heat;
            let (dataset, minutes) = (self.dataset.number(), self.dataset.minutes());
            heat.record(dataset, body, region, Access::Read, amount, minutes);
            let start = u64::from(region) * PER_REGION * BLOCK;
            self.dataset.environment().reuse.record(Reuse {
                dataset,
                object: body,
                region,
                region_bytes: size.saturating_sub(start),
                offset,
                length: length as u64,
            });
        }
        let mut look = Lookup {
            length,
            sequential,
            object: object.number,
            body,
            offset,
            is_use: amount >= 1.0,
            noted_for: reader.filter(|_| is_noted),
            ..Lookup::default()
        };
        if wanted.is_empty() {
            return Ok(look);
        }
        let environment = self.dataset.environment();
        environment.foreground.note();
        let now = environment.clock.monotonic_nanoseconds();
        look.waiting = Some(environment.foreground.begin(now));
        look.fetches.reserve(wanted.len());
        for part in &wanted {
            self.plan(body, offset, &mut buffer[..length], part, &mut look.fetches)?;
        }
        look.ahead = ahead;
        if sequential && length >= LARGE_READ_BYTES {
            let end = offset + length as u64;
            let region_bytes = PER_REGION * BLOCK;
            (offset / region_bytes..end.div_ceil(region_bytes))
                .for_each(|region| self.note_read_in_order(object, body, region));
        }
        Ok(look)
    }

    /// Notes how long a user waited for a read.
    fn waited(&self, look: &Lookup) {
        let environment = self.dataset.environment();
        // Looking up where it lies costs as much as a read from RAM: some of them tell enough.
        if let (Some(waiting), Some(fetch)) = (look.waiting, look.fetches.first())
            && environment.foreground.is_sample(waiting)
            && let Ok(Some(tier)) = environment.store.chunk_tier(fetch.chunk)
        {
            let now = environment.clock.monotonic_nanoseconds();
            environment.foreground.end(waiting, Service::Read(tier), now);
        }
    }

    /// Turns blocks that are not in RAM into pieces of chunks; holes are zeroed.
    fn plan(
        &self,
        body: u64,
        offset: u64,
        buffer: &mut [u8],
        wanted: &Wanted,
        fetches: &mut Vec<Fetch>,
    ) -> Result<(), ReadError> {
        let end = offset + buffer.len() as u64;
        // The part of the buffer that the bytes from `from` to `to` of the file take.
        let clip = |from: u64, to: u64| {
            let (from, to) = (from.clamp(offset, end), to.min(end));
            (from, (from - offset) as usize..(to.max(from) - offset) as usize)
        };
        if let Source::Chunk { chunk, index } = wanted.source {
            let first = wanted.block * BLOCK;
            let (from, range) = clip(first, first + wanted.count * BLOCK);
            let skipped = (from - first) as usize + index as usize * BLOCK_BYTES;
            let chunk_bytes = (index as usize + wanted.count as usize) * BLOCK_BYTES;
            fetches.push(Fetch {
                chunk,
                from: skipped,
                at: range.start,
                length: range.len(),
                chunk_bytes,
                past: Past::No,
            });
            return Ok(());
        }
        let last = wanted.block + wanted.count;
        for region in wanted.block / PER_REGION..=(last - 1) / PER_REGION {
            let start = region * PER_REGION;
            let (first, to) = (wanted.block.max(start), last.min(start + PER_REGION));
            let cached = self.table.region(body, region)?;
            let Some(record) = &cached.record else {
                buffer[clip(first * BLOCK, to * BLOCK).1].fill(0);
                continue;
            };
            let mut mapped_to = first;
            let runs = record.runs();
            let begin = runs.partition_point(|run| u64::from(run.end()) + start <= first);
            let count = runs[begin..].partition_point(|run| u64::from(run.block) + start < to);
            fetches.reserve(count);
            for run in &runs[begin..begin + count] {
                let block = first.max(start + u64::from(run.block));
                let until = to.min(start + u64::from(run.end()));
                buffer[clip(mapped_to * BLOCK, block * BLOCK).1].fill(0);
                mapped_to = until;
                let (from, range) = clip(block * BLOCK, until * BLOCK);
                let in_run = from - (start + u64::from(run.block)) * BLOCK;
                fetches.push(Fetch {
                    chunk: run.chunk,
                    from: run.index as usize * BLOCK_BYTES + in_run as usize,
                    at: range.start,
                    length: range.len(),
                    chunk_bytes: (run.index + run.count) as usize * BLOCK_BYTES,
                    past: Past::No,
                });
            }
            buffer[clip(mapped_to * BLOCK, to * BLOCK).1].fill(0);
        }
        Ok(())
    }

    /// Fills what RAM did not know of a read, from what was fetched for it or else through the cache.
    fn fill(&self, look: &Lookup, fetched: &Fetched, buffer: &mut [u8]) -> Result<(), ReadError> {
        let environment = self.dataset.environment();
        let (cache, store) = (&environment.cache, &**self.dataset.store());
        for (at, fetch) in look.fetches.iter().enumerate() {
            let target = &mut buffer[fetch.at..fetch.at + fetch.length];
            let filled = if let Past::Filled(bytes) = fetch.past {
                Ok(Filled { bytes, fetched: true })
            } else if let Some(bytes) = fetched.part(fetch.chunk, fetch.from, target) {
                cache.note_use(fetch.chunk);
                Ok(Filled { bytes, fetched: true })
            } else if look.sequential {
                cache.part_of_whole(store, fetch.chunk, fetch.from, target)
            } else {
                cache.part(store, fetch.chunk, fetch.from, fetch.chunk_bytes, target)
            };
            let filled = filled?;
            target[filled.bytes..].fill(0);
            if look.is_use {
                self.count_read(look, at, filled.fetched);
            }
        }
        Ok(())
    }

    /// Counts a piece of a read: the chunk once, however many pieces of it there are.
    fn count_read(&self, look: &Lookup, at: usize, fetched: bool) {
        let environment = self.dataset.environment();
        let (heat, fetch) = (&environment.chunk_heat, &look.fetches[at]);
        let read = ChunkRead::of(fetch.chunk, fetch.from, fetch.length, fetch.chunk_bytes);
        let before = &look.fetches[at.saturating_sub(PIECES_BACK)..at];
        if before.iter().any(|before| before.chunk == fetch.chunk) {
            heat.note_more(read);
            return;
        }
        if let Some(reader) = look.noted_for {
            self.note_visited(reader, read);
        }
        let place = ReadAt {
            dataset: self.dataset.number(),
            body: look.body,
            object: look.object,
            region: ((look.offset + fetch.at as u64) / (PER_REGION * BLOCK)) as u32,
        };
        if heat.note(read, place, fetched)
            && let Ok(Some(tier)) = environment.store.chunk_tier(fetch.chunk)
        {
            heat.lay_on(tier);
        }
    }

    /// One whole block as it is now, zero behind the end of the file; `None` if it is a hole. For changes of a part
    /// of it: the caller holds the object's inode lock.
    pub(crate) fn read_block(
        &self,
        object: &Arc<Object>,
        block: u64,
    ) -> Result<Option<Box<[u8; BLOCK_BYTES]>>, FsError> {
        if self.extents.is_hole(object, block)? {
            return Ok(None);
        }
        let mut page = Box::new([0u8; BLOCK_BYTES]);
        self.read_object(object, block * BLOCK, &mut page[..])?;
        Ok(Some(page))
    }
}

const _: () = assert!(CHUNK_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
