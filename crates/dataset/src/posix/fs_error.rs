//! `FsError`: what an operation on a filesystem or volume can answer, one variant per POSIX error number it maps to.

use std::sync::Arc;

use terrace_store::StoreError;

/// An error of a dataset operation. Cheap to clone: a group of callers may share one failed commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// ENOENT.
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST.
    #[error("the name exists already")]
    Exists,
    /// ENOTDIR.
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY.
    #[error("the directory is not empty")]
    NotEmpty,
    /// EPERM.
    #[error("the operation is not permitted")]
    NotPermitted,
    /// EACCES.
    #[error("permission denied")]
    AccessDenied,
    /// ENOSPC.
    #[error("the pool is full; delete files or snapshots, or add a device with 'terrace pool add'")]
    NoSpace,
    /// EDQUOT.
    #[error("the dataset's quota is used up; delete files or raise it with 'terrace set quota=…'")]
    QuotaExceeded,
    /// ENAMETOOLONG.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// EMLINK.
    #[error("too many links")]
    TooManyLinks,
    /// EROFS.
    #[error("the dataset is read-only")]
    ReadOnly,
    /// EINVAL.
    #[error("invalid argument")]
    Invalid,
    /// ENODATA.
    #[error("no such extended attribute")]
    NoAttribute,
    /// ERANGE.
    #[error("the result is too large for the buffer")]
    Range,
    /// ESTALE.
    #[error("the object is gone")]
    Stale,
    /// EOPNOTSUPP.
    #[error("not supported")]
    NotSupported,
    /// EBUSY.
    #[error("busy")]
    Busy,
    /// EXDEV.
    #[error("the two names are on different filesystems")]
    CrossDevice,
    /// EFBIG.
    #[error("the file would be too large")]
    FileTooBig,
    /// ELOOP.
    #[error("too many levels of symbolic links")]
    LoopDetected,
    /// ENXIO: no data or hole beyond the offset of a seek.
    #[error("no data beyond this offset")]
    NoData,
    /// E2BIG: an extended attribute's value is larger than 64 KiB.
    #[error("the value is too large")]
    TooBig,
    /// EIO: a device failed or data is damaged; says what and where.
    #[error("{0}")]
    Io(Fault),
}

/// Why something is an I/O error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    words: Arc<str>,
    is_unreadable_metadata: bool,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.words.fmt(formatter)
    }
}

impl From<&str> for Fault {
    fn from(words: &str) -> Self {
        Self {
            words: words.into(),
            is_unreadable_metadata: false,
        }
    }
}

impl FsError {
    /// The Linux error number.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotFound => libc::ENOENT,
            FsError::Exists => libc::EEXIST,
            FsError::NotDirectory => libc::ENOTDIR,
            FsError::IsDirectory => libc::EISDIR,
            FsError::NotEmpty => libc::ENOTEMPTY,
            FsError::NotPermitted => libc::EPERM,
            FsError::AccessDenied => libc::EACCES,
            FsError::NoSpace => libc::ENOSPC,
            FsError::QuotaExceeded => libc::EDQUOT,
            FsError::NameTooLong => libc::ENAMETOOLONG,
            FsError::TooManyLinks => libc::EMLINK,
            FsError::ReadOnly => libc::EROFS,
            FsError::Invalid => libc::EINVAL,
            FsError::NoAttribute => libc::ENODATA,
            FsError::Range => libc::ERANGE,
            FsError::Stale => libc::ESTALE,
            FsError::NotSupported => libc::EOPNOTSUPP,
            FsError::Busy => libc::EBUSY,
            FsError::CrossDevice => libc::EXDEV,
            FsError::FileTooBig => libc::EFBIG,
            FsError::LoopDetected => libc::ELOOP,
            FsError::NoData => libc::ENXIO,
            FsError::TooBig => libc::E2BIG,
            FsError::Io(_) => libc::EIO,
        }
    }

    /// Whether metadata is the cause that no copy gives.
    pub(crate) fn is_unreadable_metadata(&self) -> bool {
        matches!(self, FsError::Io(fault) if fault.is_unreadable_metadata)
    }

    /// An I/O error that says what was being done and why it failed.
    pub fn io(cause: impl std::fmt::Display) -> Self {
        FsError::Io(cause.to_string().as_str().into())
    }
}

impl From<StoreError> for FsError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoSpace => FsError::NoSpace,
            StoreError::DamagedMetadata(_) | StoreError::UnreadableMetadata(_) => FsError::Io(Fault {
                words: error.to_string().into(),
                is_unreadable_metadata: true,
            }),
            other => FsError::io(other),
        }
    }
}

impl From<terrace_codec::DecodeError> for FsError {
    fn from(error: terrace_codec::DecodeError) -> Self {
        FsError::io(format_args!("a metadata record is damaged: {error}"))
    }
}
