//! `Flush`: a sealed memtable on its way into tables, a bounded piece at a time.
//!
//! Invariant: what was written stays, also after a piece that failed; the next piece goes on behind it.

use std::{ops::Bound, sync::Arc};

use super::table_store::TableStore;
use crate::{
    MetaError,
    entries::{Key, Memtable, Operation, OperationRef, Value},
    runs::{Layer, Run, Version},
    table::Table,
};

/// See the module.
pub(super) struct Flush {
    memtable: Arc<Memtable>,
    tables: Vec<Arc<Table>>,
    /// The last key written.
    resume: Option<Key>,
}

impl Flush {
    pub(super) fn new(memtable: Arc<Memtable>) -> Self {
        Self {
            memtable,
            tables: Vec::new(),
            resume: None,
        }
    }

    pub(super) fn is_of(&self, memtable: &Arc<Memtable>) -> bool {
        Arc::ptr_eq(&self.memtable, memtable)
    }

    /// The tables written so far.
    pub(super) fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// The same, to put others in their place.
    pub(super) fn tables_mut(&mut self) -> &mut [Arc<Table>] {
        &mut self.tables
    }

    /// Puts the tables, which hold all of the memtable, in front of the others.
    pub(super) fn add_to(self, version: &mut Version) {
        if !self.tables.is_empty() {
            version.layers.insert(0, Layer::Settled(Run::new(self.tables)));
        }
        version.flushed_sequence = self.memtable.sequence();
    }

    /// Writes tables of a memtable until the budget is spent; true when all of it is written.
    pub(super) fn write_some(
        &mut self,
        store: &TableStore,
        version: &Version,
        budget_bytes: usize,
    ) -> Result<bool, MetaError> {
        let bottom = version.layers.is_empty();
        let sequences = (version.flushed_sequence, self.memtable.sequence());
        let mut writer = store.new_writer();
        let mut page: Vec<(Key, Operation)> = Vec::new();
        let mut at = self.resume.clone();
        let mut written = 0;
        loop {
            page.clear();
            let from = at
                .as_ref()
                .map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice()));
            let more = self.memtable.page(from, &[], u64::MAX, 512, &mut page);
            for (key, operation) in &page {
                let settled;
                match (bottom, operation) {
                    (true, Operation::Delete | Operation::Add(0)) => continue,
                    (true, Operation::Add(sum)) => {
                        settled = Value::of_count(*sum);
                        writer.add(key.as_slice(), OperationRef::Put(&settled));
                    }
                    (_, operation) => writer.add(key.as_slice(), OperationRef::from(operation)),
                }
                if writer.is_full() {
                    written += writer.bytes();
                    self.tables.push(store.write(&mut writer, sequences)?);
                    self.resume = Some(key.clone());
                    if written >= budget_bytes {
                        return Ok(false);
                    }
                }
            }
            if !more {
                break;
            }
            at = page.last().map(|(key, _)| key.clone());
        }
        if !writer.is_empty() {
            self.tables.push(store.write(&mut writer, sequences)?);
        }
        Ok(true)
    }
}
