//! Extended attributes: loading, reading, changing; which namespace needs what.
//!
//! Invariants: the attributes of an object are wholly in RAM or not at all; a change that is not committed is in the
//! log; the flags of the inode say whether there are any, so that most objects are never asked.

use crate::{
    commit::CommitQueue,
    live::{DatasetState, DirtyEpoch, ObjectTable},
    objects::{HAS_ACL, HAS_XATTRS, Object, State, Xattrs, put_xattr},
    posix::{
        ACCESS_NAME, ACCESS_READ, ACCESS_WRITE, Acl, AttributeMode, Context, DEFAULT_NAME, FsError,
        NAME_BYTES_MAX, file_flags, permission,
    },
    records::{FileKind, keys, split_value},
    writing::Admission,
};
use std::sync::Arc;

/// Largest value, bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 65_536;
/// Largest list of names, each with a NUL, bytes.
const NAMES_BYTES_MAX: usize = 65_536;

fn value_of(state: &State, name: &[u8]) -> Option<Arc<[u8]>> {
    state.xattrs.as_ref()?.get(name)
}

/// See the module.
pub(crate) struct ExtendedAttributes {
    dataset: Arc<DatasetState>,
    table: Arc<ObjectTable>,
    epoch: Arc<DirtyEpoch>,
    commits: Arc<CommitQueue>,
    admission: Arc<Admission>,
}

