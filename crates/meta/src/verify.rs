//! Verification: reads every block of every copy of every table, a bounded piece at a time.

use crate::MetaError;

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
