//! `Tree`: what can be read of a filesystem, live or as of a checkpoint. Front ends are written against this trait.

use super::{
    attributes::{Attributes, FsStatistics},
    context::Context,
    file_flags::FileFlags,
    fs_error::FsError,
};
use crate::records::FileKind;

/// The number of the root directory.
pub const ROOT: u64 = 1;
/// Longest name, bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Cookies below this are free for `.` and `..`, which `read_directory` does not list.
pub const FIRST_COOKIE: u64 = 3;

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name, any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// What it names.
    pub object: u64,
    /// Its type.
    pub kind: FileKind,
    /// Pass it as `from` to go on behind this entry. Stable while the name exists; at most 2^63 - 1.
    pub cookie: u64,
}

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTarget {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

/// Permission to execute or search.
pub const ACCESS_EXECUTE: u32 = 1;
/// Permission to write.
pub const ACCESS_WRITE: u32 = 2;
/// Permission to read.
pub const ACCESS_READ: u32 = 4;

/// A filesystem that can be read. All methods may be called from any thread.
pub trait Tree: Send + Sync {
    /// The root directory's number.
    fn root(&self) -> u64 {
        ROOT
    }

    /// The object that `name` is in directory `dir`. Needs search permission on `dir`. `.` and `..` are understood.
    fn lookup(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError>;

    /// What `stat` shows.
    fn attributes(&self, object: u64) -> Result<Attributes, FsError>;

    /// A symbolic link's target.
    fn read_link(&self, object: u64) -> Result<Vec<u8>, FsError>;

    /// At most `limit` entries with a cookie above `from` (0: from the start), without `.` and `..`; empty at the end.
    fn read_directory(&self, dir: u64, from: u64, limit: usize) -> Result<Vec<DirectoryEntry>, FsError>;

    /// The directory that holds directory `dir` (the root's is the root).
    fn parent(&self, dir: u64) -> Result<u64, FsError>;

    /// Reads at `offset`; returns less than asked only at the end of the file.
    fn read(&self, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError>;

    /// The same for a process, whose number says which reads belong together; 0: not known.
    fn read_for(&self, process: u32, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        let _ = process;
        self.read(object, offset, buffer)
    }

    /// The same, and the time of the last read stays what it is.
    fn read_unnoted(
        &self,
        process: u32,
        object: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, FsError> {
        self.read_for(process, object, offset, buffer)
    }

    /// The value of an extended attribute.
    fn extended_attribute(&self, object: u64, name: &[u8]) -> Result<Vec<u8>, FsError>;

    /// The names of all extended attributes.
    fn extended_attributes(&self, object: u64) -> Result<Vec<Vec<u8>>, FsError>;

    /// What `lsattr` shows. None of an object that has no flags, whatever its kind.
    fn file_flags(&self, object: u64) -> Result<FileFlags, FsError> {
        self.attributes(object).map(|_| FileFlags::default())
    }

    /// The first data or hole at or after `offset`; `NoData` when there is none (ENXIO).
    fn seek(&self, object: u64, offset: u64, target: SeekTarget) -> Result<u64, FsError>;

    /// Whether the caller may do what `mask` (ACCESS_*) says: mode, owner, groups, ACL.
    fn access(&self, context: &Context, object: u64, mask: u32) -> Result<(), FsError>;

    /// Sizes for `statfs`.
    fn statistics(&self) -> Result<FsStatistics, FsError>;
}
