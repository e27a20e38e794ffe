//! `Filesystem`: a dataset as a POSIX filesystem, live. The public face; the work is in `namespace*`, `data*`,
//! `attributes*`, `acl` and `commit`.

use std::sync::Arc;

use crate::{
    attributes::{Attributes, FsStatistics, SetAttributes},
    context::Context,
    error::FsError,
    inode::FileKind,
    state::DatasetState,
    tree::{DirectoryEntry, SeekTarget, Tree},
};

/// How `rename` treats an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// `Exists` if there is one (RENAME_NOREPLACE).
    NoReplace,
    /// Both must exist and change places (RENAME_EXCHANGE).
    Exchange,
}

/// What `allocate` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Makes room; `keep_size` leaves the size even if the range ends behind it.
    Reserve {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
    /// FALLOC_FL_PUNCH_HOLE.
    Punch,
    /// FALLOC_FL_ZERO_RANGE.
    Zero {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
}

/// How `set_extended_attribute` treats an existing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeMode {
    /// Creates or replaces.
    Set,
    /// XATTR_CREATE: `Exists` if there is one.
    Create,
    /// XATTR_REPLACE: `NoAttribute` if there is none.
    Replace,
}

/// A live filesystem. All methods may be called from any thread.
pub struct Filesystem {}

#[allow(unused_variables, clippy::too_many_arguments)]
impl Filesystem {
    /// Opens a dataset that exists.
    pub fn open(state: Arc<DatasetState>) -> Result<Arc<Self>, FsError> {
        todo!()
    }

    /// Makes a regular file, device node, fifo or socket; an existing name is `Exists`.
    pub fn create(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        device: u32,
    ) -> Result<Attributes, FsError> {
        todo!()
    }

    /// Makes a directory.
    pub fn make_directory(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Attributes, FsError> {
        todo!()
    }

    /// Makes a symbolic link.
    pub fn symbolic_link(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attributes, FsError> {
        todo!()
    }

    /// Gives `object` another name.
    pub fn link(&self, context: &Context, object: u64, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        todo!()
    }

    /// Removes a name that is not a directory's; returns the object that it named.
    pub fn unlink(&self, context: &Context, dir: u64, name: &[u8]) -> Result<u64, FsError> {
        todo!()
    }

    /// Removes an empty directory; returns its number.
    pub fn remove_directory(&self, context: &Context, dir: u64, name: &[u8]) -> Result<u64, FsError> {
        todo!()
    }

    /// Renames.
    pub fn rename(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        new_dir: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), FsError> {
        todo!()
    }

    /// An unnamed regular file (O_TMPFILE), open once as if by [`open_object`](Self::open_object); `link` may name it.
    pub fn temporary(&self, context: &Context, dir: u64, mode: u32) -> Result<Attributes, FsError> {
        todo!()
    }

    /// Changes attributes by the rules of chmod, chown, truncate and utimensat.
    pub fn set_attributes(
        &self,
        context: &Context,
        object: u64,
        change: &SetAttributes,
    ) -> Result<Attributes, FsError> {
        todo!()
    }

    /// Writes all of `data` at `offset`; clears setuid and setgid unless the caller is root.
    pub fn write(&self, context: &Context, object: u64, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        todo!()
    }

    /// Writes at the end of the file; returns the offset at which the data lies.
    pub fn append(&self, context: &Context, object: u64, data: &[u8]) -> Result<u64, FsError> {
        todo!()
    }

    /// fallocate.
    pub fn allocate(
        &self,
        context: &Context,
        object: u64,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), FsError> {
        todo!()
    }

    /// copy_file_range: shares chunks where offsets are aligned to blocks, copies the rest; returns the bytes copied.
    pub fn copy_range(
        &self,
        context: &Context,
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, FsError> {
        todo!()
    }

    /// Sets an extended attribute; POSIX ACLs are checked and change the mode.
    pub fn set_extended_attribute(
        &self,
        context: &Context,
        object: u64,
        name: &[u8],
        value: &[u8],
        mode: AttributeMode,
    ) -> Result<(), FsError> {
        todo!()
    }

    /// Removes an extended attribute.
    pub fn remove_extended_attribute(
        &self,
        context: &Context,
        object: u64,
        name: &[u8],
    ) -> Result<(), FsError> {
        todo!()
    }

    /// Keeps the object alive even if its last name goes; once for each open.
    pub fn open_object(&self, object: u64) -> Result<(), FsError> {
        todo!()
    }

    /// Undoes one [`open_object`](Self::open_object).
    pub fn release_object(&self, object: u64) {
        todo!()
    }

    /// Makes everything done so far durable (fsync, syncfs): commit and flush, shared by concurrent callers. What
    /// `durability` says of fsync holds: with `timed` and `ram` it returns at once.
    pub fn sync(&self) -> Result<(), FsError> {
        todo!()
    }

    /// fsync of one object. (The whole dataset is committed: every crash state is a prefix in order.)
    pub fn sync_object(&self, object: u64) -> Result<(), FsError> {
        todo!()
    }

    /// Hands everything done so far to the store, without flushing.
    pub fn commit(&self) -> Result<(), FsError> {
        todo!()
    }

    /// Bytes written and not yet committed.
    pub fn dirty_bytes(&self) -> u64 {
        todo!()
    }

    /// The regions (1 MiB) of a file and the chunks they map, for `terrace where` and the mover.
    pub fn chunks_of(&self, object: u64, region: u32) -> Result<Vec<terrace_store::ChunkId>, FsError> {
        todo!()
    }
}

#[allow(unused_variables)]
impl Tree for Filesystem {
    fn lookup(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        todo!()
    }
    fn attributes(&self, object: u64) -> Result<Attributes, FsError> {
        todo!()
    }
    fn read_link(&self, object: u64) -> Result<Vec<u8>, FsError> {
        todo!()
    }
    fn read_directory(&self, dir: u64, from: u64, limit: usize) -> Result<Vec<DirectoryEntry>, FsError> {
        todo!()
    }
    fn parent(&self, dir: u64) -> Result<u64, FsError> {
        todo!()
    }
    fn read(&self, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        todo!()
    }
    fn extended_attribute(&self, object: u64, name: &[u8]) -> Result<Vec<u8>, FsError> {
        todo!()
    }
    fn extended_attributes(&self, object: u64) -> Result<Vec<Vec<u8>>, FsError> {
        todo!()
    }
    fn seek(&self, object: u64, offset: u64, target: SeekTarget) -> Result<u64, FsError> {
        todo!()
    }
    fn access(&self, context: &Context, object: u64, mask: u32) -> Result<(), FsError> {
        todo!()
    }
    fn statistics(&self) -> Result<FsStatistics, FsError> {
        todo!()
    }
}
