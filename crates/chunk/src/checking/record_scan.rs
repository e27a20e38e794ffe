//! The records of all chunks, some at a time: what a scrub and a verification walk along.
//!
//! Invariant: records that cannot be read from any copy do not end the walk: it goes on behind them, with what is known of where
//! the next ones are.

use bytes::Bytes;
use terrace_store::ChunkId;

use super::scrub::Scrubber;
use crate::{
    ScrubCursor,
    encoding::{TABLE_CHUNKS, chunk_key},
};

/// Records read at once.
const SCAN: usize = 64;

impl Scrubber {
    /// The next records, of which the caller moves the cursor on; none at the end, which it says then. Of those that cannot be
    /// read, which ones they are and why, in words, with the cursor behind them.
    pub(super) fn scan_records(&self, cursor: &mut ScrubCursor) -> Result<Vec<(Bytes, Bytes)>, String> {
        let from = cursor.next_chunk;
        let key = chunk_key(TABLE_CHUNKS, ChunkId(from));
        let records = match self.tree.scan(&key, &[TABLE_CHUNKS + 1], SCAN) {
            Ok(records) => records,
            Err(error) => match self.records_before_damage(&key) {
                Some(records) => records,
                None => {
                    let next = self.first_after_damage(from);
                    // Where there is none it is the end of the list: the rest of the walk is worth having all the same.
                    cursor.chunks_done = next.is_none();
                    cursor.next_chunk = next.unwrap_or_else(|| self.catalog.next_chunk_id().max(from + 1));
                    let last = cursor.next_chunk - 1;
                    return Err(format!(
                        "records of chunks {from} to {last}, which are not looked at: {error}"
                    ));
                }
            },
        };
        cursor.chunks_done = records.is_empty();
        Ok(records)
    }

    /// Fewer records, where those behind them cannot be read; `None` if it is so with the first.
    fn records_before_damage(&self, from: &[u8]) -> Option<Vec<(Bytes, Bytes)>> {
        let limits = [SCAN / 4, SCAN / 16, 1];
        limits
            .into_iter()
            .find_map(|limit| self.tree.scan(from, &[TABLE_CHUNKS + 1], limit).ok())
    }

    /// The first chunk above `damaged` from which on records can be read; `None` if nothing can be read any more.
    fn first_after_damage(&self, damaged: u64) -> Option<u64> {
        let end = self.catalog.next_chunk_id();
        let is_readable = |chunk: u64| {
            let from = chunk_key(TABLE_CHUNKS, ChunkId(chunk));
            self.tree.scan(&from, &[TABLE_CHUNKS + 1], 1).is_ok()
        };
        let (mut bad, mut step) = (damaged, 1);
        let mut good = loop {
            let next = bad.saturating_add(step).min(end);
            if next <= bad {
                return None;
            }
            if is_readable(next) {
                break next;
            }
            bad = next;
            step = u64::saturating_mul(step, 2);
        };
        while good - bad > 1 {
            let middle = bad + (good - bad) / 2;
            match is_readable(middle) {
                true => good = middle,
                false => bad = middle,
            }
        }
        Some(good)
    }
}
