//! Stands in for parts of the live half until they are there.

use terrace_store::Sequence;

use crate::{
    context::Context,
    error::FsError,
    filesystem::Filesystem,
    inode::{FileKind, InodeRecord, Time},
    keys,
    state::{Live, Paused},
    versions::{Old, VersionedBatch},
    volume::Volume,
};

pub(crate) mod permission {
    use super::*;
    pub(crate) fn check(_: &Context, _: &InodeRecord, _: Option<&[u8]>, _: u32) -> Result<(), FsError> {
        Ok(())
    }
}

impl Filesystem {
    /// Makes the root directory.
    pub(crate) fn format(batch: &mut VersionedBatch, now: Time) -> Result<(), FsError> {
        let mut inode = InodeRecord::new(FileKind::Directory, 0o755, 0, 0, now);
        inode.links = 2;
        inode.body = keys::ROOT_OBJECT;
        batch.put_inode(keys::ROOT_OBJECT, &inode, Old::Absent)?;
        batch.count_objects(1);
        Ok(())
    }
}

impl Volume {
    /// Makes the one object.
    pub(crate) fn format(batch: &mut VersionedBatch, size_bytes: u64, now: Time) -> Result<(), FsError> {
        let mut inode = InodeRecord::new(FileKind::Volume, 0o600, 0, 0, now);
        inode.links = 1;
        inode.size = size_bytes;
        inode.body = keys::ROOT_OBJECT;
        batch.put_inode(keys::ROOT_OBJECT, &inode, Old::Absent)?;
        batch.count_objects(1);
        Ok(())
    }
}

impl Live for Filesystem {
    fn pause(&self) -> Box<dyn Paused + '_> {
        todo!()
    }
    fn commit_frozen(&self) -> Result<Sequence, FsError> {
        todo!()
    }
}

impl Live for Volume {
    fn pause(&self) -> Box<dyn Paused + '_> {
        todo!()
    }
    fn commit_frozen(&self) -> Result<Sequence, FsError> {
        todo!()
    }
}
