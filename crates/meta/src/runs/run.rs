//! `Run`: tables that follow one another without overlap; and `RunCursor`, a position in one.
//!
//! Invariants: in a run each key occurs at most once; a cursor opens a table only when an entry of it is needed, so
//! that a table's first key (known from the manifest) can be compared without a read. How its tables' keys start lies
//! together, so that a look-up finds its table without touching the others.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    MetaError, Operation,
    entries::OperationRef,
    table::{BlockCursor, Head, Malformed, Table, TableReader, malformed},
};

/// Bytes read at once by a merge.
const MERGE_WINDOW_BYTES: u32 = 256 << 10;
/// Most bytes read ahead by a scan.
const SCAN_WINDOW_BYTES: u32 = 128 << 10;

/// Sorted tables, cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Run {
    pub(crate) tables: Arc<Vec<Arc<Table>>>,
    /// Of each table the [`start_of`] its first and its last key.
    starts: Arc<[(u128, u128)]>,
}

/// The first 16 bytes of a key as a number: where two differ, the keys are in the same order.
#[inline]
fn start_of(key: &[u8]) -> u128 {
    match key.first_chunk::<16>() {
        Some(start) => u128::from_be_bytes(*start),
        None => {
            let mut start = [0; 16];
            start[..key.len()].copy_from_slice(key);
            u128::from_be_bytes(start)
        }
    }
}

impl Run {
    pub(crate) fn new(tables: Vec<Arc<Table>>) -> Self {
        let starts = |table: &Arc<Table>| (start_of(&table.facts.first), start_of(&table.facts.last));
        Self {
            starts: tables.iter().map(starts).collect(),
            tables: Arc::new(tables),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tables
            .iter()
            .map(|table| u64::from(table.facts.extent.bytes))
            .sum()
    }

    /// The first table whose last key is not below `key`.
    pub(crate) fn seek(&self, key: &[u8]) -> usize {
        self.seek_start(key, start_of(key))
    }

    fn seek_start(&self, key: &[u8], start: u128) -> usize {
        let low = self.starts.partition_point(|(_, last)| *last < start);
        let alike = self.starts[low..].partition_point(|(_, last)| *last == start);
        low + self.tables[low..low + alike].partition_point(|table| &*table.facts.last < key)
    }

    /// Looks `key` up.
    pub(crate) fn get(
        &self,
        reader: &TableReader,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<Operation>, MetaError> {
        let start = start_of(key);
        let at = self.seek_start(key, start);
        match (self.starts.get(at), self.tables.get(at)) {
            (Some((first, _)), Some(table))
                if *first < start || (*first == start && &*table.facts.first <= key) =>
            {
                reader.get(table, key, hash)
            }
            _ => Ok(None),
        }
    }
}

/// How a cursor reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Through the cache, reading ahead gently.
    Scan,
    /// In large pieces past the cache.
    Merge,
}

struct Opened {
    head: Arc<Head>,
    /// The block the cursor is in.
    block: usize,
    cursor: BlockCursor,
    /// Blocks after it that were read with it.
    ahead: std::vec::IntoIter<Bytes>,
}

/// A position in a run; ends at a bound.
pub(crate) struct RunCursor<'a> {
    reader: &'a TableReader,
    run: Run,
    access: Access,
    /// Exclusive; empty: none.
    to: Vec<u8>,
    table: usize,
    opened: Option<Opened>,
    window_bytes: u32,
}

