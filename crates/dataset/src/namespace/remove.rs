//! Names: unlink and rmdir.
//!
//! Invariant: the name goes, the link is counted down and, with the last link and no hold, the object is freed in one
//! passage of the gate, so that a crash sees all of it or nothing.

use super::lookup_create::{Namespace, removed};
use crate::{
    objects::{NameKey, Object, Target, lock_all},
    posix::{
        ACCESS_EXECUTE, ACCESS_WRITE, Attributes, Context, FsError, NAME_BYTES_MAX, file_flags, permission,
    },
    quota::OfReserve,
    records::{FileKind, Old},
};
use std::sync::Arc;

impl Namespace {
    /// Takes a name that is not a directory's away; returns what it named, as it is afterwards.
    pub(crate) fn remove_name(
        &self,
        context: &Context,
        directory: u64,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        self.dataset.writable()?;
        let directory = self.table.directory(directory)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        if name == b"." || name == b".." {
            return Err(FsError::IsDirectory);
        }
        let is_young = || self.is_young_by_name(&directory, name);
        self.admission
            .take_metadata_to_remove(1, OfReserve::Removals, &is_young)?;
        let attributes = {
            let _names = directory.lock_inode();
            self.xattrs.check(context, &directory, ACCESS_EXECUTE)?;
            let target = self
                .directories
                .find(&directory, name)?
                .ok_or(FsError::NotFound)?;
            let victim = self.victim(context, &directory, target)?;
            if target.kind == FileKind::Directory {
                return Err(FsError::IsDirectory);
            }
            let key = NameKey::new(name);
            let now = self.dataset.now();
            let _gate = self.epoch.enter();
            {
                let mut state = directory.state();
                if let Some(entries) = &mut state.entries {
                    entries.change(key, None, Old::Unknown);
                }
                removed(&mut state, now);
                self.epoch.mark_inode(&directory, &mut state);
            }
            self.lifetimes.unlink(context, &victim, now)
        };
        if attributes.links > 0 {
            // It may have lain beneath a pinned directory by this name alone.
            self.dataset.environment().pins.note_moved(self.dataset.number());
        }
        self.commits.settle()?;
        Ok(attributes)
    }

    /// Whether there is an object of this name, and no past state has it.
    fn is_young_by_name(&self, directory: &Arc<Object>, name: &[u8]) -> bool {
        let found = self.directories.find(directory, name).ok().flatten();
        let object = found.and_then(|target| self.table.object(target.object).ok());
        object.is_some_and(|object| self.lifetimes.is_young(&object))
    }

    /// The object that is to lose a name, if the caller may do that.
    pub(crate) fn victim(
        &self,
        context: &Context,
        directory: &Arc<Object>,
        target: Target,
    ) -> Result<Arc<Object>, FsError> {
        self.xattrs
            .check(context, directory, ACCESS_WRITE | ACCESS_EXECUTE)?;
        let victim = self.table.object(target.object)?;
        file_flags::may_lose_names(&directory.state().inode)?;
        file_flags::may_change(&victim.state().inode)?;
        if !context.trusted {
            let uid = victim.state().inode.uid;
            permission::check_sticky(context, &directory.state().inode, uid)?;
        }
        Ok(victim)
    }

    /// Removes an empty directory; returns what it was.
    pub(crate) fn remove_dir(
        &self,
        context: &Context,
        directory: u64,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        self.dataset.writable()?;
        let directory = self.table.directory(directory)?;
        match name {
            b"." => return Err(FsError::Invalid),
            b".." => return Err(FsError::NotEmpty),
            _ if name.len() > NAME_BYTES_MAX => return Err(FsError::NameTooLong),
            _ => {}
        }
        let is_young = || self.is_young_by_name(&directory, name);
        self.admission
            .take_metadata_to_remove(1, OfReserve::Removals, &is_young)?;
        let attributes = loop {
            self.xattrs.check(context, &directory, ACCESS_EXECUTE)?;
            let target = self
                .directories
                .find(&directory, name)?
                .ok_or(FsError::NotFound)?;
            if target.kind != FileKind::Directory {
                return Err(FsError::NotDirectory);
            }
            let victim = match self.table.object(target.object) {
                Ok(victim) => victim,
                Err(FsError::Stale) => return Err(FsError::NotFound),
                Err(error) => return Err(error),
            };
            let _names = lock_all(&[&directory, &victim]);
            if self.directories.find(&directory, name)? != Some(target) {
                continue;
            }
            self.victim(context, &directory, target)?;
            if victim.state().inode.size > 0 {
                return Err(FsError::NotEmpty);
            }
            let key = NameKey::new(name);
            let now = self.dataset.now();
            let _gate = self.epoch.enter();
            {
                let mut state = directory.state();
                if let Some(entries) = &mut state.entries {
                    entries.change(key, None, Old::Unknown);
                }
                removed(&mut state, now);
                state.inode.links = state.inode.links.saturating_sub(1);
                self.epoch.mark_inode(&directory, &mut state);
            }
            break self.lifetimes.unlink(context, &victim, now);
        };
        self.commits.settle()?;
        Ok(attributes)
    }
}
