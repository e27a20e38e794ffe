//! Relayout: the content of a region that lies in many small pieces, or in chunks that are mostly dead, is written anew as
//! whole chunks in order. What is to be written, and what is left alone, says [`Layout`].
//!
//! Invariants: content, size and times stay; the new record takes the place of the old one with the *birth* of the old one,
//! so a past state that reads the live record reads the same content from the new chunks, no version moves to history, and
//! nothing counts as changed since a checkpoint. Content is read (verified as a whole) and written without a lock; the
//! record is replaced under the commit lock, and only if it is still the very record that was read and its body still
//! belongs to the object: whoever wrote, punched or deleted in between has won, and the new chunks are dropped. One batch
//! takes the new chunks into the record and the references off the old ones: a crash leaves the old layout or the new.
//! Dirty and frozen pages lie above the record and know nothing of it. Blocks that a reflink has mapped, but no commit has
//! counted yet, would lose their chunks: while there are any, nothing is replaced, and while something is replaced, none
//! are made ([`Relayouts`]). Room is taken first, as for any write: a relayout never fills the pool.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId, Owner, Piece, Placement, StoreError, Written};

use crate::{
    error::FsError,
    fragments::Fragment,
    layout::Layout,
    live::{CachedRegion, LiveDataset},
    placement::body_of_object,
    region::{REGION_BLOCKS, REGION_BYTES, RegionRecord},
    state::Relaid,
};

/// Content that is read at once, bytes.
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
}

impl Content {
    fn of(&self, blocks: &Range<u32>) -> &[u8] {
        let (from, last) = (blocks.start as usize, blocks.end as usize - 1);
        &self.bytes[from * BLOCK_BYTES..last * BLOCK_BYTES + usize::from(self.lengths[last])]
    }
}

impl LiveDataset {
    /// Writes a region anew, of what `wanted` accepts about `most_bytes`.
    pub(crate) fn lay_out(
        &self,
        fragment: &Fragment,
        wanted: &dyn Fn(&Layout) -> bool,
        most_bytes: u64,
    ) -> Result<Relaid, FsError> {
        if self.dataset.is_gone() || !self.is_body_of(fragment)? {
            return Ok(Relaid::Left);
        }
        let seen = self.region(fragment.body, fragment.region)?;
        let Some(record) = &seen.record else {
            return Ok(Relaid::Left);
        };
        let (store, settings) = (self.dataset.store(), self.settings());
        let layouts = Layout::of(store.as_ref(), record, settings.chunk_bytes)?;
        let Some(layout) = layouts.iter().find(|layout| wanted(layout)) else {
            return Ok(Relaid::Left);
        };
        let (stretches, whole) = layout.first(most_bytes);
        let blocks: u64 = stretches.iter().map(|stretch| stretch.len() as u64).sum();
        // Kept until the chunks are referred to.
        let _room = store.reserve(blocks * BLOCK_BYTES as u64)?;
        let content = match self.content(record, stretches) {
            Ok(content) => content,
            // What cannot be read stays where it is, for readers and for the scrub to tell of.
            Err(StoreError::NoChunk(_) | StoreError::Damaged { .. }) => return Ok(Relaid::Left),
            Err(error) => return Err(error.into()),
        };
        let pieces = stretches.iter().map(|blocks| (blocks, content.of(blocks)));
        // Zeroes make no chunk: they stay where they are.
        let pieces = pieces.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        let (places, pieces): (Vec<_>, Vec<_>) = pieces
            .map(|(blocks, bytes)| {
                let first = fragment.region * u64::from(REGION_BLOCKS) + u64::from(blocks.start);
                let piece = Piece {
                    content: bytes,
                    compression: settings.compression,
                    dedup: settings.dedup,
                    placement: Placement::Tier {
                        tier: layout.tier,
                        strict: true,
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
        let written_bytes = pieces.iter().map(|piece| piece.content.len() as u64).sum();
        let mut laid_out = record.clone();
        for (blocks, chunk) in places.iter().zip(&written) {
            laid_out.overwrite(blocks.start, blocks.len() as u32, chunk.id, 0);
        }
        if laid_out == *record {
            return Ok(Relaid::Left);
        }
        Ok(match self.replace_record(fragment, &seen, laid_out, written)? {
            true => Relaid::Done {
                tier: layout.tier,
                written_bytes,
                dead_bytes: layout.dead_bytes(),
                whole,
            },
            false => Relaid::Busy,
        })
    }

    fn is_body_of(&self, fragment: &Fragment) -> Result<bool, FsError> {
        let body = body_of_object(self.dataset.store(), self.dataset.number(), fragment.object)?;
        Ok(body == Some(fragment.body))
    }

    /// The content of these blocks of a record.
    fn content(&self, record: &RegionRecord, stretches: &[Range<u32>]) -> Result<Content, StoreError> {
        let mut content = Content {
            bytes: vec![0; REGION_BYTES as usize],
            lengths: [BLOCK_BYTES as u16; REGION_BLOCKS as usize],
        };
        let runs = stretches
            .iter()
            .flat_map(|stretch| record.range(stretch.start, stretch.end));
        let runs: Vec<_> = runs.collect();
        let mut ids: Vec<ChunkId> = runs.iter().map(|run| run.chunk).collect();
        ids.sort_unstable();
        ids.dedup();
        let at_once = (READ_BYTES / CHUNK_BYTES_MAX as u64) as usize;
        for ids in ids.chunks(at_once) {
            for (id, chunk) in ids.iter().zip(self.dataset.store().read_chunks(ids)) {
                let chunk = chunk?;
                for run in runs.iter().filter(|run| run.chunk == *id) {
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

    /// Puts the record in the place of the one that was seen; `false` if that is not there any more, or not now.
    fn replace_record(
        &self,
        fragment: &Fragment,
        seen: &CachedRegion,
        laid_out: RegionRecord,
        written: Vec<Written>,
    ) -> Result<bool, FsError> {
        let _lock = self.dataset.commit_lock();
        let waiting = { self.pending.lock().is_some() };
        if self.dataset.is_gone() || self.relayouts.are_over() || waiting {
            return Ok(false);
        }
        let _replacing = {
            let _gate = self.gate.write();
            if self.shared.lock().is_some() {
                return Ok(false);
            }
            self.relayouts.begin()
        };
        if !self.is_body_of(fragment)? {
            return Ok(false);
        }
        let now = self.region(fragment.body, fragment.region)?;
        let Some(old) = now
            .record
            .as_ref()
            .filter(|_| now.birth == seen.birth && now.record == seen.record)
        else {
            return Ok(false);
        };
        let mut batch = self.dataset.batch(self.dataset.current_checkpoint());
        batch.replace_region(fragment.body, fragment.region, now.birth, old, &laid_out);
        for chunk in written {
            batch.hold(chunk);
        }
        batch.privileged();
        self.dataset.commit(batch)?;
        let cached = CachedRegion {
            birth: now.birth,
            record: Some(laid_out),
        };
        self.regions
            .insert((fragment.body, fragment.region), Arc::new(cached));
        Ok(true)
    }
}
