//! `Content`: chunks on their way from the damaged pool into the new one, each once, and region records that name them
//! by their new numbers.
//!
//! Invariants: what is written was verified against its hash; a block whose chunk is nowhere becomes a hole and is
//! counted, never something else; memory is in proportion to the number of chunks.

use std::collections::HashMap;

use bytes::Bytes;
use terrace_chunk::{ChunkStore, Salvaged, Step};
use terrace_dataset::RegionRecord;
use terrace_store::{Batch, ChunkId, Compression, Dedup, Flow, Owner, Piece, Placement, Store, Trial};

use super::Progress;
use crate::EngineError;

/// Content that is written at once, bytes.
const WRITE_BYTES: usize = 8 << 20;
/// Background steps of the new store after each batch, at most.
const STEPS: usize = 256;

/// The copying.
pub(super) struct Content<'a> {
    salvaged: &'a Salvaged,
    target: Option<&'a ChunkStore>,
    progress: &'a mut Progress<'a>,
    /// Old number → new one; 0: the chunk is lost.
    numbers: HashMap<ChunkId, u64>,
    total_bytes: u64,
    /// Chunks copied.
    pub(super) chunks: u64,
    /// Their content, bytes.
    pub(super) bytes: u64,
    /// Chunks that are lost, and why for the first ones.
    pub(super) lost: u64,
    pub(super) causes: Vec<String>,
}

impl<'a> Content<'a> {
    pub(super) fn new(
        salvaged: &'a Salvaged,
        target: Option<&'a ChunkStore>,
        progress: &'a mut Progress<'a>,
    ) -> Self {
        Self {
            total_bytes: salvaged.content_bytes(),
            salvaged,
            target,
            progress,
            numbers: HashMap::new(),
            chunks: 0,
            bytes: 0,
            lost: 0,
            causes: Vec::new(),
        }
    }

    /// Copies the chunks of region records that were not copied yet; `batch` keeps them until it is committed.
    pub(super) fn place(
        &mut self,
        wanted: &[(ChunkId, Owner)],
        compression: Compression,
        batch: &mut Batch,
    ) -> Result<(), EngineError> {
        let mut group: Vec<(ChunkId, Owner, Bytes)> = Vec::new();
        let mut bytes = 0;
        for (id, owner) in wanted {
            if self.numbers.contains_key(id) {
                continue;
            }
            // Noted at once: the same chunk may be wanted again further on.
            self.numbers.insert(*id, 0);
            match self.salvaged.read_chunk(*id, (owner.dataset, owner.object)) {
                Ok(content) => {
                    bytes += content.len();
                    group.push((*id, *owner, content));
                }
                Err(cause) => {
                    self.lost += 1;
                    if self.causes.len() < super::LINES_MAX {
                        self.causes.push(cause);
                    }
                }
            }
            if bytes >= WRITE_BYTES {
                self.write(&mut group, compression, batch)?;
                bytes = 0;
            }
        }
        self.write(&mut group, compression, batch)
    }

    fn write(
        &mut self,
        group: &mut Vec<(ChunkId, Owner, Bytes)>,
        compression: Compression,
        batch: &mut Batch,
    ) -> Result<(), EngineError> {
        for (_, _, content) in group.iter() {
            self.chunks += 1;
            self.bytes += content.len() as u64;
        }
        match self.target {
            None => {
                for (id, _, _) in group.drain(..) {
                    self.numbers.insert(id, id.0);
                }
            }
            Some(target) => {
                let piece = |(_, owner, content): &'_ (ChunkId, Owner, Bytes)| (*owner, content.len());
                let pieces: Vec<Piece<'_>> = group
                    .iter()
                    .map(|waiting| Piece {
                        content: &waiting.2,
                        compression,
                        trial: Trial::Untried,
                        dedup: Dedup::On,
                        placement: Placement::Landing(Flow::Sequential),
                        owner: piece(waiting).0,
                        privileged: false,
                    })
                    .collect();
                let written = target.write_chunks(&pieces)?;
                drop(pieces);
                for ((id, _, _), written) in group.drain(..).zip(written) {
                    self.numbers.insert(id, written.id.0);
                    batch.hold(written);
                }
            }
        }
        (self.progress)("copy", self.bytes, self.total_bytes.max(self.bytes));
        Ok(())
    }

    /// The record with the new numbers of its chunks, whose references go into `batch`; and how many blocks are lost.
    pub(super) fn renumber(&self, record: &RegionRecord, batch: &mut Batch) -> (RegionRecord, u64) {
        let (mut new, mut lost) = (RegionRecord::new(), 0);
        for run in record.runs() {
            match self.numbers.get(&run.chunk) {
                Some(number) if *number != 0 => {
                    new.overwrite(run.block, run.count, ChunkId(*number), run.index);
                }
                _ => lost += u64::from(run.count),
            }
        }
        for run in new.runs() {
            batch.reference(run.chunk, i64::from(run.count));
        }
        (new, lost)
    }

    /// Commits a batch to the new pool and does the background work that is due.
    pub(super) fn commit(&mut self, batch: Batch) -> Result<(), EngineError> {
        let Some(target) = self.target else { return Ok(()) };
        if batch.is_empty() {
            return Ok(());
        }
        target.commit(batch)?;
        for _ in 0..STEPS {
            if target.step()? == Step::Idle {
                break;
            }
        }
        Ok(())
    }

    /// Makes everything durable and says that all is done.
    pub(super) fn finish(&mut self) -> Result<(), EngineError> {
        if let Some(target) = self.target {
            target.flush(target.newest())?;
        }
        let total = self.total_bytes.max(self.bytes);
        (self.progress)("copy", total, total);
        Ok(())
    }
}
