//! A pool that was opened although a part of its metadata lies only on devices that are not there.
//!
//! Invariants: the datasets of which something is there are named at the opening, by `status` and among the events, and cannot be
//! changed until the pool is opened again: one change of what cannot be looked up would keep all others from being committed. What
//! is to be read there is an error, never taken for empty.

use crate::{Engine, integrity::names_in_words};

/// Datasets that are named.
const NAMED_MAX: usize = 10;

impl Engine {
    /// Looks, when the pool was opened, for datasets of which metadata is out of reach, and keeps these from being changed.
    pub(crate) fn keep_what_is_out_of_reach(&mut self) {
        let keys = self.chunks.keys_out_of_reach();
        if keys.is_empty() {
            return;
        }
        self.kept_from_changes = self.datasets.keep_from_changes(&keys);
        let words = self.out_of_reach_in_words();
        self.event("lost", words.trim_start_matches("; "));
    }

    /// What is said of a degraded pool besides, if part of its metadata is gone with a device; empty else.
    pub(crate) fn out_of_reach_in_words(&self) -> String {
        let (pool, segments) = (self.pool.name(), self.chunks.metadata_out_of_reach());
        if segments == 0 {
            return String::new();
        }
        let named = &self.kept_from_changes;
        let concerned = match named.len() {
            0 => String::new(),
            count => format!(
                ": files of {} may not be found or be read, and can only be read until it is back",
                names_in_words(named, NAMED_MAX, count as u64)
            ),
        };
        format!(
            "; {segments} segments of metadata lay on it alone, since no other device had room{concerned}; bring it back, or save what is \
             left with 'terrace verify {pool} --rebuild NEWPOOL'"
        )
    }
}
