//! `Stretch`: look-ups of ascending keys in one run, as many as are read for at once.
//!
//! First the heads of the tables that the keys lie in, then the blocks that may hold them: of each what is not in the cache
//! is read in one call, so that a device has it all under way together, and blocks that lie side by side in one piece.
//! Invariants: nothing is used that does not match its sum, and what does not, or did not come, is read again by itself, from
//! any copy, before it is an error; at most [`HELD_BYTES`] of heads and as much of blocks are held at a time (or one, if
//! it is larger), and at most three times as much is read for them; the answers are those of one look-up after the other.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use super::{run::Run, wanted::Wanted};
use crate::{
    ExtentRead, MetaError,
    table::{Head, Table, TableReader, find_in},
};

/// Heads held by a stretch at most, and blocks, bytes.
const HELD_BYTES: u64 = 1 << 20;
/// Bytes between two blocks that are rather read than left out.
const GAP_BYTES: u32 = 8 << 10;
/// Bytes of one read at most, unless a block is longer.
const WINDOW_BYTES: u32 = 256 << 10;

/// A table that keys lie in.
struct Opened<'a> {
    table: &'a Arc<Table>,
    head: Arc<Head>,
    /// Those of its blocks that may hold keys, ascending.
    blocks: Vec<Block>,
}

struct Block {
    index: usize,
    /// Its bytes; none before it is read.
    bytes: Option<Bytes>,
}

/// A key and the block that may hold it.
struct Spot {
    /// The number of the key.
    key: usize,
    /// The numbers of its table and its block among those that are held.
    table: usize,
    block: usize,
}

/// See the module.
pub(crate) struct Stretch<'a> {
    opened: Vec<Opened<'a>>,
    spots: Vec<Spot>,
    keys: usize,
}

impl<'a> Stretch<'a> {
    /// Reads what those of `wanted` need that are `there`, from the first on, as many as one stretch holds.
    pub(crate) fn read(
        reader: &TableReader,
        run: &'a Run,
        wanted: &[Wanted<'_>],
        there: impl Fn(&[u8]) -> bool,
    ) -> Result<Self, MetaError> {
        let lying = Lying::in_run(run, wanted, there);
        let mut keys = lying.covered;
        let mut opened = open(reader, &lying.tables)?;
        let mut spots: Vec<Spot> = Vec::with_capacity(lying.keys.len());
        let mut held_bytes = 0;
        for (key, table) in lying.keys {
            let one = &wanted[key];
            let Opened {
                table: of,
                head,
                blocks,
            } = &mut opened[table];
            if !head.may_contain(one.hash) {
                continue;
            }
            // The block of the key before holds this one too, if it ends behind it: blocks before it end below that key.
            let here = blocks.last().filter(|last| head.last_key(last.index) >= one.key);
            let index = here.map_or_else(|| head.seek(one.key), |last| last.index);
            if index == head.blocks() {
                continue;
            }
            if blocks.last().is_none_or(|last| last.index != index) {
                held_bytes += head.block_range(index).len() as u64;
                if held_bytes > HELD_BYTES && !spots.is_empty() {
                    keys = key;
                    break;
                }
                let bytes = reader.cached_block(of, head, index);
                blocks.push(Block { index, bytes });
            }
            let block = blocks.len() - 1;
            spots.push(Spot { key, table, block });
        }
        read_blocks(reader, &mut opened)?;
        Ok(Self { opened, spots, keys })
    }

    /// How many of the keys it covers; at least one.
    pub(crate) fn keys(&self) -> usize {
        self.keys
    }

    /// Answers the keys that it covers, the first of `wanted`.
    pub(crate) fn answer(&self, wanted: &mut [Wanted<'_>]) -> Result<(), MetaError> {
        for Spot { key, table, block } in &self.spots {
            let Opened { table, head, blocks } = &self.opened[*table];
            let Block { index, bytes } = &blocks[*block];
            let one = &mut wanted[*key];
            if let Some(bytes) = bytes
                && let Some(older) = find_in(table, head, *index, bytes, one.key)?
            {
                one.put_under(older);
            }
        }
        Ok(())
    }
}

/// Where keys lie in a run, as many as one stretch holds the heads of the tables for.
struct Lying<'a> {
    tables: Vec<&'a Arc<Table>>,
    /// Which key lies in which of the tables.
    keys: Vec<(usize, usize)>,
    /// How many keys were looked at.
    covered: usize,
}

impl<'a> Lying<'a> {
    fn in_run(run: &'a Run, wanted: &[Wanted<'_>], there: impl Fn(&[u8]) -> bool) -> Self {
        let mut lying = Self {
            tables: Vec::new(),
            keys: Vec::with_capacity(wanted.len()),
            covered: wanted.len(),
        };
        let (mut at, mut newest, mut held_bytes) = (0, None, 0);
        for (key, one) in wanted.iter().enumerate().filter(|(_, one)| there(one.key)) {
            // Most keys lie in the table of the one before.
            let ends_before = |table: &Arc<Table>| &*table.facts.last < one.key;
            if run.tables.get(at).is_some_and(ends_before) {
                at += run.tables[at..].partition_point(ends_before);
            }
            let Some(table) = run.tables.get(at) else { break };
            if &*table.facts.first > one.key {
                continue;
            }
            if newest != Some(at) {
                held_bytes += u64::from(table.head_place().length);
                if held_bytes > HELD_BYTES && newest.is_some() {
                    lying.covered = key;
                    break;
                }
                lying.tables.push(table);
                newest = Some(at);
            }
            lying.keys.push((key, lying.tables.len() - 1));
        }
        lying
    }
}

