//! `Tree`: the log-structured merge tree.
use crate::*;
use bytes::Bytes;
use std::sync::Arc;

/// An ordered map from byte keys to byte values.
pub struct Tree {}

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value, bytes.
pub const VALUE_BYTES_MAX: usize = 160 * 1024;

#[allow(unused_variables, clippy::todo)]
impl Tree {
    /// Opens the state that `manifest` describes (`None`: an empty tree). Reads no table.
    pub fn open(
        storage: Arc<dyn ExtentStorage>,
        manifest: Option<&[u8]>,
        options: Options,
    ) -> Result<Tree, MetaError> {
        todo!()
    }

    /// Applies a batch: readers see all of it or nothing. `sequence` must be above every earlier one; operations on
    /// the same key count in order. In memory only: the caller's log makes it durable. Values are kept as given, so
    /// do not pass slices of much larger buffers.
    pub fn apply(&self, sequence: u64, operations: Vec<(Bytes, Operation)>) -> Result<(), MetaError> {
        todo!()
    }

    /// The newest value of `key`; of a key changed by `Add`, the signed variable-length sum.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        todo!()
    }

    /// The count at `key`; 0 if there is none.
    pub fn get_count(&self, key: &[u8]) -> Result<i64, MetaError> {
        todo!()
    }

    /// The records with `from <= key < to` (an empty `to`: no upper bound), ascending, at most `limit`, as of one
    /// moment.
    pub fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, MetaError> {
        todo!()
    }

    /// Seals the memtable: what was applied so far will be written by the next steps. Returns the newest sequence
    /// applied; once [`Tree::flushed_sequence`] reaches it, a manifest holds it.
    pub fn seal(&self) -> u64 {
        todo!()
    }

    /// The newest sequence applied.
    pub fn newest_sequence(&self) -> u64 {
        todo!()
    }

    /// Everything up to this sequence is in tables, and in every manifest made from now on.
    pub fn flushed_sequence(&self) -> u64 {
        todo!()
    }

    /// Does one piece of background work that reads or writes about `budget_bytes`: writes part of the oldest sealed
    /// memtable, else a slice of a merge. An error leaves the tree as it was; the step can be tried again.
    pub fn step(&self, budget_bytes: usize) -> Result<Progress, MetaError> {
        todo!()
    }

    /// How far the steps are behind: 0 not at all, 1 writers should wait for steps (more than 1: they did not).
    pub fn pressure(&self) -> f64 {
        todo!()
    }

    /// Describes all tables and the sequence up to which they hold everything, in at most 48 KiB (what is larger goes
    /// into extents of its own). Syncs the storage: all that the manifest names is durable when this returns.
    pub fn manifest(&self) -> Result<Vec<u8>, MetaError> {
        todo!()
    }

    /// Extents that the manifest made last does not name and no reader uses. Call it when the root holding that
    /// manifest is durable, and release them in the storage then.
    pub fn take_released(&self) -> Vec<Extent> {
        todo!()
    }

    /// Verifies tables in the order of writing until about `budget_bytes` were read.
    pub fn verify_step(
        &self,
        cursor: &mut VerifyCursor,
        budget_bytes: usize,
    ) -> Result<VerifyReport, MetaError> {
        todo!()
    }

    /// All extents of the current state: tables, and the manifest's own.
    pub fn extents(&self) -> Vec<Extent> {
        todo!()
    }

    /// What the tree takes.
    pub fn usage(&self) -> Usage {
        todo!()
    }
}
