//! Relayout: the content of regions that lies in many small pieces, or in chunks that are mostly dead, is written anew as
//! whole chunks. What is to be written, and what is left alone, says [`Layout`].
//!
//! Invariants: content, size and times stay; the new record takes the place of the one that is there with the *birth* of that
//! one, so a past state that reads the live record reads the same content from the new chunks, no version moves to history, and
//! nothing counts as changed since a checkpoint. Content is read (verified as a whole) and written without a lock; the
//! records are replaced under the commit lock, block by block: a block that is mapped as it was read lies in the new chunk
//! from then on, and whoever wrote, punched or shared one in between has won. Nothing is replaced where the body does not
//! belong to the object any more, or where a past state has taken the old chunks over: a second copy would give nothing back.
//! One batch takes the new chunks into the records and the references off the old ones: a crash leaves the old layout or the new.
//! Dirty and frozen pages lie above the record and know nothing of it. Blocks that a reflink has mapped, but no commit has
//! counted yet, would lose their chunks: while there are any, nothing is replaced, and while something is replaced, none
//! are made ([`Relayouts`]). Room is taken first, as for any write: a relayout never fills the pool, but for one that is made because it
//! is full (`free_space.rs`), a little at a time.

use super::{
    layout::{Cut, Layout},
    placement::body_of_object,
};
use crate::{
    commit::{CommitQueue, Run, compression_of, dedup_of, joined},
    live::{CachedRegion, DatasetState, DirtyEpoch, Fragment, ObjectTable, Shared},
    posix::FsError,
    records::{REGION_BLOCKS, REGION_BYTES, RegionRecord, VersionedBatch},
};
use std::{
    borrow::Cow,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use terrace_cache::LONG_BLOCKS;
use terrace_store::{
    BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId, Owner, Piece, Placement, Reservation, StoreError, Trial, Written,
};

/// Content that is read at once, bytes, if all of its chunks are as long as can be.
const READ_BYTES: u64 = 4 << 20;

/// Counts beginnings and ends of replacements: odd while one is under way.
#[derive(Default)]
pub(crate) struct Relayouts {
    count: AtomicU64,
    closed: AtomicBool,
}

impl Relayouts {
    /// What [`are_as`](Self::are_as) compares with; `None` while a record is being replaced.
    pub(crate) fn now(&self) -> Option<u64> {
        Some(self.count.load(SeqCst)).filter(|count| count % 2 == 0)
    }

    /// Whether no replacement has begun since. The gate is held.
    pub(crate) fn are_as(&self, before: u64) -> bool {
        self.count.load(SeqCst) == before
    }

    /// There are no more: others have the dataset's records in RAM from now on. The commit lock is held.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    fn are_over(&self) -> bool {
        self.closed.load(SeqCst)
    }

    fn begin(&self) -> Replacing<'_> {
        self.count.fetch_add(1, SeqCst);
        Replacing(self)
    }
}

struct Replacing<'a>(&'a Relayouts);

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, SeqCst);
    }
}

/// The content of some blocks of a region.
struct Content {
    bytes: Vec<u8>,
    /// How much of a block its chunk holds: less than a block at the end of a file.
    lengths: [u16; REGION_BLOCKS as usize],
    /// Blocks that were written over meanwhile, so that their chunk is gone.
    gone: [bool; REGION_BLOCKS as usize],
}

impl Content {
    fn of(&self, blocks: &Range<u32>) -> &[u8] {
        let (from, last) = (blocks.start as usize, blocks.end as usize - 1);
        &self.bytes[from * BLOCK_BYTES..last * BLOCK_BYTES + usize::from(self.lengths[last])]
    }

    fn has(&self, blocks: &Range<u32>) -> bool {
        !self.gone[blocks.start as usize..blocks.end as usize].contains(&true)
    }
}

/// A region whose content was written anew, until its record says so.
pub(crate) struct Anew {
    pub(crate) fragment: Fragment,
    pub(crate) seen: Arc<CachedRegion>,
    /// Each of these stretches of blocks, as one chunk.
    pub(crate) places: Vec<(Range<u32>, Written)>,
    pub(crate) done: Relaid,
    /// Kept until the chunks are referred to, unless somebody else keeps it.
    pub(crate) _room: Option<Reservation>,
}