/// The heads of these tables; those that are not in the cache are read at once.
fn open<'a>(reader: &TableReader, tables: &[&'a Arc<Table>]) -> Result<Vec<Opened<'a>>, MetaError> {
    let cached: Vec<Option<Arc<Head>>> = tables.iter().map(|table| reader.cached_head(table)).collect();
    let missing = tables.iter().zip(&cached).filter(|(_, head)| head.is_none());
    let reads: Vec<ExtentRead> = missing.map(|(table, _)| table.head_place()).collect();
    let mut read = reader.read_many(&reads).into_iter();
    let mut opened = Vec::with_capacity(tables.len());
    for (table, cached) in tables.iter().zip(cached) {
        let head = match cached {
            Some(head) => head,
            None => match read.next() {
                Some(first) => reader.head_after(first, table, true)?,
                None => reader.head(table, true)?,
            },
        };
        opened.push(Opened {
            table,
            head,
            blocks: Vec::new(),
        });
    }
    Ok(opened)
}

/// A read of neighbouring blocks of one table.
struct Window {
    table: usize,
    /// In the table's extent, bytes.
    range: Range<u32>,
    /// Those of the table's blocks held that it brings.
    blocks: Range<usize>,
}

impl Window {
    fn request(&self, opened: &[Opened<'_>]) -> ExtentRead {
        ExtentRead {
            extent: opened[self.table].table.facts.extent,
            offset: self.range.start,
            length: self.range.end - self.range.start,
        }
    }
}

/// Reads the blocks that were not in the cache, all at once.
fn read_blocks(reader: &TableReader, opened: &mut [Opened<'_>]) -> Result<(), MetaError> {
    let mut windows: Vec<Window> = Vec::new();
    for (number, Opened { head, blocks, .. }) in opened.iter().enumerate() {
        for (at, block) in blocks
            .iter()
            .enumerate()
            .filter(|(_, block)| block.bytes.is_none())
        {
            let range = head.block_range(block.index);
            match windows.last_mut() {
                Some(window)
                    if window.table == number
                        && range.start - window.range.end <= GAP_BYTES
                        && range.end - window.range.start <= WINDOW_BYTES =>
                {
                    window.range.end = range.end;
                    window.blocks.end = at + 1;
                }
                _ => windows.push(Window {
                    table: number,
                    range,
                    blocks: at..at + 1,
                }),
            }
        }
    }
    let reads: Vec<ExtentRead> = windows.iter().map(|window| window.request(opened)).collect();
    for (window, read) in windows.into_iter().zip(reader.read_many(&reads)) {
        let Opened { table, head, blocks } = &mut opened[window.table];
        for block in blocks[window.blocks]
            .iter_mut()
            .filter(|block| block.bytes.is_none())
        {
            let range = head.block_range(block.index);
            let part = |all: &Bytes| {
                let from = (range.start - window.range.start) as usize;
                let to = (range.end - window.range.start) as usize;
                // Of a read that came short nothing is used.
                if to <= all.len() {
                    all.slice(from..to)
                } else {
                    Bytes::new()
                }
            };
            let first = read.as_ref().map(part).map_err(Clone::clone);
            block.bytes = Some(reader.block_after(first, table, head, block.index)?);
        }
    }
    // What a storage gave no outcome for is read by itself.
    for Opened { table, head, blocks } in opened {
        for block in blocks.iter_mut().filter(|block| block.bytes.is_none()) {
            block.bytes = Some(reader.block(table, head, block.index)?);
        }
    }
    Ok(())
}
