//! What can go wrong in a store.

use std::sync::Arc;

use crate::ChunkId;

/// An error of a [`Store`](crate::Store). Cheap to clone, since a group of callers may share one failed flush.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The pool has no room for this beyond its reserve.
    #[error("the pool is full; delete files or snapshots, or add a device with 'terrace pool add'")]
    NoSpace,
    /// A chunk is damaged on every device that holds it.
    #[error("chunk {id} has no good copy: {cause}")]
    Damaged {
        /// The chunk.
        id: ChunkId,
        /// What was found.
        cause: Arc<str>,
    },
    /// A chunk that does not exist was asked for.
    #[error("there is no chunk {0}")]
    NoChunk(ChunkId),
    /// Metadata is damaged on every device that holds it.
    #[error("metadata is damaged: {0}")]
    DamagedMetadata(Arc<str>),
    /// No copy of some metadata can be read now.
    #[error("{0}")]
    UnreadableMetadata(Arc<str>),
    /// The pool has a format version that this program does not know.
    #[error(
        "the pool was made by a newer terrace: its format version is {version}, this one knows up to {known}; use the newer terrace"
    )]
    Newer {
        /// Of the pool.
        version: u32,
        /// The newest that is known.
        known: u32,
    },
    /// The pool has a format version from before the first release.
    #[error(
        "the pool has format version {version}, from before the first release; this terrace knows {oldest} and newer: copy its files \
         with the terrace that made it ('terrace get'), then make the pool anew"
    )]
    Older {
        /// Of the pool.
        version: u32,
        /// The oldest that is known.
        oldest: u32,
    },
    /// A device failed.
    #[error("{0}")]
    Device(Arc<str>),
    /// An earlier failure stopped the store; it must be opened again.
    #[error("the pool stopped accepting writes after an error: {0}; 'terrace status' says what to do")]
    Stopped(Arc<str>),
    /// The caller broke a limit of the contract.
    #[error("{0}")]
    Invalid(String),
}