impl ExtendedAttributes {
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        table: &Arc<ObjectTable>,
        epoch: &Arc<DirtyEpoch>,
        commits: &Arc<CommitQueue>,
        admission: &Arc<Admission>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
            epoch: epoch.clone(),
            commits: commits.clone(),
            admission: admission.clone(),
        })
    }

    /// Brings the attributes into RAM.
    pub(crate) fn load_xattrs(&self, object: &Arc<Object>) -> Result<(), FsError> {
        loop {
            {
                let mut state = object.state();
                if state.xattrs.is_some() {
                    return Ok(());
                }
                if state.inode.flags & HAS_XATTRS == 0 {
                    state.xattrs = Some(Box::default());
                    return Ok(());
                }
            }
            let (from, to) = keys::xattr_range(self.dataset.number(), object.number);
            let mut loaded = Xattrs::default();
            for found in self.dataset.records().each(from, to, 1024) {
                let (key, value) = found?;
                let (birth, payload) = split_value(&value)?;
                loaded.load(keys::parse_xattr(&key)?, payload, birth);
            }
            let mut state = object.state();
            // Attributes in RAM are never dropped while the object is used, so nothing changed them meanwhile.
            if state.xattrs.is_none() {
                state.xattrs = Some(Box::new(loaded));
            }
        }
    }

    /// The value of an attribute, without any check.
    pub(crate) fn xattr(&self, object: &Arc<Object>, name: &[u8]) -> Result<Option<Arc<[u8]>>, FsError> {
        {
            let state = object.state();
            if state.inode.flags & HAS_XATTRS == 0 {
                return Ok(None);
            }
            if state.xattrs.is_some() {
                return Ok(value_of(&state, name));
            }
        }
        self.load_xattrs(object)?;
        Ok(value_of(&object.state(), name))
    }

    /// Whether the caller may do `mask` (ACCESS_*).
    pub(crate) fn check(&self, context: &Context, object: &Arc<Object>, mask: u32) -> Result<(), FsError> {
        if context.trusted {
            return Ok(());
        }
        let flags = object.state().inode.flags;
        let acl = if flags & HAS_ACL != 0 {
            self.xattr(object, ACCESS_NAME)?
        } else {
            None
        };
        let state = object.state();
        permission::check(context, &state.inode, acl.as_deref(), mask)
    }

    pub(crate) fn get_xattr(&self, object: u64, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let object = self.table.object(object)?;
        self.xattr(&object, name)?
            .map(|value| value.to_vec())
            .ok_or(FsError::NoAttribute)
    }

    pub(crate) fn list_xattrs(&self, object: u64) -> Result<Vec<Vec<u8>>, FsError> {
        let object = self.table.object(object)?;
        self.load_xattrs(&object)?;
        let state = object.state();
        let Some(xattrs) = &state.xattrs else {
            return Ok(Vec::new());
        };
        Ok(xattrs.names().map(|name| name.to_vec()).collect())
    }

    /// Whether the caller may change this attribute.
    fn check_xattr(&self, context: &Context, object: &Arc<Object>, name: &[u8]) -> Result<(), FsError> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(&0) {
            return Err(FsError::Range);
        }
        let is_acl = name == ACCESS_NAME || name == DEFAULT_NAME;
        let known = [&b"user."[..], b"trusted.", b"security."]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        if !is_acl && !known {
            return Err(FsError::NotSupported);
        }
        if is_acl && object.kind == FileKind::SymbolicLink {
            return Err(FsError::NotSupported);
        }
        file_flags::may_change(&object.state().inode)?;
        if context.trusted {
            return Ok(());
        }
        if is_acl {
            return permission::check_owner(context, &object.state().inode);
        }
        if !name.starts_with(b"user.") {
            return if context.is_root() {
                Ok(())
            } else {
                Err(FsError::NotPermitted)
            };
        }
        if !matches!(object.kind, FileKind::File | FileKind::Directory) {
            return Err(FsError::NotPermitted);
        }
        self.check(context, object, ACCESS_WRITE)?;
        let state = object.state();
        if object.kind == FileKind::Directory && state.inode.mode & permission::STICKY != 0 {
            permission::check_owner(context, &state.inode)?;
        }
        Ok(())
    }

    /// Whether the caller may read this attribute.
    pub(crate) fn check_xattr_read(
        &self,
        context: &Context,
        object: u64,
        name: &[u8],
    ) -> Result<(), FsError> {
        if context.trusted || context.is_root() {
            return Ok(());
        }
        if name.starts_with(b"trusted.") {
            return Err(FsError::NoAttribute);
        }
        if name.starts_with(b"user.") {
            self.check(context, &self.table.object(object)?, ACCESS_READ)
        } else {
            Ok(())
        }
    }

    pub(crate) fn set_xattr(
        &self,
        context: &Context,
        object: u64,
        name: &[u8],
        value: &[u8],
        mode: AttributeMode,
    ) -> Result<(), FsError> {
        self.dataset.writable()?;
        let object = self.table.object(object)?;
        self.check_xattr(context, &object, name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        let acl = match name {
            ACCESS_NAME | DEFAULT_NAME if value.is_empty() || value.len() == 4 => {
                // An empty list takes the ACL away.
                return match self.remove_xattr(context, object.number, name) {
                    Err(FsError::NoAttribute) => Ok(()),
                    other => other,
                };
            }
            DEFAULT_NAME if object.kind != FileKind::Directory => return Err(FsError::AccessDenied),
            ACCESS_NAME | DEFAULT_NAME => Some(Acl::parse(value)?),
            _ => None,
        };
        self.load_xattrs(&object)?;
        self.admission.take_metadata(2 + value.len() as u64 / 512)?;
        {
            let _inode = object.lock_inode();
            let now = self.dataset.now();
            let _gate = self.epoch.enter();
            let mut state = object.state();
            if state.freed {
                return Err(FsError::Stale);
            }
            let exists = value_of(&state, name).is_some();
            match mode {
                AttributeMode::Create if exists => return Err(FsError::Exists),
                AttributeMode::Replace if !exists => return Err(FsError::NoAttribute),
                _ => {}
            }
            if !exists && !fits(&state, name) {
                return Err(FsError::NoSpace);
            }
            match &acl {
                Some(acl) if name == ACCESS_NAME => {
                    let mut bits = state.inode.mode & !0o777 | acl.mode();
                    if !context.trusted && !context.is_root() && !context.in_group(state.inode.gid) {
                        bits &= !permission::SETGID;
                    }
                    state.inode.mode = bits;
                    let kept = (!acl.is_minimal()).then(|| acl.encode().into());
                    put_xattr(&mut state, name, kept);
                }
                Some(acl) => put_xattr(&mut state, name, Some(acl.encode().into())),
                None => put_xattr(&mut state, name, Some(value.into())),
            }
            state.inode.changed = now;
            self.epoch.mark_inode(&object, &mut state);
        }
        self.commits.settle()
    }

    pub(crate) fn remove_xattr(&self, context: &Context, object: u64, name: &[u8]) -> Result<(), FsError> {
        self.dataset.writable()?;
        let object = self.table.object(object)?;
        self.check_xattr(context, &object, name)?;
        self.load_xattrs(&object)?;
        {
            let _inode = object.lock_inode();
            let now = self.dataset.now();
            let _gate = self.epoch.enter();
            let mut state = object.state();
            if value_of(&state, name).is_none() {
                return Err(FsError::NoAttribute);
            }
            put_xattr(&mut state, name, None);
            state.inode.changed = now;
            self.epoch.mark_inode(&object, &mut state);
        }
        self.commits.settle()
    }
}

fn fits(state: &State, name: &[u8]) -> bool {
    let Some(xattrs) = &state.xattrs else { return true };
    xattrs.names().map(|name| name.len() + 1).sum::<usize>() + name.len() < NAMES_BYTES_MAX
}