impl<'a> RunCursor<'a> {
    /// Stands at the first entry that is not below `from` (after it, if `exclusive`).
    pub(crate) fn new(
        reader: &'a TableReader,
        run: Run,
        access: Access,
        from: &[u8],
        exclusive: bool,
        to: &[u8],
    ) -> Result<Self, MetaError> {
        let table = run.seek(from);
        let window_bytes = if access == Access::Merge {
            MERGE_WINDOW_BYTES
        } else {
            0
        };
        let mut cursor = Self {
            reader,
            run,
            access,
            to: to.to_vec(),
            table,
            opened: None,
            window_bytes,
        };
        if cursor.is_past_end(from) {
            cursor.table = cursor.run.tables.len();
        }
        if let Some(table) = cursor.table()
            && &*table.facts.first < from
            && !cursor.is_past_end(&table.facts.first)
        {
            cursor.open(from)?;
        }
        if exclusive && cursor.key() == Some(from) {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    fn table(&self) -> Option<&Arc<Table>> {
        self.run.tables.get(self.table)
    }

    fn is_past_end(&self, key: &[u8]) -> bool {
        !self.to.is_empty() && key >= self.to.as_slice()
    }

    /// The current key; `None` at the end.
    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        let key = match &self.opened {
            Some(opened) => opened.cursor.key(),
            None => &self.run.tables.get(self.table)?.facts.first,
        };
        (!self.is_past_end(key)).then_some(key)
    }

    /// The table whose first entry the cursor stands at, unopened.
    pub(crate) fn unopened_table(&self) -> Option<&Arc<Table>> {
        if self.opened.is_some() { None } else { self.table() }
    }

    /// Passes over the table that [`RunCursor::unopened_table`] gave.
    pub(crate) fn skip_table(&mut self) {
        self.table += 1;
        self.opened = None;
    }

    /// Reads the current entry if it was not yet; to be called before [`RunCursor::operation`].
    #[inline]
    pub(crate) fn load(&mut self) -> Result<(), MetaError> {
        if self.opened.is_some() {
            return Ok(());
        }
        let Some(table) = self.run.tables.get(self.table).cloned() else {
            return Ok(());
        };
        self.open(&table.facts.first)?;
        match &self.opened {
            Some(opened) if opened.cursor.key() == &*table.facts.first => Ok(()),
            _ => Err(malformed(&table, 0, "the first key is not the manifest's")),
        }
    }

    /// The operation of the current entry, once loaded.
    #[inline]
    pub(crate) fn operation(&self) -> OperationRef<'_> {
        match &self.opened {
            Some(opened) => opened.cursor.operation(),
            None => OperationRef::Delete,
        }
    }

    /// Opens the current table at the first entry not below `target`, which must be within the table.
    fn open(&mut self, target: &[u8]) -> Result<(), MetaError> {
        let Some(table) = self.run.tables.get(self.table).cloned() else {
            return Ok(());
        };
        let head = self.reader.head(&table, self.access == Access::Scan)?;
        let block = head.seek(target);
        if block == head.blocks() {
            return Err(malformed(
                &table,
                table.facts.head_offset,
                "the index ends before the last key",
            ));
        }
        let mut ahead = Vec::new().into_iter();
        let bytes = self.fetch(&table, &head, block, &mut ahead)?;
        let mut cursor = BlockCursor::new(bytes).map_err(|Malformed| malformed(&table, 0, "not a block"))?;
        if !cursor
            .seek(target)
            .map_err(|Malformed| malformed(&table, 0, "not a block"))?
        {
            return Err(malformed(&table, 0, "a block ends before its last key"));
        }
        self.opened = Some(Opened {
            head,
            block,
            cursor,
            ahead,
        });
        Ok(())
    }

    fn fetch(
        &mut self,
        table: &Table,
        head: &Head,
        block: usize,
        ahead: &mut std::vec::IntoIter<Bytes>,
    ) -> Result<Bytes, MetaError> {
        if let Some(bytes) = ahead.next() {
            return Ok(bytes);
        }
        if self.access == Access::Scan
            && let Some(bytes) = self.reader.cached_block(table, head, block)
        {
            return Ok(bytes);
        }
        let mut found = Vec::new();
        self.reader.blocks(
            table,
            head,
            block,
            self.window_bytes,
            self.access == Access::Scan,
            &mut found,
        )?;
        if self.access == Access::Scan {
            // A scan that goes on reads twice as much the next time.
            self.window_bytes = (self.window_bytes * 2).clamp(16 << 10, SCAN_WINDOW_BYTES);
        }
        *ahead = found.into_iter();
        ahead
            .next()
            .ok_or_else(|| malformed(table, 0, "a read gave no block"))
    }

