//! `DatasetError`: what an administrative operation on datasets can answer; each says what to do.

use terrace_device::format_size;
use terrace_store::StoreError;

use crate::{posix::FsError, records::VOLUME_BYTES_MAX};

/// An error of [`Datasets`](crate::Datasets).
#[derive(Debug, Clone, thiserror::Error)]
pub enum DatasetError {
    /// No such dataset.
    #[error("there is no dataset '{0}'; 'terrace list' shows those that exist")]
    NotFound(String),
    /// No such snapshot.
    #[error("there is no snapshot '{0}'; 'terrace list -t snapshot' shows those that exist")]
    NoSnapshot(String),
    /// The dataset above is missing.
    #[error("there is no dataset '{0}' to put it below; create that first: 'terrace fs create -p {0}'")]
    NoParent(String),
    /// The name is taken.
    #[error("'{0}' exists already; choose another name, or destroy or rename that one")]
    Exists(String),
    /// The name breaks the rules.
    #[error("'{name}' is not a valid name: {cause}; give another one")]
    InvalidName {
        /// As given.
        name: String,
        /// Which rule.
        cause: &'static str,
    },
    /// No volume can be of that size.
    #[error("a volume cannot have {} bytes; give a size from 4K to {}", .size_bytes, format_size(VOLUME_BYTES_MAX))]
    InvalidSize {
        /// As given.
        size_bytes: u64,
    },
    /// There is no such property, or it takes no such value.
    #[error("{0}")]
    InvalidProperty(String),
    /// A value that the property takes, and not here and now.
    #[error("{0}")]
    PropertyRefused(String),
    /// A volume where a filesystem is needed, or the other way round.
    #[error("'{name}' is a {is}, not a {wanted}; {}", way_of(is))]
    WrongKind {
        /// Its name.
        name: String,
        /// What it is.
        is: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// There are datasets or snapshots below.
    #[error("'{name}' has {what}: {examples}; destroy them first, or use -r to destroy all")]
    NotEmpty {
        /// Its name.
        name: String,
        /// What it has.
        what: &'static str,
        /// The first few.
        examples: String,
    },
    /// In use.
    #[error("'{0}' is in use; unmount or detach it first")]
    Busy(String),
    /// Held by a tag.
    #[error("snapshot '{name}' is held by '{tag}'; release it with 'terrace release {tag} {name}' first")]
    Held {
        /// Its name.
        name: String,
        /// One of its tags.
        tag: String,
    },
    /// The hold is not there, or is there already.
    #[error("snapshot '{name}' has {state} hold '{tag}'; 'terrace get holds {name}' shows what it has")]
    Hold {
        /// Its name.
        name: String,
        /// The tag.
        tag: String,
        /// `no` or `already a`.
        state: &'static str,
    },
    /// The pool has not the room that was to be set aside.
    #[error(
        "{} would have to be set aside, working room included, and {} are free; ask for less, set nothing aside (--sparse for a new volume, \
         reservation=none), or add a device with 'terrace pool add'",
        format_size(*.wanted_bytes),
        format_size(*.available_bytes)
    )]
    NoRoom {
        /// More than is set aside already.
        wanted_bytes: u64,
        /// What is left of the pool.
        available_bytes: u64,
    },
    /// The pool has not the room that a snapshot of a filesystem with preallocated files has to set aside.
    #[error(
        "snapshot '{snapshot}' needs {} set aside so that what 'fallocate' promised in '{dataset}' can still be written over, and {} \
         are free; delete files or destroy snapshots, or add a device with 'terrace pool add'",
        format_size(*.wanted_bytes),
        format_size(*.available_bytes)
    )]
    NoRoomForPreallocated {
        /// What was to be taken.
        snapshot: String,
        /// The filesystem, or the first of several.
        dataset: String,
        /// More than is set aside already.
        wanted_bytes: u64,
        /// What is left of the pool.
        available_bytes: u64,
    },
    /// The pool has not the room that a snapshot of a thick volume has to set aside.
    #[error(
        "snapshot '{snapshot}' needs {} set aside so that '{volume}', for which {} are reserved, can still be written over, and {} \
         are free; delete files or destroy snapshots, add a device with 'terrace pool add', or reserve less with 'terrace set \
         reservation=none {volume}': then writes to it may be refused when the pool is full",
        format_size(*.wanted_bytes),
        format_size(*.reserved_bytes),
        format_size(*.available_bytes)
    )]
    NoRoomForSnapshot {
        /// What was to be taken.
        snapshot: String,
        /// The volume, or the first of several.
        volume: String,
        /// For how much of it room is reserved.
        reserved_bytes: u64,
        /// What would have to be set aside for all of them.
        wanted_bytes: u64,
        /// What is left of the pool.
        available_bytes: u64,
    },
    /// Not possible for this dataset.
    #[error("{0}")]
    Refused(String),
    /// A checkpoint or time that nothing holds.
    #[error("'{name}' as of {at} is not held any more; the nearest that is: {nearest}")]
    NotHeld {
        /// The dataset.
        name: String,
        /// What was asked for.
        at: String,
        /// What there is.
        nearest: String,
    },
    /// The pool failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The filesystem or volume failed.
    #[error("{0}")]
    Filesystem(#[from] FsError),
}

impl DatasetError {
    /// Whether metadata is the cause that no copy gives.
    pub(crate) fn is_unreadable_metadata(&self) -> bool {
        match self {
            Self::Filesystem(error) => error.is_unreadable_metadata(),
            Self::Store(StoreError::DamagedMetadata(_) | StoreError::UnreadableMetadata(_)) => true,
            _ => false,
        }
    }
}

/// What can be done with a dataset of that kind.
fn way_of(kind: &str) -> &'static str {
    match kind {
        "volume" => "use it with 'terrace attach' or 'terrace serve'",
        _ => "use it with 'terrace mount', or make a volume with 'terrace volume create'",
    }
}

impl From<DatasetError> for FsError {
    fn from(error: DatasetError) -> Self {
        match error {
            DatasetError::Filesystem(error) => error,
            DatasetError::Store(error) => error.into(),
            DatasetError::NotFound(_) | DatasetError::NoSnapshot(_) => FsError::NotFound,
            DatasetError::Busy(_) => FsError::Busy,
            other => FsError::io(other),
        }
    }
}
