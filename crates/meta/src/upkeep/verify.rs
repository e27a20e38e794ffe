//! Verification: reads every block of every copy of every table, a bounded piece at a time.

use std::sync::Arc;

use super::steps::Upkeep;
use crate::{MetaError, table::Table};

/// Copies of an extent at most: a bound for a storage that never says `None`.
const COPIES_MAX: u32 = 16;

/// Where a verification of a tree stands. Start from the default; pass the same one to each step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VerifyCursor {
    /// The table to go on with (tables are numbered in the order of writing).
    pub next: u64,
    /// Tables from this number on were written after the start and are left out; 0: not yet started.
    pub end: u64,
}

/// What one step of a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Bytes read and compared with their sums.
    pub bytes: u64,
    /// Damage found: the copy (from 0) and what is wrong.
    pub damaged: Vec<(u32, MetaError)>,
    /// Whether every table was seen.
    pub done: bool,
}

impl Upkeep {
    /// The tables of which something cannot be read from any copy, each with its first and last key; none when the
    /// state is whole. Reads all tables.
    pub fn unreadable(&self) -> Vec<(Vec<u8>, Vec<u8>, MetaError)> {
        let state = self.current.now();
        let unreadable = |table: &Arc<Table>| {
            let cause = self.store.sound_content(table).err()?;
            Some((table.facts.first.to_vec(), table.facts.last.to_vec(), cause))
        };
        state.version.tables().filter_map(unreadable).collect()
    }

    /// Verifies tables in the order of writing, every copy of each, until about `budget_bytes` were read. With the
    /// first step goes the manifest's own extents.
    pub fn verify_step(
        &self,
        cursor: &mut VerifyCursor,
        budget_bytes: usize,
    ) -> Result<VerifyReport, MetaError> {
        let mut report = VerifyReport::default();
        if cursor.end == 0 {
            *cursor = VerifyCursor {
                next: 0,
                end: self.store.next_number(),
            };
            self.verify_manifest(&mut report);
        }
        // Holding the state keeps the extents of replaced tables from being released meanwhile.
        let state = self.current.now();
        let wanted = |table: &&Arc<Table>| (cursor.next..cursor.end).contains(&table.facts.number);
        let mut tables: Vec<&Arc<Table>> = state.version.tables().filter(wanted).collect();
        tables.sort_unstable_by_key(|table| table.facts.number);
        for table in tables {
            if report.bytes >= budget_bytes as u64 {
                return Ok(report);
            }
            for copy in 0..COPIES_MAX {
                let Some(outcome) = self.store.reader.verify_copy(table, copy) else {
                    break;
                };
                report.bytes += u64::from(table.facts.extent.bytes);
                match outcome {
                    Ok(()) => self.store.reader.unreadable().forget_all_of(table.facts.extent),
                    Err(cause) => report.damaged.push((copy, cause)),
                }
            }
            cursor.next = table.facts.number + 1;
        }
        report.done = true;
        Ok(report)
    }

    /// Verifies every copy of the extents that hold the last manifest's body.
    fn verify_manifest(&self, report: &mut VerifyReport) {
        for piece in self.manifests.pieces() {
            for copy in 0..COPIES_MAX {
                let Some(outcome) = self.store.reader.verify_extent(piece.extent, piece.sum, copy) else {
                    break;
                };
                report.bytes += u64::from(piece.extent.bytes);
                // One that was replaced meanwhile may hold anything.
                if let Err(cause) = outcome
                    && self.manifests.pieces().contains(&piece)
                {
                    report.damaged.push((copy, cause));
                }
            }
        }
    }
}
