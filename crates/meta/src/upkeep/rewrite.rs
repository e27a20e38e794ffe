//! Rewriting: tables written anew elsewhere, as they are – to empty a device or a half-empty segment, or to replace a
//! damaged copy.
//!
//! Invariants: only bytes that match their sums are written; the tree is the same before and after, whatever fails in
//! between; no step runs meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};

use crate::{
    Extent, MetaError, PREFACE_BYTES,
    runs::{Layer, Run, Version},
    table::{Table, TableFacts},
    tree::Tree,
};

/// Bytes read at once.
const WINDOW_BYTES: u32 = 256 << 10;

impl Tree {
    /// Writes the tables that lie in `extents` anew, reading each block from any copy that is sound; the old extents
    /// come back through [`Tree::take_released`]. Extents of no table are passed over (those of a manifest are written
    /// anew by each manifest). Returns the bytes written. A table
    /// damaged in all copies stays where it is and gives an error after the others were done; a failed write ends the
    /// call.
    pub fn rewrite(&self, extents: &[Extent]) -> Result<u64, MetaError> {
        let wanted: BTreeSet<Extent> = extents.iter().copied().collect();
        let mut worker = self.worker.lock();
        let state = self.current();
        let mut fresh: BTreeMap<u64, Arc<Table>> = BTreeMap::new();
        let mut replaced = Vec::new();
        let mut outcome = Ok(());
        let mut bytes = 0;
        let tables = state.version.tables().chain(worker.on_the_way());
        for table in tables.filter(|table| wanted.contains(&table.facts.extent)) {
            let mut content = match self.sound_content(table) {
                Ok(content) => content,
                Err(cause) => {
                    outcome = outcome.and(Err(cause));
                    continue;
                }
            };
            let mut facts = TableFacts {
                number: self.next_table.fetch_add(1, Ordering::SeqCst),
                ..table.facts.clone()
            };
            content[..PREFACE_BYTES].copy_from_slice(&facts.preface(self.options.identity).encode());
            match self.write_content(&content) {
                Ok(extent) => {
                    facts.extent = extent;
                    fresh.insert(table.facts.number, Table::new(facts, self.released.clone()));
                    replaced.push(table.clone());
                    bytes += u64::from(extent.bytes);
                }
                Err(cause) => {
                    outcome = outcome.and(Err(cause));
                    break;
                }
            }
        }
        if !fresh.is_empty() {
            self.install(|state| {
                let mut version = Version::clone(&state.version);
                version.replace_tables(&fresh);
                state.version = Arc::new(version);
            });
            for table in worker.on_the_way_mut() {
                if let Some(anew) = fresh.get(&table.facts.number) {
                    *table = anew.clone();
                }
            }
        }
        for table in replaced {
            table.replace();
            self.reader.forget(&table);
        }
        outcome.map(|()| bytes)
    }

    /// All of a table, each part from a copy that matches its sum.
    pub(crate) fn sound_content(&self, table: &Table) -> Result<Vec<u8>, MetaError> {
        let facts = &table.facts;
        let head = self.reader.head(table, false)?;
        let mut content = Vec::with_capacity(facts.extent.bytes as usize);
        content.extend_from_slice(&facts.preface(self.options.identity).encode());
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
}

impl Version {
    /// Puts other tables in the place of those with the given numbers.
    fn replace_tables(&mut self, fresh: &BTreeMap<u64, Arc<Table>>) {
        let replace = |run: &mut Run| {
            if run
                .tables
                .iter()
                .any(|table| fresh.contains_key(&table.facts.number))
            {
                let tables = run
                    .tables
                    .iter()
                    .map(|table| fresh.get(&table.facts.number).unwrap_or(table).clone());
                *run = Run::new(tables.collect());
            }
        };
        for layer in &mut self.layers {
            match layer {
                Layer::Settled(run) => replace(run),
                Layer::Merging(merge) => merge
                    .inputs
                    .iter_mut()
                    .chain([&mut merge.output])
                    .for_each(replace),
            }
        }
    }
}
