//! Pending free: the bytes that the list of perhaps dead chunks is thought to give back, kept in memory by differences.
//!
//! Invariants: whatever the list held when the store was opened is counted before anything of it is reclaimed, so that the total is
//! never below nothing and is nothing when the list is empty; an opening counts no more than a few pages of it, the steps of
//! the background the rest.

use std::sync::atomic::Ordering;

use terrace_codec::Reader;
use terrace_store::{ChunkId, StoreError};

use crate::{
    encoding::{TABLE_CANDIDATES, candidate_key},
    errors::meta_error,
    store::ChunkStore,
};

/// Entries of the list counted at once.
const PAGE: usize = 4096;
/// Pages counted while the store is opened: mostly it is all.
const PAGES_AT_OPENING: usize = 4;

/// What an opening found on the list and is not counted yet: everything before `to`, from `from` on.
pub(crate) struct Inherited {
    from: Vec<u8>,
    to: Vec<u8>,
}

/// The bytes that an entry of the list says it may free.
pub(crate) fn estimate_of(value: &[u8]) -> i64 {
    Reader::new(value)
        .signed_varint("estimate")
        .map_or(0, |estimate| estimate.max(0))
}

impl ChunkStore {
    /// To be called by whoever opened the store, before the first step and the first commit.
    pub(crate) fn inherit_candidates(&self) {
        let newest = self.commit.lock().sequence;
        let mut inherited = Some(Inherited {
            from: vec![TABLE_CANDIDATES],
            to: candidate_key(newest + 1, ChunkId(0)).to_vec(),
        });
        for _ in 0..PAGES_AT_OPENING {
            match self.count_inherited(&mut inherited) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "what is to be freed could not be counted yet");
                    break;
                }
            }
        }
        self.maintenance.lock().reclaim.inherited = inherited;
    }

    /// Counts a page of what an opening found; `false` if all is counted.
    pub(crate) fn count_inherited(&self, inherited: &mut Option<Inherited>) -> Result<bool, StoreError> {
        let Some(Inherited { from, to }) = inherited else {
            return Ok(false);
        };
        let records = self.tree.scan(from, to, PAGE).map_err(meta_error)?;
        let sum = records
            .iter()
            .fold(0i64, |sum, (_, value)| sum.saturating_add(estimate_of(value)));
        self.pending_free.fetch_add(sum, Ordering::Relaxed);
        match records.last() {
            Some((last, _)) if records.len() == PAGE => {
                *from = last.to_vec();
                from.push(0);
            }
            _ => *inherited = None,
        }
        Ok(true)
    }
}