impl Anew {
    /// The record that is there now, with the blocks that are mapped as they were seen in their new chunks; and those of
    /// them that it refers to.
    fn laid_out(&self, seen: &RegionRecord, now: &RegionRecord) -> (RegionRecord, Vec<Written>) {
        let (mut laid_out, mut used) = (now.clone(), Vec::with_capacity(self.places.len()));
        for (blocks, chunk) in &self.places {
            let is_same = |block: &u32| now.lookup(*block) == seen.lookup(*block);
            let mut next = blocks.start;
            while let Some(from) = (next..blocks.end).find(is_same) {
                let to = (from..blocks.end).find(|block| !is_same(block));
                next = to.unwrap_or(blocks.end);
                laid_out.overwrite(from, next - from, chunk.id, from - blocks.start);
                if used.last().is_none_or(|last: &Written| last.id != chunk.id) {
                    used.push(chunk.clone());
                }
            }
        }
        (laid_out, used)
    }
}

/// See the module.
pub(crate) struct Relayouter {
    pub(super) dataset: Arc<DatasetState>,
    pub(super) table: Arc<ObjectTable>,
    epoch: Arc<DirtyEpoch>,
    commits: Arc<CommitQueue>,
    relayouts: Arc<Relayouts>,
}

impl Relayouter {
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        table: &Arc<ObjectTable>,
        epoch: &Arc<DirtyEpoch>,
        commits: &Arc<CommitQueue>,
        relayouts: &Arc<Relayouts>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
            epoch: epoch.clone(),
            commits: commits.clone(),
            relayouts: relayouts.clone(),
        })
    }

    /// Writes regions anew, of what `wanted` accepts of each about `most_bytes`, and replaces their records at once: each
    /// turn of the commit lock may wait for a commit that is under way.
    pub(crate) fn lay_out(
        &self,
        fragments: &[Fragment],
        cut: Cut,
        wanted: Accepts<'_>,
        most_bytes: u64,
    ) -> Vec<Result<Relaid, FsError>> {
        // What is written now could not be put into the records.
        if self.gives_way(cut) {
            return vec![Ok(Relaid::Busy); fragments.len()];
        }
        let (mut results, mut written) = (Vec::with_capacity(fragments.len()), Vec::new());
        for fragment in fragments {
            results.push(match self.write_anew(fragment, cut, wanted, most_bytes) {
                Ok(Some(anew)) => {
                    written.push((results.len(), anew));
                    Ok(Relaid::Busy)
                }
                Ok(None) => Ok(Relaid::Left),
                Err(error) => Err(error),
            });
        }
        match self.replace_records(&written, cut) {
            Ok(replaced) => {
                for ((at, anew), _) in written.iter().zip(replaced).filter(|(_, replaced)| *replaced) {
                    results[*at] = Ok(anew.done);
                    self.inherit_heat(anew);
                }
            }
            Err(error) => written
                .iter()
                .for_each(|(at, _)| results[*at] = Err(error.clone())),
        }
        results
    }

    /// What was read often is read as often at its new place: else what lies up would look cold there.
    fn inherit_heat(&self, anew: &Anew) {
        let heat = &self.dataset.environment().chunk_heat;
        let Some(record) = &anew.seen.record else { return };
        for (blocks, chunk) in &anew.places {
            for (at, block) in blocks.clone().enumerate() {
                let long = at == 0 && blocks.len() as u32 >= LONG_BLOCKS;
                if let Some(old) = record.lookup(block).filter(|(id, _)| *id != chunk.id) {
                    heat.inherit(old, (chunk.id, at as u32), long);
                }
            }
        }
    }

    /// Writes new chunks for a region; `None` if there is nothing to be done, or nothing that can be.
    fn write_anew(
        &self,
        fragment: &Fragment,
        cut: Cut,
        wanted: Accepts<'_>,
        most_bytes: u64,
    ) -> Result<Option<Anew>, FsError> {
        if self.dataset.is_gone() || !self.is_body_of(fragment)? {
            return Ok(None);
        }
        let seen = self.table.region(fragment.body, fragment.region)?;
        let Some(record) = &seen.record else {
            return Ok(None);
        };
        let Some(plain) = self.stored_plain(fragment, record)? else {
            return Ok(None);
        };
        let (store, settings) = (self.dataset.store(), self.dataset.settings());
        let layouts = Layout::of(store.as_ref(), record, &settings, cut)?;
        let Some(layout) = layouts.iter().find(|layout| wanted(fragment, layout)) else {
            return Ok(None);
        };
        let (stretches, whole) = layout.first(most_bytes);
        let blocks: u64 = stretches.iter().map(|stretch| stretch.len() as u64).sum();
        let room = match cut {
            // Whatever is set aside: it gives back more than it takes. But what it empties comes back by compaction, which
            // needs some of the reserve itself.
            Cut::ForRoom => store.reserve_to_gain(blocks * BLOCK_BYTES as u64)?,
            Cut::InOrder | Cut::Survivors => store.reserve(blocks * BLOCK_BYTES as u64)?,
        };
        let content = match self.content(record, stretches, most_bytes) {
            Ok(content) => content,
            // What cannot be read stays where it is, for readers and for the scrub to tell of.
            Err(StoreError::Damaged { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let there = stretches.iter().filter(|blocks| content.has(blocks));
        // Zeroes make no chunk: they stay where they are.
        let there = there.filter(|blocks| content.of(blocks).iter().any(|byte| *byte != 0));
        let runs = there.map(|blocks| Run {
            index: blocks.start,
            count: blocks.len() as u32,
            zero: false,
            trial: Trial::Untried,
        });
        let bytes_of = |run: &Run| content.of(&(run.index..run.index + run.count));
        let runs: Vec<Run> = match cut {
            Cut::InOrder => joined(store.as_ref(), &settings, runs, |run| {
                Cow::Borrowed(bytes_of(run))
            })
            .collect(),
            Cut::Survivors | Cut::ForRoom => runs.collect(),
        };
        let (places, pieces): (Vec<_>, Vec<_>) = runs
            .iter()
            .map(|run| {
                let (blocks, bytes) = (run.index..run.index + run.count, bytes_of(run));
                let first = fragment.region * u64::from(REGION_BLOCKS) + u64::from(blocks.start);
                let piece = Piece {
                    content: bytes,
                    compression: compression_of(&settings, plain),
                    trial: run.trial,
                    dedup: dedup_of(&settings, plain),
                    placement: Placement::Tier {
                        tier: layout.tier,
                        strict: cut != Cut::ForRoom,
                    },
                    // To a rebuilding it is the state that it was, not one that came later.
                    owner: Owner {
                        dataset: self.dataset.number(),
                        object: fragment.object,
                        block: first,
                        checkpoint: seen.birth,
                    },
                    privileged: true,
                };
                (blocks, piece)
            })
            .unzip();
        let written = store.write_chunks(&pieces)?;
        let anew = Anew {
            fragment: *fragment,
            done: Relaid::Done {
                tier: layout.tier,
                written_bytes: pieces.iter().map(|piece| piece.content.len() as u64).sum(),
                dead_bytes: layout.dead_bytes(),
                whole,
            },
            places: places.into_iter().zip(written).collect(),
            seen: seen.clone(),
            _room: Some(room),
        };
        // Equal chunks that are there already may be the very ones that it has.
        Ok((anew.laid_out(record, record).0 != *record).then_some(anew))
    }

    pub(crate) fn is_body_of(&self, fragment: &Fragment) -> Result<bool, FsError> {
        let body = body_of_object(self.dataset.store(), self.dataset.number(), fragment.object)?;
        Ok(body == Some(fragment.body))
    }

    /// The content of these blocks of a record, read in pieces of about `most_bytes` or a chunk; if that is all of a region, in
    /// as large ones as memory is taken for.
    fn content(
        &self,
        record: &RegionRecord,
        stretches: &[Range<u32>],
        most_bytes: u64,
    ) -> Result<Content, StoreError> {
        let mut content = Content {
            bytes: vec![0; REGION_BYTES as usize],
            lengths: [BLOCK_BYTES as u16; REGION_BLOCKS as usize],
            gone: [false; REGION_BLOCKS as usize],
        };
        let runs = stretches
            .iter()
            .flat_map(|stretch| record.range(stretch.start, stretch.end));
        let runs: Vec<_> = runs.collect();
        let mut ids: Vec<ChunkId> = runs.iter().map(|run| run.chunk).collect();
        ids.sort_unstable();
        ids.dedup();
        let bytes_at_once = match most_bytes < REGION_BYTES {
            true => most_bytes,
            false => READ_BYTES,
        };
        let at_once = (bytes_at_once / CHUNK_BYTES_MAX as u64).max(1) as usize;
        for ids in ids.chunks(at_once) {
            for (id, chunk) in ids.iter().zip(self.dataset.store().read_chunks(ids)) {
                let runs = runs.iter().filter(|run| run.chunk == *id);
                let chunk = match chunk {
                    Ok(chunk) => chunk,
                    Err(StoreError::NoChunk(_)) => {
                        runs.for_each(|run| content.gone[run.block as usize..run.end() as usize].fill(true));
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                for run in runs {
                    for at in 0..run.count {
                        let from = (run.index + at) as usize * BLOCK_BYTES;
                        let bytes = chunk.len().saturating_sub(from).min(BLOCK_BYTES);
                        let block = (run.block + at) as usize;
                        let target = &mut content.bytes[block * BLOCK_BYTES..][..bytes];
                        target.copy_from_slice(&chunk[from.min(chunk.len())..][..bytes]);
                        content.lengths[block] = bytes as u16;
                    }
                }
            }
        }
        Ok(content)
    }

    /// Whether a commit may be waiting for content to sink, which is for the very thread that is here, unless that is who needs room
    /// himself.
    fn gives_way(&self, cut: Cut) -> bool {
        cut != Cut::ForRoom && self.dataset.store().waits_for_sinking()
    }

    /// Puts what was written anew into the records, in one batch; for each, whether it is there: not if it changed as a
    /// whole, or not now.
    pub(crate) fn replace_records(&self, written: &[(usize, Anew)], cut: Cut) -> Result<Vec<bool>, FsError> {
        let none = vec![false; written.len()];
        if written.is_empty() {
            return Ok(none);
        }
        let Some(_lock) = self.dataset.commit_lock_unless(|| self.gives_way(cut)) else {
            return Ok(none);
        };
        let waiting = self.commits.is_waiting();
        if self.dataset.is_gone() || self.relayouts.are_over() || waiting {
            return Ok(none);
        }
        let _replacing = {
            let stopped = self.epoch.stop();
            if stopped.has_shared() {
                return Ok(none);
            }
            self.relayouts.begin()
        };
        let mut batch = self.dataset.batch(self.dataset.current_checkpoint());
        let (mut replaced, mut records) = (Vec::with_capacity(written.len()), Vec::new());
        for (_, anew) in written {
            let record = self.replace_record(anew, &mut batch)?;
            replaced.push(record.is_some());
            let place = (anew.fragment.body, anew.fragment.region);
            records.extend(record.map(|record| (place, Arc::new(record))));
        }
        if records.is_empty() {
            return Ok(none);
        }
        batch.privileged();
        self.dataset.commit(batch)?;
        for (place, record) in records {
            self.table.put_region(place, record);
        }
        Ok(replaced)
    }

    /// Puts these chunks into the record that is there now; returns what it is then, `None` if there is nothing of what was
    /// read any more. The commit lock is held.
    fn replace_record(
        &self,
        anew: &Anew,
        batch: &mut VersionedBatch,
    ) -> Result<Option<CachedRegion>, FsError> {
        let (body, region) = (anew.fragment.body, anew.fragment.region);
        if !self.is_body_of(&anew.fragment)? {
            return Ok(None);
        }
        let now = self.table.region(body, region)?;
        let (Some(old), Some(seen)) = (&now.record, &anew.seen.record) else {
            return Ok(None);
        };
        // The version that was read is one of the past meanwhile: its chunks stay.
        if now.birth != anew.seen.birth && batch.holds(anew.seen.birth) {
            return Ok(None);
        }
        let (laid_out, used) = anew.laid_out(seen, old);
        if laid_out == *old || !self.stays_own(&anew.fragment, old, &laid_out)? {
            return Ok(None);
        }
        // What is seen by a past state goes on being seen by it, wherever it lies.
        let shared = match batch.holds(now.birth) {
            true => None,
            false => Shared::note(&self.dataset, batch, body, region, Some(&now), &laid_out)?,
        };
        batch.replace_region(body, region, now.birth, old, &laid_out);
        used.into_iter().for_each(|chunk| batch.hold(chunk));
        Ok(Some(CachedRegion {
            birth: now.birth,
            record: Some(laid_out),
            shared,
        }))
    }
}

/// Whether it pays to lay a region out anew.
pub type Accepts<'a> = &'a dyn Fn(&Fragment, &Layout) -> bool;

/// What became of a region that was to be laid out anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relaid {
    /// It was.
    Done {
        /// On this tier.
        tier: u8,
        /// Content written.
        written_bytes: u64,
        /// Stored bytes that were dead, of the whole region.
        dead_bytes: u64,
        /// All that was wanted.
        whole: bool,
    },
    /// There is nothing to be done, or nothing that can be.
    Left,
    /// It changed meanwhile, or something stands in the way now.
    Busy,
}
