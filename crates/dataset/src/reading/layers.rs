//! What RAM knows of a file's blocks before any record is asked: dirty pages, then frozen ones, then what was written ahead.
//!
//! Invariant: looked at under the object's state lock, so that no page is seen half written; nothing here waits.

use terrace_store::ChunkId;

use super::lookup::BLOCK;
use crate::objects::{Block, State};

/// Where the content of some blocks is.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Chunk { chunk: ChunkId, index: u32 },
    Below,
}

/// `count` blocks from `block` on that are not in RAM.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) block: u64,
    pub(crate) count: u64,
    pub(crate) source: Source,
}

pub(crate) enum Look {
    Ram,
    Void,
    Source(Source),
}

pub(crate) fn is_ahead(state: &State, chunk: ChunkId) -> bool {
    let layers = [Some(&state.data), state.frozen.as_deref()];
    layers
        .into_iter()
        .flatten()
        .any(|layer| layer.ahead().contains_key(&chunk))
}

pub(crate) fn look(state: &State, block: u64) -> Look {
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
pub(crate) fn copy_pages(state: &State, offset: u64, buffer: &mut [u8], wanted: &mut Vec<Wanted>) {
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
