//! `Errno`: the error that the kernel is told.

use terrace_dataset::FsError;

/// A positive Linux error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<FsError> for Errno {
    fn from(error: FsError) -> Self {
        if let FsError::Io(cause) = &error {
            tracing::warn!("input/output error: {cause}");
        }
        Errno(error.errno())
    }
}