    /// Goes to the next entry. Only after [`RunCursor::load`].
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<(), MetaError> {
        let Some(opened) = &mut self.opened else {
            self.load()?;
            return if self.opened.is_some() {
                self.advance()
            } else {
                Ok(())
            };
        };
        match opened.cursor.advance() {
            Ok(true) => Ok(()),
            Ok(false) => self.next_block(),
            Err(Malformed) => match self.table() {
                Some(table) => Err(malformed(table, 0, "not a block")),
                None => Ok(()),
            },
        }
    }

    fn next_block(&mut self) -> Result<(), MetaError> {
        let Some(mut opened) = self.opened.take() else {
            return Ok(());
        };
        let Some(table) = self.run.tables.get(self.table).cloned() else {
            return Ok(());
        };
        let last = opened.head.last_key(opened.block);
        if opened.cursor.key() != last {
            return Err(malformed(&table, 0, "a block does not end with its last key"));
        }
        let at_end = self.is_past_end(last) || (!self.to.is_empty() && is_successor(last, &self.to));
        opened.block += 1;
        if opened.block == opened.head.blocks() || at_end {
            // Past the bound the next table's first key is past it too.
            self.table = if at_end {
                self.run.tables.len()
            } else {
                self.table + 1
            };
            return Ok(());
        }
        let bytes = self.fetch(&table, &opened.head, opened.block, &mut opened.ahead)?;
        let broken = |Malformed| malformed(&table, 0, "not a block");
        let mut cursor = BlockCursor::new(bytes).map_err(broken)?;
        if !cursor.advance().map_err(broken)? || cursor.key() <= opened.head.last_key(opened.block - 1) {
            return Err(malformed(&table, 0, "blocks overlap"));
        }
        opened.cursor = cursor;
        self.opened = Some(opened);
        Ok(())
    }
}

/// Whether `next` is the first key after `key`.
fn is_successor(key: &[u8], next: &[u8]) -> bool {
    next.len() == key.len() + 1 && next.ends_with(&[0]) && next.starts_with(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Extent;
    use crate::table::TableFacts;

    fn table(first: &[u8], last: &[u8]) -> Arc<Table> {
        let facts = TableFacts {
            number: 1,
            extent: Extent {
                location: 0,
                bytes: 1,
            },
            head_offset: 0,
            head_sum: 0,
            entries: 2,
            unsettled: 0,
            above: 0,
            up_to: 1,
            first: first.into(),
            last: last.into(),
        };
        Table::new(facts, Arc::default())
    }

    #[test]
    fn a_key_is_sought_in_the_first_table_that_does_not_end_before_it() {
        let mut keys: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0, 0], vec![255; 16], vec![255; 17]];
        for length in [1, 2, 15, 16, 17, 18, 40] {
            for at in [0, length / 2, length - 1] {
                for byte in [0, 1, 8, 255] {
                    let mut key = vec![7; length];
                    key[at] = byte;
                    keys.push(key);
                }
            }
        }
        keys.sort();
        keys.dedup();
        let of = |some: &[Vec<u8>]| {
            Run::new(
                some.chunks_exact(2)
                    .map(|pair| table(&pair[0], &pair[1]))
                    .collect(),
            )
        };
        for run in [of(&keys), of(&keys[1..]), of(&keys[5..9]), of(&[])] {
            for key in &keys {
                let named = run
                    .tables
                    .partition_point(|table| &*table.facts.last < key.as_slice());
                assert_eq!(run.seek(key), named, "{key:?}");
            }
        }
    }
}
