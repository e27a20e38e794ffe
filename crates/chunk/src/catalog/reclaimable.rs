//! Pending free: the bytes that the list of perhaps dead chunks is thought to give back, kept in memory by differences.
//!
//! Invariants: whatever the list held when the store was opened is counted before anything of it is reclaimed, so that the total is
//! never below nothing and is nothing when the list is empty; an opening counts no more than a few pages of it, the steps of
//! the background the rest.

use terrace_codec::Reader;
use terrace_store::{ChunkId, StoreError};

use super::batches::Catalog;
use crate::{
    encoding::{TABLE_CANDIDATES, candidate_key},
    errors::meta_error,
};

/// Entries of the list counted at once.
const PAGE: usize = 4096;
/// Pages counted while the store is opened: mostly it is all.
pub(crate) const PAGES_AT_OPENING: usize = 4;

/// What an opening found on the list and is not counted yet: everything before `to`, from `from` on.
pub(crate) struct Inherited {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Inherited {
    /// What batches up to `newest` left.
    pub(crate) fn until(newest: u64) -> Self {
        Self {
            from: vec![TABLE_CANDIDATES],
            to: candidate_key(newest + 1, ChunkId(0)).to_vec(),
        }
    }
}

/// The bytes that an entry of the list says it may free.
pub(crate) fn estimate_of(value: &[u8]) -> i64 {
    Reader::new(value)
        .signed_varint("estimate")
        .map_or(0, |estimate| estimate.max(0))
}

impl Catalog {
    /// Counts a page of what an opening found; `false` if all is counted.
    pub(crate) fn count_inherited(&self, inherited: &mut Option<Inherited>) -> Result<bool, StoreError> {
        let Some(Inherited { from, to }) = inherited else {
            return Ok(false);
        };
        let records = self.tree.scan(from, to, PAGE).map_err(meta_error)?;
        let sum = records
            .iter()
            .fold(0i64, |sum, (_, value)| sum.saturating_add(estimate_of(value)));
        self.space.add_pending_free(sum);
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
