//! Chunks that are read into the memory of whoever asks for them: large reads, which use up at once what they fetch.
//!
//! Invariants: as in `reader.rs`: nothing counts as filled that was not compared with a sum in the chunk's record. Only first
//! copies are tried, once: whoever finds something not filled reads it by itself, and there other copies, chunks that moved and
//! damage are seen to. Of a chunk in blocks nothing is compared or copied but the blocks that are wanted, however many pieces
//! of it those are; a compressed one is unpacked once for all of them.

use std::ops::Range;

use terrace_store::{BLOCK_BYTES, ChunkFill, ChunkId};
use terrace_sync::{Mutex, rank};

use super::{reader::ChunkReader, spans::Stored, verification::blocks_of};
use crate::encoding::{ChunkRecord, compression};

/// What is read at once: a piece of a chunk, or all of one that is not in blocks.
struct Wanted<'a> {
    record: &'a ChunkRecord,
    /// Which of the pieces, in order of chunks and offsets.
    pieces: Range<usize>,
    /// What is compared, of the content: whole blocks.
    blocks: Range<usize>,
}

/// Where a piece goes.
struct Piece<'a> {
    /// Of the content, up to the chunk's end.
    part: Range<usize>,
    target: &'a mut [u8],
    is_filled: bool,
}

impl ChunkReader {
    pub(crate) fn read_into(&self, fills: &mut [ChunkFill<'_>]) {
        let mut order: Vec<&mut ChunkFill<'_>> = fills.iter_mut().collect();
        order.sort_unstable_by_key(|fill| (fill.id, fill.offset));
        let mut ids: Vec<ChunkId> = order.iter().map(|fill| fill.id).collect();
        ids.dedup();
        let records = self.catalog.records_to_read(&ids);

        let mut wanted: Vec<Wanted<'_>> = Vec::with_capacity(order.len());
        let mut stored: Vec<Stored> = Vec::with_capacity(order.len());
        let mut pieces: Vec<Mutex<Piece<'_>, rank::Leaf>> = Vec::with_capacity(order.len());
        let of_chunks = order.chunk_by_mut(|one, other| one.id == other.id);
        for (of_chunk, record) in of_chunks.zip(&records) {
            let first = pieces.len();
            let length = record.as_ref().map_or(0, |record| record.length as usize);
            for fill in of_chunk.iter_mut() {
                let start = fill.offset.min(length);
                let end = fill.offset.saturating_add(fill.target.len()).min(length);
                pieces.push(Mutex::new(Piece {
                    part: start..end,
                    target: &mut *fill.target,
                    is_filled: false,
                }));
            }
            let Some(record) = record else { continue };
            let Some(location) = record.locations.first() else {
                continue;
            };
            let parts = pieces[first..]
                .iter_mut()
                .map(|piece| piece.get_mut().part.clone());
            if record.is_in_blocks() {
                for (at, part) in parts.enumerate().filter(|(_, part)| !part.is_empty()) {
                    let blocks = blocks_of(record, &part);
                    stored.push(Stored::payload(*location, blocks.clone()));
                    wanted.push(Wanted {
                        record,
                        pieces: first + at..first + at + 1,
                        blocks,
                    });
                }
            } else {
                let all = parts.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end));
                stored.push(Stored::payload(*location, 0..record.payload as usize));
                wanted.push(Wanted {
                    record,
                    pieces: first..pieces.len(),
                    blocks: blocks_of(record, &all.unwrap_or_default()),
                });
            }
        }
        self.read_spans(&stored, &|number, stored| {
            let Wanted { pieces: of, .. } = &wanted[number];
            wanted[number].copy_to(stored, &pieces[of.clone()]);
        });
        let filled: Vec<Option<usize>> = pieces
            .into_iter()
            .map(|piece| {
                let piece = piece.into_inner();
                piece.is_filled.then_some(piece.part.len())
            })
            .collect();
        for (fill, filled) in order.into_iter().zip(filled) {
            fill.filled = filled;
        }
    }
}

impl Wanted<'_> {
    /// Gives each piece its part of the content, if that is what the record says. `stored`: the blocks, or the payload of a
    /// chunk that is not in blocks.
    fn copy_to(&self, stored: &[u8], pieces: &[Mutex<Piece<'_>, rank::Leaf>]) {
        let record = self.record;
        if record.is_in_blocks() {
            for piece in pieces {
                self.copy_compared(stored, self.blocks.start, &mut piece.lock());
            }
        } else {
            let (length, end) = (record.length as usize, self.blocks.end);
            compression::with_beginning(stored, record.compression, length, end, |content| {
                for piece in pieces {
                    self.copy_compared(content, 0, &mut piece.lock());
                }
                Some(())
            });
        }
    }

    /// Copies a piece out of content that begins at `start` of the chunk, block by block, each compared while it is near.
    fn copy_compared(&self, content: &[u8], start: usize, piece: &mut Piece<'_>) {
        let Piece {
            part,
            target,
            is_filled,
        } = piece;
        let blocks = blocks_of(self.record, part);
        let mut at = blocks.start;
        while at < blocks.end {
            let end = (at + BLOCK_BYTES).min(blocks.end);
            let Some(block) = content.get(at - start..end - start) else {
                return;
            };
            if self.record.sums.get(at / BLOCK_BYTES) != Some(&crc32c::crc32c(block)) {
                return;
            }
            let (from, to) = (at.max(part.start), end.min(part.end));
            target[from - part.start..to - part.start].copy_from_slice(&block[from - at..to - at]);
            at = end;
        }
        *is_filled = true;
    }
}
