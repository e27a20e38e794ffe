//! `Namespace`: names are made, and objects with them.
//!
//! Invariants: a directory's inode lock orders the changes of its names; what an operation must know from the
//! records is read before the gate is entered; a name is visible only after its object is in RAM. The size of a
//! directory's inode is the number of its names, its links are 2 and one for each directory in it.

use super::{lifetime::Lifetimes, lookup::Directories, xattrs::ExtendedAttributes};
use crate::{
    commit::CommitQueue,
    live::{DatasetState, DirtyEpoch, METADATA_BYTES, ObjectTable},
    objects::{HAS_DEFAULT_ACL, NameKey, Object, State, Target, put_xattr},
    posix::{
        ACCESS_EXECUTE, ACCESS_NAME, ACCESS_WRITE, Acl, Attributes, Context, DEFAULT_NAME, FsError,
        NAME_BYTES_MAX, file_flags, permission,
    },
    records::{FileKind, InodeRecord, Old, TARGET_BYTES_MAX},
    writing::{Admission, ContentWriter},
};
use std::sync::Arc;
use terrace_sync::{Mutex, rank};

/// Whether a name may be made.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if name == b"." || name == b".." {
        return Err(FsError::Exists);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        Err(FsError::Invalid)
    } else {
        Ok(())
    }
}

/// What a new object is, besides its place.
pub(crate) struct NewObject<'a> {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) device: u32,
    pub(crate) target: &'a [u8],
}

/// See the module.
pub(crate) struct Namespace {
    pub(super) dataset: Arc<DatasetState>,
    pub(super) table: Arc<ObjectTable>,
    pub(super) epoch: Arc<DirtyEpoch>,
    pub(super) commits: Arc<CommitQueue>,
    pub(super) admission: Arc<Admission>,
    pub(super) writer: Arc<ContentWriter>,
    pub(super) directories: Arc<Directories>,
    pub(super) xattrs: Arc<ExtendedAttributes>,
    pub(super) lifetimes: Arc<Lifetimes>,
    /// One rename between directories at a time, so that the tree above a directory stands still.
    pub(super) rename: Mutex<(), rank::dataset::Rename>,
}

