//! Reading content: dirty pages, then frozen ones, then what the region records map, through the chunk cache.
//!
//! Invariants: pages are copied under the object's state lock, so none is seen half written; no lock is held while
//! the store is asked. A chunk that went away between the record and the read was replaced by a commit: everything
//! is looked up again.

use std::{ops::Range, sync::Arc};

use terrace_cache::{Access, ChunkRead, Coming, Fetched, Filled, ReadAt, Reuse, Service, Waiting};
use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId, ChunkPart, StoreError};

use crate::{
    block_device::BlockRead,
    error::FsError,
    fragments::Fragment,
    inode::FileKind,
    keys,
    live::LiveDataset,
    object::{Object, State},
    pages::Block,
    region::{REGION_BLOCKS, RegionRecord},
    tree::SeekTarget,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
const PER_REGION: u64 = REGION_BLOCKS as u64;
/// Reads from this size on need nobody to read ahead of them.
const LARGE_READ_BYTES: usize = 256 << 10;
/// The most that is fetched ahead of a sequential reader at a time, bytes and chunks: where they are small there are many.
const AHEAD_BYTES: u64 = 2 << 20;
const AHEAD_CHUNKS: usize = 64;
/// A chunk of which a read wants this part or more is fetched whole together with the others.
const WHOLE_PART: usize = 4;
/// A read counts a chunk once, unless so many pieces of others lie between two of its own.
const PIECES_BACK: usize = 32;
/// How often a lookup is repeated when chunks go away under it.
const RETRIES: usize = 100;

/// Where the content of some blocks is.
#[derive(Clone, Copy)]
enum Source {
    Chunk { chunk: ChunkId, index: u32 },
    Below,
}

/// `count` blocks from `block` on that are not in RAM.
#[derive(Clone, Copy)]
struct Wanted {
    block: u64,
    count: u64,
    source: Source,
}

/// A piece to copy out of a chunk: `at..at + length` of the buffer from `from` of the chunk on.
struct Fetch {
    chunk: ChunkId,
    from: usize,
    at: usize,
    length: usize,
    /// About how long the chunk is.
    chunk_bytes: usize,
}

/// What a read found before it asks the store: what RAM knows is in its buffer already.
#[derive(Default)]
struct Lookup {
    /// Bytes up to the end of the file.
    length: usize,
    sequential: bool,
    /// From where, and up to where, to read ahead, bytes.
    ahead: Option<Range<u64>>,
    object: u64,
    body: u64,
    /// Where it begins, bytes.
    offset: u64,
    /// Its chunks are used, not only passed by a scan.
    is_use: bool,
    /// Who uses them, if that may be taken back.
    noted_for: Option<u32>,
    fetches: Vec<Fetch>,
    waiting: Option<Waiting>,
}

impl LiveDataset {
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
        if !look.fetches.is_empty() {
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
        let mut looks = Vec::with_capacity(reads.len());
        let (mut parts, mut coming) = (Vec::new(), Vec::new());
        for read in reads.iter_mut() {
            let look = self.locate(None, object, read.offset, read.buffer);
            if let Ok(look) = &look {
                // What cannot be looked ahead of is for the read itself to say.
                coming.extend(self.parts(object, look, &mut parts).ok().flatten());
            }
            looks.push(look);
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
            let mut state = object.state.lock();
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
            let (dataset, minutes) = (self.dataset.number(), self.minutes());
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

    /// A reader in order waits for the pieces of this region.
    fn note_read_in_order(&self, object: &Object, body: u64, region: u64) {
        self.dataset.environment().fragments.note_read(Fragment {
            dataset: self.dataset.number(),
            body,
            region,
            object: object.number,
        });
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
            });
            return Ok(());
        }
        let last = wanted.block + wanted.count;
        for region in wanted.block / PER_REGION..=(last - 1) / PER_REGION {
            let start = region * PER_REGION;
            let (first, to) = (wanted.block.max(start), last.min(start + PER_REGION));
            let cached = self.region(body, region)?;
            let Some(record) = &cached.record else {
                buffer[clip(first * BLOCK, to * BLOCK).1].fill(0);
                continue;
            };
            let mut mapped_to = first;
            let runs = record.runs();
            let begin = runs.partition_point(|run| u64::from(run.end()) + start <= first);
            for run in runs[begin..]
                .iter()
                .take_while(|run| u64::from(run.block) + start < to)
            {
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
                });
            }
            buffer[clip(mapped_to * BLOCK, to * BLOCK).1].fill(0);
        }
        Ok(())
    }

    /// Whether others read ahead of a sequential reader, and how far at a time, bytes.
    fn stretch(&self) -> (bool, u64) {
        let environment = self.dataset.environment();
        let served = environment.read_ahead.is_served();
        // Beside the stretch that is being used there is room for the one that is being fetched.
        let stretch = environment.cache.ahead_bytes() / if served { 2 } else { 1 };
        (served, (stretch / BLOCK * BLOCK).clamp(BLOCK, AHEAD_BYTES))
    }

    /// What is to be fetched for a read, and ahead of it if nobody else does that: then until the fetch has ended what it
    /// returns is to be held, and not longer.
    fn parts(
        &self,
        object: &Arc<Object>,
        look: &Lookup,
        parts: &mut Vec<ChunkPart>,
    ) -> Result<Option<Coming>, FsError> {
        let environment = self.dataset.environment();
        let cache = &environment.cache;
        let fetches = &look.fetches;
        // Of a reader in order: what it wants itself, and what it fetches ahead.
        let mut expected: Vec<ChunkId> = Vec::new();
        if let Some(ahead) = &look.ahead {
            let served = environment.read_ahead.is_served();
            // Who reads ahead for itself does when it reaches something that is not here: a batch at a time, not a chunk
            // at a time.
            let here = |fetch: &Fetch| cache.contains(fetch.chunk) || cache.is_coming(fetch.chunk);
            let mut reached = ahead.start;
            if served || !fetches.iter().all(here) {
                let mut chunks = Vec::new();
                reached = self.ahead(object, look.body, ahead.clone(), &mut chunks)?;
                if served {
                    // What it wants itself it fetches itself.
                    chunks.retain(|chunk| fetches.iter().all(|fetch| fetch.chunk != *chunk));
                    if !self.is_fetched_by_others(chunks) {
                        reached = ahead.start;
                    }
                } else {
                    expected = chunks;
                }
            }
            // Where chunks are many, or nothing was lacking, the stretch that was announced is not all fetched.
            if reached < ahead.end {
                let mut state = object.state.lock();
                if state.ahead_to == ahead.end {
                    state.ahead_to = reached;
                }
            }
        }
        if look.sequential && look.length < LARGE_READ_BYTES {
            expected.extend(fetches.iter().map(|fetch| fetch.chunk));
            let coming = cache.expect(expected);
            parts.extend(coming.parts());
            return Ok(Some(coming));
        }
        let mut whole = Vec::new();
        if look.sequential {
            // So large a read uses them up at once: nobody need keep them for what comes after it.
            whole.extend(fetches.iter().map(|fetch| fetch.chunk));
            whole.sort_unstable();
            whole.dedup();
        } else if fetches.len() > 1 {
            whole.extend(fetched_whole(fetches));
        }
        for fetch in fetches {
            if whole.binary_search(&fetch.chunk).is_err() {
                parts.extend(cache.missing(fetch.chunk, fetch.from, fetch.chunk_bytes, fetch.length));
            }
        }
        let here = |id: &ChunkId| cache.contains(*id) || (look.sequential && cache.is_coming(*id));
        let whole = whole.into_iter().filter(|id| !here(id));
        parts.extend(whole.map(|id| ChunkPart { id, range: None }));
        Ok(None)
    }

    /// Has others fetch chunks ahead; false if nobody is free to.
    fn is_fetched_by_others(&self, chunks: Vec<ChunkId>) -> bool {
        let environment = self.dataset.environment();
        let coming = environment.cache.expect(chunks);
        let store = self.dataset.store().clone();
        coming.is_empty() || environment.read_ahead.offer(move || coming.fetch(&*store))
    }

    /// Fills what RAM did not know of a read, from what was fetched for it or else through the cache.
    fn fill(&self, look: &Lookup, fetched: &Fetched, buffer: &mut [u8]) -> Result<(), ReadError> {
        let environment = self.dataset.environment();
        let (cache, store) = (&environment.cache, &**self.dataset.store());
        for (at, fetch) in look.fetches.iter().enumerate() {
            let target = &mut buffer[fetch.at..fetch.at + fetch.length];
            let filled = match fetched.part(fetch.chunk, fetch.from, target) {
                Some(bytes) => {
                    cache.note_use(fetch.chunk);
                    Ok(Filled { bytes, fetched: true })
                }
                None if look.sequential => cache.part_of_whole(store, fetch.chunk, fetch.from, target),
                None => cache.part(store, fetch.chunk, fetch.from, fetch.chunk_bytes, target),
            };
            let filled = filled.map_err(|error| match error {
                StoreError::NoChunk(_) => ReadError::Moved,
                other => ReadError::Failed(other.into()),
            })?;
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

    /// The chunks that a sequential reader wants next; returns where those that were taken end, bytes.
    fn ahead(
        &self,
        object: &Object,
        body: u64,
        range: Range<u64>,
        chunks: &mut Vec<ChunkId>,
    ) -> Result<u64, FsError> {
        let (first, last) = (range.start / BLOCK, range.end / BLOCK);
        let most = chunks.len() + AHEAD_CHUNKS;
        for region in first / PER_REGION..=(last - 1) / PER_REGION {
            let cached = self.region(body, region)?;
            let Some(record) = &cached.record else {
                break;
            };
            self.note_read_in_order(object, body, region);
            let start = region * PER_REGION;
            let (from, to) = (first.max(start) - start, last.min(start + PER_REGION) - start);
            for run in record.range(from as u32, to as u32) {
                if chunks.len() >= most {
                    return Ok((start + u64::from(run.block)) * BLOCK);
                }
                // Cut up by what was written over, or moved up by itself, it comes in many runs.
                if !chunks.contains(&run.chunk) {
                    chunks.push(run.chunk);
                }
            }
        }
        Ok(last * BLOCK)
    }

    /// One whole block as it is now, zero behind the end of the file; `None` if it is a hole. For changes of a part
    /// of it: the caller holds the object's inode lock.
    pub(crate) fn read_block(
        &self,
        object: &Arc<Object>,
        block: u64,
    ) -> Result<Option<Box<[u8; BLOCK_BYTES]>>, FsError> {
        if self.is_hole(object, block)? {
            return Ok(None);
        }
        let mut page = Box::new([0u8; BLOCK_BYTES]);
        self.read_object(object, block * BLOCK, &mut page[..])?;
        Ok(Some(page))
    }

    fn is_hole(&self, object: &Arc<Object>, block: u64) -> Result<bool, FsError> {
        let body = {
            let state = object.state.lock();
            match look(&state, block) {
                Look::Ram => return Ok(false),
                Look::Void => return Ok(true),
                Look::Source(Source::Chunk { .. }) => return Ok(false),
                Look::Source(Source::Below) => state.inode.body,
            }
        };
        let cached = self.region(body, block / PER_REGION)?;
        Ok(cached
            .record
            .as_ref()
            .is_none_or(|record| record.lookup((block % PER_REGION) as u32).is_none()))
    }

    /// SEEK_DATA and SEEK_HOLE in units of blocks.
    pub(crate) fn seek_object(
        &self,
        object: &Arc<Object>,
        offset: u64,
        target: SeekTarget,
    ) -> Result<u64, FsError> {
        let size = object.state.lock().inode.size;
        if offset >= size {
            return Err(FsError::NoData);
        }
        let end = size.div_ceil(BLOCK);
        let mut block = offset / BLOCK;
        while block < end {
            let region = block / PER_REGION;
            let mapped = self.mapped_blocks(object, region)?;
            let first = (block % PER_REGION) as usize;
            let want = target == SeekTarget::Data;
            if let Some(found) = mapped[first..].iter().position(|is_mapped| *is_mapped == want) {
                let at = (block + found as u64) * BLOCK;
                return match target {
                    _ if at < size => Ok(at.max(offset)),
                    SeekTarget::Data => Err(FsError::NoData),
                    SeekTarget::Hole => Ok(size),
                };
            }
            block = match target {
                SeekTarget::Hole => (region + 1) * PER_REGION,
                SeekTarget::Data => match self.next_region(object, region + 1, end.div_ceil(PER_REGION))? {
                    Some(next) => next * PER_REGION,
                    None => return Err(FsError::NoData),
                },
            };
        }
        if target == SeekTarget::Data {
            Err(FsError::NoData)
        } else {
            Ok(size)
        }
    }

    /// Which blocks of a region are not holes.
    pub(crate) fn mapped_blocks(
        &self,
        object: &Arc<Object>,
        region: u64,
    ) -> Result<[bool; PER_REGION as usize], FsError> {
        let mut mapped = [false; PER_REGION as usize];
        let mut below = Vec::new();
        let body = {
            let state = object.state.lock();
            for at in 0..PER_REGION {
                match look(&state, region * PER_REGION + at) {
                    Look::Ram | Look::Source(Source::Chunk { .. }) => mapped[at as usize] = true,
                    Look::Void => {}
                    Look::Source(Source::Below) => below.push(at as usize),
                }
            }
            state.inode.body
        };
        if !below.is_empty() {
            let cached = self.region(body, region)?;
            if let Some(record) = &cached.record {
                for at in below {
                    mapped[at] = record.lookup(at as u32).is_some();
                }
            }
        }
        Ok(mapped)
    }

    /// The first region from `from` up to `to` in which something may be mapped.
    pub(crate) fn next_region(
        &self,
        object: &Arc<Object>,
        from: u64,
        to: u64,
    ) -> Result<Option<u64>, FsError> {
        let (live, frozen, body) = {
            let state = object.state.lock();
            let frozen = state.frozen.as_ref().and_then(|layer| layer.next_region(from));
            (state.data.next_region(from), frozen, state.inode.body)
        };
        let dataset = self.dataset.number();
        let start = keys::region(dataset, body, from);
        let end = keys::region(dataset, body, to);
        let found = if start < end {
            self.dataset.store().scan(&start, &end, 1)?
        } else {
            Vec::new()
        };
        let recorded = match found.first() {
            Some((key, _)) => Some(keys::parse_region(key)?.2),
            None => None,
        };
        Ok([live, frozen, recorded]
            .into_iter()
            .flatten()
            .filter(|region| *region < to)
            .min())
    }

    /// The mapping of a region if nothing of it is in RAM only: for sharing chunks. `None`: it has dirty pages.
    pub(crate) fn sharable(
        &self,
        object: &Arc<Object>,
        from: u64,
        to: u64,
    ) -> Result<Option<RegionRecord>, FsError> {
        let region = from / PER_REGION;
        let mut record = RegionRecord::new();
        let mut below = Vec::new();
        let body = {
            let state = object.state.lock();
            for block in from..to {
                let at = (block % PER_REGION) as u32;
                match look(&state, block) {
                    Look::Ram => return Ok(None),
                    Look::Void => {}
                    // Only this object holds what was written ahead: nobody else may refer to it before the commit.
                    Look::Source(Source::Chunk { chunk, .. }) if is_ahead(&state, chunk) => return Ok(None),
                    Look::Source(Source::Chunk { chunk, index }) => record.overwrite(at, 1, chunk, index),
                    Look::Source(Source::Below) => below.push(at),
                }
            }
            state.inode.body
        };
        // After the look at what is in RAM: a commit puts its records here before it lets that go, and what an older one maps is
        // not the content any more, nor anybody's.
        let cached = self.region(body, region)?;
        if let Some(recorded) = &cached.record {
            for at in below {
                if let Some((chunk, index)) = recorded.lookup(at) {
                    record.overwrite(at, 1, chunk, index);
                }
            }
        }
        Ok(Some(record))
    }

    /// The chunks that a region maps, as of the newest commit.
    pub(crate) fn chunks(&self, object: &Arc<Object>, region: u64) -> Result<Vec<ChunkId>, FsError> {
        if !matches!(object.kind, FileKind::File | FileKind::Volume) {
            return Ok(Vec::new());
        }
        let body = object.state.lock().inode.body;
        let cached = self.region(body, region)?;
        let mut chunks: Vec<ChunkId> = cached
            .record
            .iter()
            .flat_map(|record| record.runs().iter().map(|run| run.chunk))
            .collect();
        chunks.sort_unstable();
        chunks.dedup();
        Ok(chunks)
    }
}

/// The chunks of which a read wants a good part, each once. (Overwritten here and there, a chunk is wanted in many small
/// pieces.)
fn fetched_whole(fetches: &[Fetch]) -> Vec<ChunkId> {
    let mut pieces: Vec<(ChunkId, usize, usize)> = fetches
        .iter()
        .map(|fetch| (fetch.chunk, fetch.length, fetch.chunk_bytes))
        .collect();
    pieces.sort_unstable_by_key(|(chunk, ..)| *chunk);
    pieces
        .chunk_by(|(one, ..), (other, ..)| one == other)
        .filter(|pieces| {
            let wanted: usize = pieces.iter().map(|(_, length, _)| length).sum();
            let whole = pieces.iter().map(|(.., bytes)| *bytes).max();
            whole.is_some_and(|whole| wanted * WHOLE_PART >= whole)
        })
        .map(|pieces| pieces[0].0)
        .collect()
}

/// What to read ahead of a sequential read, if anything, when everything up to `ahead_to` is here or on its way. `served`:
/// others do it, so that the next stretch is fetched while the last one is used.
fn next_stretch(ahead_to: u64, read: Range<u64>, stretch: u64, served: bool) -> Option<Range<u64>> {
    // Who reads with several requests at a time is not to fetch a stretch several times.
    let reach = if served { 2 * stretch } else { stretch };
    let under_way = (read.start..=read.start + reach).contains(&ahead_to);
    let from = match (under_way, served) {
        (true, true) => ahead_to.max(read.end),
        (true, false) if ahead_to != read.start => return None,
        _ => read.end,
    };
    let is_near = from - read.end < stretch;
    is_near.then(|| from..(from / BLOCK * BLOCK).saturating_add(stretch))
}

enum ReadError {
    Moved,
    Failed(FsError),
}

impl From<FsError> for ReadError {
    fn from(error: FsError) -> Self {
        ReadError::Failed(error)
    }
}

enum Look {
    Ram,
    Void,
    Source(Source),
}

fn is_ahead(state: &State, chunk: ChunkId) -> bool {
    let layers = [Some(&state.data), state.frozen.as_deref()];
    layers
        .into_iter()
        .flatten()
        .any(|layer| layer.ahead().contains_key(&chunk))
}

fn look(state: &State, block: u64) -> Look {
    for layer in [Some(&state.data), state.frozen.as_deref()].into_iter().flatten() {
        match layer.block(block) {
            Block::Dirty(_) => return Look::Ram,
            Block::Mapped(chunk, index) => return Look::Source(Source::Chunk { chunk, index }),
            Block::Void => return Look::Void,
            Block::Below => {}
        }
    }
    Look::Source(Source::Below)
}

/// Copies what is in RAM; collects the rest. Neighbours are joined.
fn copy_pages(state: &State, offset: u64, buffer: &mut [u8], wanted: &mut Vec<Wanted>) {
    let end = offset + buffer.len() as u64;
    let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
    if state.data.is_empty() && state.frozen.is_none() {
        wanted.push(Wanted {
            block: first,
            count: last - first,
            source: Source::Below,
        });
        return;
    }
    for block in first..last {
        let (from, to) = ((block * BLOCK).max(offset), ((block + 1) * BLOCK).min(end));
        let target = &mut buffer[(from - offset) as usize..(to - offset) as usize];
        let mut found = state.data.block(block);
        if let (Block::Below, Some(frozen)) = (&found, &state.frozen) {
            found = frozen.block(block);
        }
        match found {
            Block::Dirty(page) => {
                let start = (from - block * BLOCK) as usize;
                target.copy_from_slice(&page[start..start + target.len()]);
            }
            Block::Void => target.fill(0),
            Block::Mapped(chunk, index) => match wanted.last_mut() {
                Some(Wanted {
                    block: start,
                    count,
                    source:
                        Source::Chunk {
                            chunk: open,
                            index: at,
                        },
                }) if *open == chunk
                    && *start + *count == block
                    && u64::from(*at) + *count == u64::from(index) =>
                {
                    *count += 1;
                }
                _ => wanted.push(Wanted {
                    block,
                    count: 1,
                    source: Source::Chunk { chunk, index },
                }),
            },
            Block::Below => match wanted.last_mut() {
                Some(Wanted {
                    block: start,
                    count,
                    source: Source::Below,
                }) if *start + *count == block => *count += 1,
                _ => wanted.push(Wanted {
                    block,
                    count: 1,
                    source: Source::Below,
                }),
            },
        }
    }
}

const _: () = assert!(CHUNK_BYTES_MAX.is_multiple_of(BLOCK_BYTES));

impl LiveDataset {
    /// Updates the time of the last read by the `relatime` rule: if it is not newer than the last change, or a day
    /// old. Costs no room: it may be lost with the pool full.
    pub(crate) fn accessed(&self, object: &Arc<Object>) {
        if self.writable().is_err() {
            return;
        }
        let now = self.now();
        let _gate = self.enter();
        let mut state = object.state.lock();
        let inode = &state.inode;
        let old = inode.accessed <= inode.modified
            || inode.accessed <= inode.changed
            || now.seconds.saturating_sub(inode.accessed.seconds) >= 24 * 60 * 60;
        if old && !state.freed {
            state.inode.accessed = now;
            self.mark_inode(object, &mut state);
        }
    }
}
