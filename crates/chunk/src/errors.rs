//! Errors of the crates below, as those of a store.

use terrace_log::LogError;
use terrace_meta::MetaError;
use terrace_pool::PoolError;
use terrace_store::StoreError;

pub(crate) fn pool_error(error: PoolError) -> StoreError {
    if error.is_no_space() {
        StoreError::NoSpace
    } else {
        StoreError::Device(error.to_string().into())
    }
}

pub(crate) fn meta_error(error: MetaError) -> StoreError {
    match error {
        MetaError::Damaged { .. } | MetaError::Manifest(_) => {
            StoreError::DamagedMetadata(error.to_string().into())
        }
        MetaError::Unreadable { .. } => StoreError::UnreadableMetadata(error.to_string().into()),
        MetaError::Storage {
            cause: terrace_meta::ExtentError::NoSpace(_),
            ..
        } => StoreError::NoSpace,
        other => StoreError::Device(other.to_string().into()),
    }
}

pub(crate) fn damaged(what: impl std::fmt::Display) -> StoreError {
    StoreError::DamagedMetadata(what.to_string().into())
}

pub(crate) fn log_error(error: LogError) -> StoreError {
    match error {
        LogError::NoSpace(_) => StoreError::NoSpace,
        LogError::Write(_) => StoreError::Device(error.to_string().into()),
        other => damaged(other),
    }
}
