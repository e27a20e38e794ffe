//! Verifying a pool that is not open: every copy of everything (labels, roots, log, tables, chunks), and whether all counts agree.
//!
//! Invariants: nothing is written to any device (the pool is open read-only, the log is replayed in memory); damage
//! never ends the walk, it is reported and the walk goes on with what can still be read. Memory stays within the pool's budget: what
//! is compared of objects and chunks is compared for as many at a time as fit, in several passes where there are more.

use std::{collections::BTreeSet, sync::Arc};

use serde::Serialize;
use terrace_cache::Budget;
use terrace_chunk::{ChunkStore, ScrubCursor};
use terrace_device::Device;
use terrace_pool::Pool;
use terrace_store::{ChunkId, Store};

use super::damaged_files::{DamageWalk, Damaged, DamagedFile};
use crate::{EngineError, floors::shares_of_store, pool_properties};

/// How much one step reads, bytes.
const STEP_BYTES: u64 = 8 << 20;
/// Of the memory budget, the part that what is known of objects or chunks takes at a time, and what it takes of each, bytes.
const WALKED_PART: u64 = 4;
const WALKED_BYTES: u64 = 64;
/// Records of one step of the search for names.
const STEP_RECORDS: usize = 4096;
/// Most lines of problems that are kept.
const PROBLEMS_MAX: usize = 1000;

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The pool.
    pub pool: String,
    /// Whether nothing is wrong.
    pub clean: bool,
    /// Bytes read and compared with their sums.
    pub bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// Copies of them.
    pub copies: u64,
    /// Copies that do not verify or cannot be read.
    pub damaged_copies: u64,
    /// Chunks without a good copy: what they hold is lost.
    pub lost_chunks: u64,
    /// Copies of labels, roots and log entries that are damaged or differ from the others.
    pub damaged_records: u64,
    /// Damaged copies of metadata.
    pub damaged_tables: u64,
    /// Counts, live bytes and segments that do not agree.
    pub wrong_counts: u64,
    /// Records of datasets that do not agree.
    pub wrong_records: u64,
    /// Files with lost content.
    pub files: Vec<DamagedFile>,
    /// Whether `files` names all of them.
    pub files_complete: bool,
    /// What was found, in words; at most 1000 lines.
    pub problems: Vec<String>,
    /// How many more there are.
    pub more_problems: u64,
}

impl VerifyReport {
    fn add(&mut self, lines: impl IntoIterator<Item = String>) -> u64 {
        let mut count = 0;
        for line in lines {
            count += 1;
            if self.problems.len() < PROBLEMS_MAX {
                self.problems.push(line);
            } else {
                self.more_problems += 1;
            }
        }
        count
    }

    /// The same where only some of `count` lines were kept.
    fn add_first(&mut self, lines: Vec<String>, count: u64) -> u64 {
        let more = count.saturating_sub(self.add(lines));
        self.more_problems += more;
        count
    }
}

/// Verifies the pool on these devices, which may be open for reading only. `progress` gets bytes done and in all.
///
/// # Errors
/// `Pool` and `Store` if labels, roots or log do not even let the pool be looked at.
pub fn verify(
    devices: Vec<Arc<dyn Device>>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport, EngineError> {
    let options = terrace_pool::OpenOptions {
        read_only: true,
        ..terrace_pool::OpenOptions::default()
    };
    let pool = Arc::new(Pool::open(devices, options)?);
    let memory = pool_properties::memory_bytes(&pool.property("memory").unwrap_or_default());
    let (memtable_bytes, block_cache_bytes) = shares_of_store(&Budget::new(memory));
    let chunks = ChunkStore::open(
        pool.clone(),
        terrace_chunk::Options {
            threads: 0,
            memtable_bytes,
            block_cache_bytes,
            ..Default::default()
        },
    )?;
    let at_once = usize::try_from(memory / WALKED_PART / WALKED_BYTES).unwrap_or(usize::MAX);
    let mut report = VerifyReport {
        pool: pool.name(),
        ..VerifyReport::default()
    };
    report.damaged_records += report.add(pool.check_copies().0);
    report.damaged_records += match chunks.verify_log() {
        Ok(lacking) => report.add(lacking),
        Err(error) => report.add([format!("the log cannot be compared: {error}")]),
    };
    let mut lost = BTreeSet::new();
    let mut cursor = ScrubCursor::default();
    loop {
        let step = chunks.verify_step(&mut cursor, STEP_BYTES);
        progress(step.done_bytes, step.total_bytes);
        report.bytes = step.done_bytes;
        report.chunks += step.chunks;
        report.copies += step.copies;
        report.damaged_copies += step.damaged_copies;
        report.lost_chunks += step.lost.len() as u64;
        let tables = step.damaged_tables.count();
        report.damaged_tables += report.add_first(step.damaged_tables.into_lines(), tables);
        lost.extend(step.lost.iter().map(|(id, _)| *id));
        report.add(
            step.lost
                .into_iter()
                .map(|(id, cause)| format!("chunk {id} has no good copy: {cause}")),
        );
        if step.finished {
            break;
        }
    }
    let store: Arc<dyn Store> = chunks.clone();
    let is_checked = match terrace_dataset::check_within(&store, at_once) {
        Ok(check) => {
            report.wrong_records += report.add_first(check.problems, check.problem_count);
            let bodies = check.lost_bodies.iter();
            report.wrong_records += report.add(
                bodies.map(|(dataset, body)| format!("body {body} of dataset {dataset} belongs to no file")),
            );
            true
        }
        Err(error) => {
            report.wrong_records += report.add([format!("the records of datasets cannot be read: {error}")]);
            false
        }
    };
    let references = |count: &mut dyn FnMut(ChunkId, i64)| terrace_dataset::count_references(&store, count);
    let audit = chunks.audit_within(is_checked.then_some(&references), at_once);
    report.wrong_counts += match audit {
        Ok(audit) => report.add_first(audit.discrepancies, audit.discrepancy_count),
        Err(error) => report.add([format!("the counts cannot be compared: {error}")]),
    };
    report.files_complete = true;
    if !lost.is_empty() {
        let mut walk = DamageWalk::new(&report.pool, Damaged::Chunks(lost));
        while walk.step(&*store, STEP_RECORDS) {}
        (report.files, report.files_complete) = walk.files(&*store);
    }
    report.clean = report.problems.is_empty() && report.damaged_copies == 0 && report.lost_chunks == 0;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_problems_are_kept_and_all_are_counted() {
        let mut report = VerifyReport::default();
        let lines = |count: usize| (0..count).map(|line| line.to_string()).collect::<Vec<_>>();
        assert_eq!(report.add(lines(600)), 600);
        assert_eq!((report.problems.len(), report.more_problems), (600, 0));
        // Of many only some came.
        assert_eq!(report.add_first(lines(300), 5000), 5000);
        assert_eq!((report.problems.len(), report.more_problems), (900, 4700));
        assert_eq!(report.add_first(lines(300), 300), 300);
        assert_eq!(
            (report.problems.len(), report.more_problems),
            (PROBLEMS_MAX, 4900)
        );
    }
}
