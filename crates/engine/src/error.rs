//! What can go wrong in the engine. Every message names the thing, the cause and the way out.

use terrace_store::StoreError;

/// An error of the engine: what failed, and (in the text) what to do about it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The caller asked for something that makes no sense: a bad name, size, property or combination.
    #[error("{0}")]
    Invalid(String),
    /// The thing named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It exists already, or is in use.
    #[error("{0}")]
    Busy(String),
    /// A device could not be opened, read or written.
    #[error("{0}")]
    Device(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A dataset operation failed.
    #[error("{0}")]
    Dataset(String),
    /// The engine was closed.
    #[error("the pool is closed; start it with 'terrace start'")]
    Closed,
}
