//! `Files`: what a mount changes. A dataset's filesystem is one; a front end that shows something else as files (volumes to be
//! attached to loop devices, say) can be another.

use std::sync::Arc;

use terrace_dataset::{
    AllocateMode, AttributeMode, Attributes, Context, DirectoryEntry, FileFlags, FileKind, Filesystem,
    FsError, RenameMode, SetAttributes, Tree, WriteDone,
};

/// What a mount shows.
#[derive(Clone)]
pub enum Content {
    /// A filesystem that can be changed.
    Live(Arc<dyn Files>),
    /// A state that can only be read.
    ReadOnly(Arc<dyn Tree>),
}

/// A filesystem that can be changed. The kernel has checked permissions before any of this is called
/// (`Context::trusted`).
pub trait Files: Tree {
    /// Makes a regular file, device node, fifo or socket; `Exists` if the name does.
    fn create(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        device: u32,
    ) -> Result<Attributes, FsError>;

    /// Makes a directory.
    fn make_directory(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Attributes, FsError>;

    /// Makes a symbolic link.
    fn symbolic_link(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attributes, FsError>;

    /// Gives `object` another name.
    fn link(&self, context: &Context, object: u64, dir: u64, name: &[u8]) -> Result<Attributes, FsError>;

    /// Removes a name that is not a directory's. Returns what the object is afterwards; if that was its last name
    /// (`links` is 0) the object stays until it is [released](Self::release).
    fn unlink(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError>;

    /// Removes an empty directory; it stays until it is released.
    fn remove_directory(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError>;

    /// Renames. Returns what was replaced, as it is afterwards; if it has no name left it stays until it is released.
    fn rename(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        new_dir: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Option<Attributes>, FsError>;

    /// A regular file without a name, which stays until it is released.
    fn temporary(&self, context: &Context, dir: u64, mode: u32) -> Result<Attributes, FsError>;

    /// Lets go of an object that stayed without a name.
    fn release(&self, object: u64);

    /// Changes attributes.
    fn set_attributes(
        &self,
        context: &Context,
        object: u64,
        change: &SetAttributes,
    ) -> Result<Attributes, FsError>;

    /// Writes `data`, or where only its beginning has room that; for a caller without CAP_FSETID set-id bits fall, and with an error
    /// they may have.
    fn write(&self, context: &Context, object: u64, offset: u64, data: &[u8]) -> Result<WriteDone, FsError>;

    /// fallocate.
    fn allocate(
        &self,
        context: &Context,
        object: u64,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), FsError>;

    /// copy_file_range; from and to are (object, offset). Returns the bytes copied.
    fn copy_range(
        &self,
        context: &Context,
        from: (u64, u64),
        to: (u64, u64),
        length: u64,
    ) -> Result<u64, FsError>;

    /// Sets an extended attribute.
    fn set_extended_attribute(
        &self,
        context: &Context,
        object: u64,
        name: &[u8],
        value: &[u8],
        mode: AttributeMode,
    ) -> Result<(), FsError>;

    /// Removes an extended attribute.
    fn remove_extended_attribute(&self, context: &Context, object: u64, name: &[u8]) -> Result<(), FsError>;

    /// Sets what `chattr` does.
    fn set_file_flags(&self, _context: &Context, _object: u64, _flags: FileFlags) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    /// Makes everything done so far to an object durable.
    fn sync(&self, object: u64) -> Result<(), FsError>;

    /// Like `read_directory`, with the attributes of each object that is `wanted`; of these, an entry whose object just went is
    /// left out.
    fn list(
        &self,
        dir: u64,
        from: u64,
        limit: usize,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Vec<(DirectoryEntry, Option<Attributes>)>, FsError>;
}
impl Files for Filesystem {
    fn create(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        device: u32,
    ) -> Result<Attributes, FsError> {
        self.create(context, dir, name, kind, mode, device)
    }

    fn make_directory(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Attributes, FsError> {
        self.make_directory(context, dir, name, mode)
    }

    fn symbolic_link(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attributes, FsError> {
        self.symbolic_link(context, dir, name, target)
    }

    fn link(&self, context: &Context, object: u64, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        self.link(context, object, dir, name)
    }

    fn unlink(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        self.unlink(context, dir, name)
    }

    fn remove_directory(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        self.remove_directory(context, dir, name)
    }

    fn rename(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        new_dir: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Option<Attributes>, FsError> {
        self.rename(context, dir, name, new_dir, new_name, mode)
    }

    fn temporary(&self, context: &Context, dir: u64, mode: u32) -> Result<Attributes, FsError> {
        self.temporary(context, dir, mode)
    }

    fn release(&self, object: u64) {
        self.release_object(object);
    }

    fn set_attributes(
        &self,
        context: &Context,
        object: u64,
        change: &SetAttributes,
    ) -> Result<Attributes, FsError> {
        self.set_attributes(context, object, change)
    }

    fn write(&self, context: &Context, object: u64, offset: u64, data: &[u8]) -> Result<WriteDone, FsError> {
        self.write_stripping(context, object, offset, data)
    }

    fn allocate(
        &self,
        context: &Context,
        object: u64,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), FsError> {
        self.allocate(context, object, mode, offset, length)
    }

    fn copy_range(
        &self,
        context: &Context,
        from: (u64, u64),
        to: (u64, u64),
        length: u64,
    ) -> Result<u64, FsError> {
        self.copy_range(context, from.0, from.1, to.0, to.1, length)
    }

    fn set_extended_attribute(
        &self,
        context: &Context,
        object: u64,
        name: &[u8],
        value: &[u8],
        mode: AttributeMode,
    ) -> Result<(), FsError> {
        self.set_extended_attribute(context, object, name, value, mode)
    }

    fn remove_extended_attribute(&self, context: &Context, object: u64, name: &[u8]) -> Result<(), FsError> {
        self.remove_extended_attribute(context, object, name)
    }

    fn set_file_flags(&self, context: &Context, object: u64, flags: FileFlags) -> Result<(), FsError> {
        self.set_file_flags(context, object, flags)
    }

    fn sync(&self, object: u64) -> Result<(), FsError> {
        self.sync_object(object)
    }

    fn list(
        &self,
        dir: u64,
        from: u64,
        limit: usize,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Vec<(DirectoryEntry, Option<Attributes>)>, FsError> {
        self.read_directory_attributes(dir, from, limit, wanted)
    }
}
