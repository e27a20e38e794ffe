//! Rewriting: tables written anew elsewhere, as they are – to empty a device or a half-empty segment, or to replace a
//! damaged copy.
//!
//! Invariants: only bytes that match their sums are written; the tree is the same before and after, whatever fails in
//! between; no step runs meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::steps::Upkeep;
use crate::{Extent, MetaError, table::Table};

impl Upkeep {
    /// Writes the tables that lie in `extents` anew, reading each block from any copy that is sound; the old extents
    /// come back through [`Self::take_released`]. Extents of no table are passed over (those of a manifest are written
    /// anew by each manifest). Returns the bytes written. A table
    /// damaged in all copies stays where it is and gives an error after the others were done; a failed write ends the
    /// call.
    pub fn rewrite(&self, extents: &[Extent]) -> Result<u64, MetaError> {
        let wanted: BTreeSet<Extent> = extents.iter().copied().collect();
        let mut worker = self.worker.lock();
        let state = self.current.now();
        let mut fresh: BTreeMap<u64, Arc<Table>> = BTreeMap::new();
        let mut replaced = Vec::new();
        let mut outcome = Ok(());
        let mut bytes = 0;
        let tables = state.version.tables().chain(worker.on_the_way());
        for table in tables.filter(|table| wanted.contains(&table.facts.extent)) {
            let content = match self.store.sound_content(table) {
                Ok(content) => content,
                Err(cause) => {
                    outcome = outcome.and(Err(cause));
                    continue;
                }
            };
            match self.store.write_again(table, content) {
                Ok(anew) => {
                    bytes += u64::from(anew.facts.extent.bytes);
                    fresh.insert(table.facts.number, anew);
                    replaced.push(table.clone());
                }
                Err(cause) => {
                    outcome = outcome.and(Err(cause));
                    break;
                }
            }
        }
        if !fresh.is_empty() {
            self.current
                .install(|state| Arc::make_mut(&mut state.version).replace_tables(&fresh));
            for table in worker.on_the_way_mut() {
                if let Some(anew) = fresh.get(&table.facts.number) {
                    *table = anew.clone();
                }
            }
        }
        replaced.iter().for_each(|table| self.store.retire(table));
        outcome.map(|()| bytes)
    }
}
