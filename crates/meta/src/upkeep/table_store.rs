//! `TableStore`: tables are numbered, written, and given back when nothing refers to them any more.
//!
//! Invariants: no number is used twice; a table that was replaced is given back when the last reader lets go of it, and taken
//! by whoever makes the next manifest.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    Extent, ExtentError, MetaError, PREFACE_BYTES,
    table::{Released, Table, TableFacts, TableReader, TableWriter},
};

/// Bytes read at once.
const WINDOW_BYTES: u32 = 256 << 10;

/// See the module.
pub(super) struct TableStore {
    pub(super) reader: Arc<TableReader>,
    released: Arc<Released>,
    next_number: AtomicU64,
    /// Target size of a table.
    pub(super) table_bytes: usize,
}

impl TableStore {
    pub(super) fn new(
        reader: Arc<TableReader>,
        released: Arc<Released>,
        next_number: u64,
        table_bytes: usize,
    ) -> Self {
        Self {
            reader,
            released,
            next_number: AtomicU64::new(next_number),
            table_bytes,
        }
    }

    /// The number of the table that is written next.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number.load(Ordering::SeqCst)
    }

    fn take_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) fn new_writer(&self) -> TableWriter {
        TableWriter::new(self.table_bytes)
    }

    /// Writes what a writer holds as a table, and leaves an empty one.
    pub(super) fn write(
        &self,
        writer: &mut TableWriter,
        sequences: (u64, u64),
    ) -> Result<Arc<Table>, MetaError> {
        let full = mem::replace(writer, self.new_writer());
        let (content, mut facts) = full.finish(self.reader.identity(), self.take_number(), sequences);
        facts.extent = self.write_content(&content)?;
        Ok(Table::new(facts, self.released.clone()))
    }

    /// Writes the content of a table once more, as another table.
    pub(super) fn write_again(&self, table: &Table, mut content: Vec<u8>) -> Result<Arc<Table>, MetaError> {
        let mut facts = TableFacts {
            number: self.take_number(),
            ..table.facts.clone()
        };
        content[..PREFACE_BYTES].copy_from_slice(&facts.preface(self.reader.identity()).encode());
        facts.extent = self.write_content(&content)?;
        Ok(Table::new(facts, self.released.clone()))
    }

    /// Writes the content of a table into an extent.
    fn write_content(&self, content: &[u8]) -> Result<Extent, MetaError> {
        let failed = |cause| MetaError::Storage {
            action: "writing a metadata table".into(),
            cause,
        };
        let extent = self.reader.storage().write(content).map_err(failed)?;
        if extent.bytes as usize != content.len() {
            let cause = format!("{} bytes became {extent}", content.len());
            return Err(failed(ExtentError::Failed(cause)));
        }
        Ok(extent)
    }

    /// All of a table, each part from a copy that matches its sum.
    pub(super) fn sound_content(&self, table: &Table) -> Result<Vec<u8>, MetaError> {
        let facts = &table.facts;
        let head = self.reader.head(table, false)?;
        let mut content = Vec::with_capacity(facts.extent.bytes as usize);
        content.extend_from_slice(&facts.preface(self.reader.identity()).encode());
        let mut index = 0;
        while index < head.blocks() {
            let mut found = Vec::new();
            self.reader
                .blocks(table, &head, index, WINDOW_BYTES, false, &mut found)?;
            index += found.len();
            found.iter().for_each(|block| content.extend_from_slice(block));
        }
        let length = facts.extent.bytes - facts.head_offset;
        content.extend_from_slice(&self.reader.verified(
            facts.extent,
            facts.head_offset,
            length,
            facts.head_sum,
        )?);
        Ok(content)
    }

    /// The state does not refer to a table any more.
    pub(super) fn retire(&self, table: &Table) {
        table.replace();
        self.reader.forget(table);
    }

    /// Extents of retired tables that no reader uses, and that were not taken yet.
    pub(super) fn released(&self) -> Vec<Extent> {
        self.released.lock().clone()
    }

    pub(super) fn take_released(&self) -> Vec<Extent> {
        mem::take(&mut *self.released.lock())
    }
}
