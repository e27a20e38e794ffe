//! POSIX: who may do what, attributes, access lists, errors. Owns nothing.

mod acl;
mod attributes;
mod block_status;
mod context;
pub(crate) mod file_flags;
mod fs_error;
mod modes;
pub(crate) mod permission;
mod tree;

pub use attributes::{Attributes, FsStatistics, SetAttributes, SetTime};
pub use block_status::BlockStatus;
pub use context::{Context, Groups, Strip};
pub use file_flags::FileFlags;
pub use fs_error::{Fault, FsError};
pub use modes::{AllocateMode, AttributeMode, RenameMode};
pub use tree::{
    ACCESS_EXECUTE, ACCESS_READ, ACCESS_WRITE, DirectoryEntry, FIRST_COOKIE, NAME_BYTES_MAX, ROOT,
    SeekTarget, Tree,
};

pub(crate) use acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
pub(crate) use attributes::generation;
pub(crate) use block_status::pieces_of;
pub(crate) use permission::{SETGID, check};