impl Namespace {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        table: &Arc<ObjectTable>,
        epoch: &Arc<DirtyEpoch>,
        commits: &Arc<CommitQueue>,
        admission: &Arc<Admission>,
        writer: &Arc<ContentWriter>,
        directories: &Arc<Directories>,
        xattrs: &Arc<ExtendedAttributes>,
        lifetimes: &Arc<Lifetimes>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
            epoch: epoch.clone(),
            commits: commits.clone(),
            admission: admission.clone(),
            writer: writer.clone(),
            directories: directories.clone(),
            xattrs: xattrs.clone(),
            lifetimes: lifetimes.clone(),
            rename: Mutex::default(),
        })
    }

    /// Lookup, with search permission.
    pub(crate) fn look_up(
        &self,
        context: &Context,
        directory: u64,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        let directory = self.table.directory(directory)?;
        self.xattrs.check(context, &directory, ACCESS_EXECUTE)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let number = match name {
            b"." => directory.number,
            b".." => self.table.parent_of(&directory),
            _ => {
                let number = self
                    .directories
                    .find(&directory, name)?
                    .ok_or(FsError::NotFound)?
                    .object;
                self.table.note_found(number, directory.number);
                number
            }
        };
        self.directories.attributes_of(number).map_err(|error| {
            if error == FsError::Stale {
                FsError::NotFound
            } else {
                error
            }
        })
    }

    /// Makes an object and names it.
    pub(crate) fn make(
        &self,
        context: &Context,
        directory: u64,
        name: &[u8],
        new: &NewObject<'_>,
    ) -> Result<Attributes, FsError> {
        self.dataset.writable()?;
        check_name(name)?;
        let directory = self.table.directory(directory)?;
        let _admitted = self.admission.throttle(METADATA_BYTES)?;
        self.admission.take_metadata(2)?;
        let attributes = {
            let _names = directory.lock_inode();
            let exists = self.directories.find(&directory, name)?.is_some();
            if exists {
                self.xattrs.check(context, &directory, ACCESS_EXECUTE)?;
                return Err(FsError::Exists);
            }
            self.xattrs
                .check(context, &directory, ACCESS_WRITE | ACCESS_EXECUTE)?;
            let object = self.prepare(context, &directory, new)?;
            let key = NameKey::new(name);
            let _gate = self.epoch.enter();
            let mut state = directory.state();
            if state.inode.links == 0 {
                return Err(FsError::NotFound);
            }
            file_flags::may_gain_names(&state.inode)?;
            if new.kind == FileKind::Directory && state.inode.links == u32::MAX {
                return Err(FsError::TooManyLinks);
            }
            let attributes = {
                let mut made = object.state();
                made.inode.links = if new.kind == FileKind::Directory { 2 } else { 1 };
                self.epoch.mark_inode(&object, &mut made);
                made.attributes(object.number)
            };
            self.table.insert(object.clone());
            let target = Target {
                object: object.number,
                kind: new.kind,
            };
            if let Some(entries) = &mut state.entries {
                entries.change(key, Some(target), Old::Absent);
            }
            state.inode.size += 1;
            if new.kind == FileKind::Directory {
                state.inode.links += 1;
            }
            state.inode.modified = attributes.changed;
            state.inode.changed = attributes.changed;
            self.epoch.mark_inode(&directory, &mut state);
            attributes
        };
        self.commits.settle()?;
        Ok(attributes)
    }

    /// A new object that nothing names yet and nobody sees: owner, group, mode and ACLs as its directory wants them.
    pub(crate) fn prepare(
        &self,
        context: &Context,
        directory: &Arc<Object>,
        new: &NewObject<'_>,
    ) -> Result<Arc<Object>, FsError> {
        if new.target.len() > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let inherits =
            new.kind != FileKind::SymbolicLink && directory.state().inode.flags & HAS_DEFAULT_ACL != 0;
        let default = if inherits {
            self.xattrs.xattr(directory, DEFAULT_NAME)?
        } else {
            None
        };
        let (mode, access) = match &default {
            Some(value) => Acl::parse(value)?.inherit(new.mode & 0o7777),
            None if new.kind == FileKind::SymbolicLink => (0o777, None),
            None => (new.mode & 0o7777 & !context.umask, None),
        };
        let (gid, mode, flags) = {
            let directory = &directory.state().inode;
            let (gid, mode) = permission::inherit(context, directory, new.kind, mode);
            (gid, mode, file_flags::inherited(directory))
        };
        let mut inode = InodeRecord::new(new.kind, mode, context.uid, gid, self.dataset.now());
        inode.flags = flags;
        inode.device = new.device;
        inode.target = new.target.to_vec();
        inode.size = new.target.len() as u64;
        if new.kind == FileKind::Directory {
            inode.parent = directory.number;
        }
        let number = self.dataset.next_object();
        inode.body = number;
        let object = Object::fresh(number, inode, self.table.name_count());
        object.state().found_in = directory.number;
        if default.is_some() {
            let mut state = object.state();
            if let Some(access) = access {
                put_xattr(&mut state, ACCESS_NAME, Some(access.encode().into()));
            }
            if let (FileKind::Directory, Some(default)) = (new.kind, default) {
                put_xattr(&mut state, DEFAULT_NAME, Some(default));
            }
        }
        Ok(object)
    }

    /// A regular file without a name, held once.
    pub(crate) fn make_temporary(
        &self,
        context: &Context,
        directory: u64,
        mode: u32,
    ) -> Result<Attributes, FsError> {
        self.dataset.writable()?;
        let directory = self.table.directory(directory)?;
        self.xattrs
            .check(context, &directory, ACCESS_WRITE | ACCESS_EXECUTE)?;
        file_flags::may_gain_names(&directory.state().inode)?;
        self.admission.take_metadata(2)?;
        let new = NewObject {
            kind: FileKind::File,
            mode,
            device: 0,
            target: &[],
        };
        let object = self.prepare(context, &directory, &new)?;
        let attributes = {
            let _gate = self.epoch.enter();
            let mut state = object.state();
            state.opens = 1;
            self.epoch.mark_inode(&object, &mut state);
            self.table.insert(object.clone());
            state.attributes(object.number)
        };
        self.commits.settle()?;
        Ok(attributes)
    }

    /// Another name for an object.
    pub(crate) fn make_link(
        &self,
        context: &Context,
        object: u64,
        directory: u64,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        self.dataset.writable()?;
        check_name(name)?;
        let object = self.table.object(object)?;
        if object.kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let directory = self.table.directory(directory)?;
        self.admission.take_metadata(2)?;
        let attributes = {
            let _names = directory.lock_inode();
            if self.directories.find(&directory, name)?.is_some() {
                return Err(FsError::Exists);
            }
            self.xattrs
                .check(context, &directory, ACCESS_WRITE | ACCESS_EXECUTE)?;
            let key = NameKey::new(name);
            let now = self.dataset.now();
            let _gate = self.epoch.enter();
            let mut state = directory.state();
            if state.inode.links == 0 {
                return Err(FsError::NotFound);
            }
            let attributes = {
                let mut linked = object.state();
                if linked.freed {
                    return Err(FsError::NotFound);
                }
                file_flags::may_gain_names(&state.inode)?;
                file_flags::may_change(&linked.inode)?;
                linked.inode.links = linked.inode.links.checked_add(1).ok_or(FsError::TooManyLinks)?;
                linked.inode.changed = now;
                self.epoch.owe_nothing(&mut linked);
                self.epoch.mark_inode(&object, &mut linked);
                linked.attributes(object.number)
            };
            if let Some(entries) = &mut state.entries {
                entries.change(
                    key,
                    Some(Target {
                        object: object.number,
                        kind: object.kind,
                    }),
                    Old::Absent,
                );
            }
            added(&mut state, now);
            self.epoch.mark_inode(&directory, &mut state);
            attributes
        };
        // What it is may lie beneath a pinned directory only now.
        self.dataset.environment().pins.note_moved(self.dataset.number());
        self.commits.settle()?;
        Ok(attributes)
    }
}

/// A name was added to a directory.
pub(crate) fn added(directory: &mut State, now: crate::records::Time) {
    directory.inode.size += 1;
    directory.inode.modified = now;
    directory.inode.changed = now;
}

/// A name was taken out of a directory.
pub(crate) fn removed(directory: &mut State, now: crate::records::Time) {
    directory.inode.size = directory.inode.size.saturating_sub(1);
    directory.inode.modified = now;
    directory.inode.changed = now;
}
