//! `MetaError`: what can go wrong in a tree, in words that name the thing, the cause and the way out.

use crate::{Extent, ExtentError};

/// Why an operation on a tree failed. After any of them the tree is consistent and can be used further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// An extent does not hold what was written to it, in any of its copies.
    #[error(
        "metadata {extent} is damaged at byte {offset}: {detail}; run a scrub, or restore it from another copy"
    )]
    Damaged {
        /// The extent.
        extent: Extent,
        /// Where in the extent the damaged part starts, bytes.
        offset: u32,
        /// What does not match.
        detail: String,
    },
    /// No copy of a part of an extent can be read.
    #[error("reading metadata {extent}: {cause}")]
    Unreadable {
        /// The extent.
        extent: Extent,
        /// What the storage said.
        cause: ExtentError,
    },
    /// The storage failed while the tree was doing `action`; the operation can be tried again.
    #[error("{action}: {cause}")]
    Storage {
        /// What was being done, naming the extent where there is one.
        action: String,
        /// What the storage said.
        cause: ExtentError,
    },
    /// The manifest is not one this version can read, or contradicts itself.
    #[error("the metadata manifest cannot be used: {0}; import the pool from an older root")]
    Manifest(String),
    /// A batch came out of order.
    #[error("batch {sequence} must come after batch {newest}, which was already applied")]
    OutOfOrder {
        /// The sequence given.
        sequence: u64,
        /// The newest one applied.
        newest: u64,
    },
    /// A key or value is longer than the tree takes.
    #[error("a {what} of {bytes} bytes is longer than the limit of {limit} bytes")]
    TooLong {
        /// `key` or `value`.
        what: &'static str,
        /// Its length, bytes.
        bytes: usize,
        /// The limit, bytes.
        limit: usize,
    },
}
