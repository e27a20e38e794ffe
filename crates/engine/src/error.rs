//! What can go wrong in the engine. Every message names the thing, the cause and the way out.

use terrace_dataset::{DatasetError, FsError};
use terrace_device::DeviceError;
use terrace_mover::MoverError;
use terrace_pool::PoolError;
use terrace_store::StoreError;

/// An error of the engine.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The caller asked for something that makes no sense: a bad name, size, property or combination.
    #[error("{0}")]
    Invalid(String),
    /// Something is in use.
    #[error("{0}")]
    Busy(String),
    /// A device could not be opened, read or written.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Labels, roots or segments.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An operation on datasets failed.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A filesystem operation failed.
    #[error(transparent)]
    File(#[from] FsError),
    /// The mover cannot do what was asked.
    #[error(transparent)]
    Mover(#[from] MoverError),
    /// The engine was closed.
    #[error("the pool is closed; start it with 'terrace start'")]
    Closed,
}
