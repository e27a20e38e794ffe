//! `Slice`: a bounded piece of a merge: what it wrote, what it took over as it was, and how far it came.
//!
//! Invariants: a deletion is dropped only where nothing older can lie below; a table that no other input reaches into is taken
//! over as it is; a slice that failed changed nothing but what it wrote.

use std::sync::Arc;

use bytes::Bytes;

use super::table_store::TableStore;
use crate::{
    MetaError,
    entries::{OperationRef, Value},
    runs::{Access, Folded, Merge, MergeCursor, RunCursor, Source, Version},
    table::{Table, TableWriter},
};

/// See the module.
#[derive(Default)]
pub(super) struct Slice {
    /// In order of keys: tables written and tables taken over.
    outputs: Vec<Arc<Table>>,
    written: Vec<Arc<Table>>,
    /// Batches above the one and up to the other are in what is merged.
    sequences: (u64, u64),
    /// The last key consumed; `None`: the inputs are at their end.
    cursor: Option<Bytes>,
}

impl Slice {
    /// It failed: nothing refers to what it wrote.
    pub(super) fn give_up(&self) {
        self.written.iter().for_each(|table| table.replace());
    }

    /// Installs it in the merge at `index`; returns the tables that are not part of the version any more.
    pub(super) fn add_to(&self, version: &mut Version, index: usize) -> Vec<Arc<Table>> {
        let mut consumed = version.advance_merge(index, &self.outputs, self.cursor.as_ref());
        let is_kept = |table: &Arc<Table>| self.outputs.iter().any(|kept| Arc::ptr_eq(kept, table));
        consumed.retain(|table| !is_kept(table));
        consumed
    }

    /// Merges from the cursor on until the budget is spent.
    pub(super) fn merge_some(
        &mut self,
        store: &TableStore,
        merge: &Merge,
        bottom: bool,
        budget_bytes: usize,
    ) -> Result<(), MetaError> {
        let mut sources = Vec::with_capacity(merge.inputs.len());
        let from = merge.cursor.as_deref().unwrap_or_default();
        for run in &merge.inputs {
            let cursor = RunCursor::new(
                &store.reader,
                run.clone(),
                Access::Merge,
                from,
                merge.cursor.is_some(),
                &[],
            )?;
            sources.push(Source::Run(Box::new(cursor)));
        }
        let mut cursor = MergeCursor::new(sources);
        let target = store.table_bytes;
        let mut writer = store.new_writer();
        self.sequences = merge.sequences();
        let mut processed = 0;
        loop {
            if !cursor.find_least() {
                self.cut(store, &mut writer)?;
                self.cursor = None;
                return Ok(());
            }
            if (writer.is_empty() || writer.bytes() >= target / 4)
                && let Some(run) = cursor.lone_table()
                && let Some(table) = run.unopened_table().cloned()
                && (!bottom || table.facts.unsettled == 0)
                && table.facts.extent.bytes as usize >= target / 4
            {
                run.skip_table();
                self.cut(store, &mut writer)?;
                self.cursor = Some(Bytes::copy_from_slice(&table.facts.last));
                processed += 4096 + table.facts.extent.bytes as usize / 64;
                self.outputs.push(table);
                if processed >= budget_bytes {
                    return Ok(());
                }
                continue;
            }
            let inputs = cursor.least();
            let folded = cursor.take_least()?;
            let key = cursor.key();
            let value = match folded {
                Folded::Value => {
                    writer.add(key, OperationRef::Put(cursor.value()));
                    cursor.value().len()
                }
                Folded::Delete | Folded::Add(0) if bottom => 0,
                Folded::Add(sum) if bottom => {
                    writer.add(key, OperationRef::Put(&Value::of_count(sum)));
                    8
                }
                Folded::Delete => {
                    writer.add(key, OperationRef::Delete);
                    0
                }
                Folded::Add(sum) => {
                    writer.add(key, OperationRef::Add(sum));
                    8
                }
            };
            processed += inputs * (key.len() + value + 4);
            // A slice ends with a table, unless so much was dropped that none gets full.
            if writer.is_full() || processed >= 4 * budget_bytes + 2 * target {
                self.cut(store, &mut writer)?;
                if processed >= budget_bytes {
                    self.cursor = Some(Bytes::copy_from_slice(cursor.key()));
                    return Ok(());
                }
            }
        }
    }

    fn cut(&mut self, store: &TableStore, writer: &mut TableWriter) -> Result<(), MetaError> {
        if writer.is_empty() {
            return Ok(());
        }
        let table = store.write(writer, self.sequences)?;
        self.written.push(table.clone());
        self.outputs.push(table);
        Ok(())
    }
}
