//! Verifying without repairing: every copy of every chunk and of every table, on a pool that may be open read-only.
//!
//! Invariants: nothing is written and nothing is noted for repair; a table that cannot be read is reported, and the
//! walk goes on behind it.

use terrace_log::Scanner;
use terrace_store::StoreError;

use super::scrub::{RECORD_BYTES, Scrubber};
use crate::{
    ScrubCursor, VerifyProgress,
    encoding::{ChunkRecord, chunk_of_key},
    errors::pool_error,
    metadata::read_root,
};

impl Scrubber {
    /// Reads every copy of the log from where a replay starts; returns what a copy lacks, in words.
    pub(crate) fn verify_log(&self) -> Result<Vec<String>, StoreError> {
        let payload = self.pool.read_root().map_err(pool_error)?.unwrap_or_default();
        let root = read_root(&self.pool, &payload)?;
        let failed = |error: terrace_log::LogError| StoreError::DamagedMetadata(error.to_string().into());
        let mut scanner = Scanner::new(self.pool.clone(), root.position).map_err(failed)?;
        scanner.compare_copies();
        while scanner.next_payload().map_err(failed)?.is_some() {}
        Ok(scanner.lacking())
    }

    /// Reads every copy of every table; returns what is wrong first, in words. Meant for a store at rest.
    pub(crate) fn verify_tables(&self) -> Vec<String> {
        let mut cursor = ScrubCursor {
            chunks_done: true,
            ..ScrubCursor::default()
        };
        self.verify_step(&mut cursor, u64::MAX)
            .damaged_tables
            .into_lines()
    }

    /// Reads and verifies about `budget_bytes` of chunk copies, then of tables. Meant for a store at rest.
    pub(crate) fn verify_step(&self, cursor: &mut ScrubCursor, budget_bytes: u64) -> VerifyProgress {
        let mut progress = VerifyProgress::default();
        let mut spent = 0;
        while spent < budget_bytes && !cursor.finished {
            if !cursor.chunks_done {
                spent += self.verify_chunks(cursor, &mut progress).max(1);
                continue;
            }
            let budget = usize::try_from(budget_bytes - spent)
                .unwrap_or(usize::MAX)
                .min(8 << 20);
            match self.tree.verify_step(&mut cursor.tables, budget) {
                Ok(report) => {
                    spent += report.bytes.max(1);
                    cursor.done_bytes += report.bytes;
                    let lines = report.damaged.into_iter();
                    progress
                        .damaged_tables
                        .extend(lines.map(|(copy, error)| format!("copy {copy}: {error}")));
                    cursor.finished = report.done;
                }
                Err(error) => {
                    progress.damaged_tables.add(|| error.to_string());
                    cursor.finished = true;
                }
            }
        }
        let chunk_bytes = self.ledger.lock().live_bytes().max(0);
        let total = chunk_bytes.unsigned_abs() + self.tree.usage().bytes_on_device;
        progress.done_bytes = cursor.done_bytes;
        progress.total_bytes = total.max(cursor.done_bytes);
        progress.finished = cursor.finished;
        progress
    }

    fn verify_chunks(&self, cursor: &mut ScrubCursor, progress: &mut VerifyProgress) -> u64 {
        let records = match self.scan_records(cursor) {
            Ok(records) => records,
            Err(line) => {
                progress.damaged_tables.add(|| line);
                return RECORD_BYTES;
            }
        };
        let mut bytes = 0;
        for (key, value) in &records {
            let Some(id) = chunk_of_key(key) else { continue };
            cursor.next_chunk = id.0.saturating_add(1);
            let record = match ChunkRecord::decode(value) {
                Ok(record) => record,
                Err(error) => {
                    progress
                        .damaged_tables
                        .add(|| format!("record of chunk {id}: {error}"));
                    continue;
                }
            };
            progress.chunks += 1;
            let mut good = 0;
            let mut causes = Vec::new();
            for location in &record.locations {
                progress.copies += 1;
                bytes += u64::from(record.stored());
                match self.reader.read_copy(&record, *location) {
                    Ok(_) => good += 1,
                    Err(cause) => causes.push(cause),
                }
            }
            progress.damaged_copies += causes.len() as u64;
            if good == 0 {
                let cause = causes
                    .into_iter()
                    .next()
                    .unwrap_or_else(|| "it has no copy".into());
                progress.lost.push((id, cause));
            }
        }
        cursor.done_bytes += bytes;
        bytes + records.len() as u64 * RECORD_BYTES
    }
}
