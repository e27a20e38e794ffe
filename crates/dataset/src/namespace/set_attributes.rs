//! chmod, chown, truncate, utimensat, chattr; what reading and copying content changes of an inode.
//!
//! Invariants: all of one call is checked before any of it is done; the ACL's mask follows chmod; a change of owner
//! or content takes setuid, setgid and capabilities away by Linux's rules.

use super::lookup_create::Namespace;
use crate::{
    objects::{HAS_ACL, HAS_CAPABILITY, Object, State, drop_capability, lock_all, put_xattr},
    posix::{
        ACCESS_NAME, ACCESS_WRITE, Acl, Attributes, Context, FileFlags, FsError, SETGID, SetAttributes,
        SetTime, file_flags, permission,
    },
    quota::OfReserve,
    records::{FILE_BYTES_MAX, FileKind, Time},
};
use std::sync::Arc;

impl Namespace {
    pub(crate) fn change_attributes(
        &self,
        context: &Context,
        object: u64,
        change: &SetAttributes,
    ) -> Result<Attributes, FsError> {
        self.dataset.writable()?;
        let object = self.table.object(object)?;
        let loads = object.state().inode.flags & (HAS_ACL | HAS_CAPABILITY) != 0;
        if loads {
            self.xattrs.load_xattrs(&object)?;
        }
        // To the size that it has, too: what is preallocated behind the end comes back.
        let is_cut = |size: u64| size <= object.state().inode.size;
        match change.size.is_some_and(is_cut) {
            true => {
                let is_young = || self.lifetimes.is_young(&object);
                self.admission
                    .take_metadata_to_remove(1, OfReserve::Removals, &is_young)?;
            }
            false => self.admission.take_metadata_always(1, OfReserve::Changes)?,
        }
        let attributes = {
            let _inode = object.lock_inode();
            self.check_change(context, &object, change)?;
            let now = self.dataset.now();
            let mut apply = |state: &mut State| apply(context, state, change, now);
            match change.size {
                Some(size) => self.writer.truncate_object(&object, size, &mut apply)?,
                None => self.change_inode(&object, &mut apply)?,
            }
            object.state().attributes(object.number)
        };
        self.commits.settle()?;
        Ok(attributes)
    }

    /// The flags of an object.
    pub(crate) fn file_flags(&self, object: u64) -> Result<FileFlags, FsError> {
        Ok(FileFlags::of(&self.table.object(object)?.state().inode))
    }

    /// Sets them all. Who may change which (CAP_LINUX_IMMUTABLE) is known where the caller is: here, user 0.
    pub(crate) fn set_file_flags(
        &self,
        context: &Context,
        object: u64,
        flags: FileFlags,
    ) -> Result<(), FsError> {
        self.dataset.writable()?;
        let object = self.table.object(object)?;
        if !matches!(object.kind, FileKind::File | FileKind::Directory) {
            return Err(FsError::NotSupported);
        }
        self.admission.take_metadata_always(1, OfReserve::Changes)?;
        {
            let _inode = object.lock_inode();
            {
                let state = object.state();
                permission::check_owner(context, &state.inode)?;
                let is_protection = flags.protects_otherwise(&state.inode);
                if is_protection && !context.trusted && !context.is_root() {
                    return Err(FsError::NotPermitted);
                }
            }
            let now = self.dataset.now();
            self.change_inode(&object, &mut |state| {
                flags.put_into(&mut state.inode);
                state.inode.changed = now;
            })?;
        }
        self.commits.settle()
    }

    /// Updates the time of the last read by the `relatime` rule: if it is not newer than the last change, or a day
    /// old. Costs no room: it may be lost with the pool full.
    pub(crate) fn accessed(&self, object: &Arc<Object>) {
        if self.dataset.writable().is_err() {
            return;
        }
        let now = self.dataset.now();
        let _gate = self.epoch.enter();
        let mut state = object.state();
        let inode = &state.inode;
        let old = inode.accessed <= inode.modified
            || inode.accessed <= inode.changed
            || now.seconds.saturating_sub(inode.accessed.seconds) >= 24 * 60 * 60;
        if old && !state.freed && inode.flags & file_flags::NO_ACCESS_TIME == 0 {
            state.inode.accessed = now;
            self.epoch.mark_inode(object, &mut state);
        }
    }

    /// Copies at most `length` bytes, less at the end of the source; returns how many.
    pub(crate) fn copy_objects(
        &self,
        context: &Context,
        (from, from_offset): (u64, u64),
        (to, to_offset): (u64, u64),
        length: u64,
    ) -> Result<u64, FsError> {
        self.dataset.writable()?;
        let (source, target) = (self.table.object(from)?, self.table.object(to)?);
        for object in [&source, &target] {
            match object.kind {
                FileKind::File => {}
                FileKind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid),
            }
        }
        self.xattrs.load_xattrs(&target)?;
        self.admission.take_metadata(2)?;
        let copied = {
            let _inodes = lock_all(&[&source, &target]);
            file_flags::may_change(&target.state().inode)?;
            let size = source.state().inode.size;
            let length = length.min(size.saturating_sub(from_offset));
            let end = to_offset
                .checked_add(length)
                .filter(|end| *end <= FILE_BYTES_MAX)
                .ok_or(FsError::FileTooBig)?;
            if length == 0 {
                return Ok(0);
            }
            if from == to && from_offset < end && to_offset < from_offset + length {
                return Err(FsError::Invalid);
            }
            let now = self.dataset.now();
            let mut after = |state: &mut State| {
                state.inode.mode = permission::after_write(context, &state.inode);
                drop_capability(state);
                state.inode.modified = now;
                state.inode.changed = now;
            };
            self.writer
                .copy(&source, from_offset, &target, to_offset, length, &mut after)?
        };
        self.commits.settle()?;
        Ok(copied)
    }

    /// Changes what is in the inode alone. The inode lock is held.
    pub(crate) fn change_inode(
        &self,
        object: &Arc<Object>,
        apply: &mut dyn FnMut(&mut State),
    ) -> Result<(), FsError> {
        let _gate = self.epoch.enter();
        let mut state = object.state();
        if state.freed {
            return Err(FsError::Stale);
        }
        apply(&mut state);
        self.epoch.mark_inode(object, &mut state);
        Ok(())
    }

    fn check_change(
        &self,
        context: &Context,
        object: &Arc<Object>,
        change: &SetAttributes,
    ) -> Result<(), FsError> {
        {
            let inode = &object.state().inode;
            let to = |time: &Option<SetTime>| matches!(time, Some(SetTime::To(_)));
            let only_now = change.mode.is_none()
                && change.uid.is_none()
                && change.gid.is_none()
                && change.size.is_none()
                && !to(&change.accessed)
                && !to(&change.modified);
            match only_now {
                true => file_flags::may_touch(inode)?,
                false => file_flags::may_change(inode)?,
            }
        }
        if change.size.is_some() {
            match object.kind {
                FileKind::File => {}
                FileKind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid),
            }
            if !change.through_handle {
                self.xattrs.check(context, object, ACCESS_WRITE)?;
            }
        }
        if change.mode.is_some() && object.kind == FileKind::SymbolicLink {
            return Err(FsError::NotSupported);
        }
        if context.trusted || context.is_root() {
            return Ok(());
        }
        let owner = {
            let state = object.state();
            let inode = &state.inode;
            let owner = context.uid == inode.uid;
            if change.mode.is_some() && !owner {
                return Err(FsError::NotPermitted);
            }
            if change.uid.is_some_and(|uid| !owner || uid != inode.uid) {
                return Err(FsError::NotPermitted);
            }
            if change
                .gid
                .is_some_and(|gid| !owner || (gid != inode.gid && !context.in_group(gid)))
            {
                return Err(FsError::NotPermitted);
            }
            owner
        };
        if !owner {
            let times = [change.accessed, change.modified];
            if times.iter().flatten().any(|time| matches!(time, SetTime::To(_))) {
                return Err(FsError::NotPermitted);
            }
            // A truncation through a handle sets the times itself.
            if times.iter().any(Option::is_some) && change.size.is_none() {
                self.xattrs.check(context, object, ACCESS_WRITE)?;
            }
        }
        Ok(())
    }
}

fn apply(context: &Context, state: &mut State, change: &SetAttributes, now: Time) {
    let unprivileged = !context.trusted && !context.is_root();
    if change.uid.is_some() || change.gid.is_some() {
        state.inode.mode = permission::without_set_id(context, &state.inode);
        drop_capability(state);
    }
    if change.size.is_some() {
        state.inode.mode = permission::after_write(context, &state.inode);
        drop_capability(state);
        state.inode.modified = now;
    }
    if let Some(uid) = change.uid {
        state.inode.uid = uid;
    }
    if let Some(gid) = change.gid {
        state.inode.gid = gid;
    }
    if let Some(mode) = change.mode {
        let mut mode = mode & 0o7777;
        if unprivileged && !context.in_group(state.inode.gid) {
            mode &= !SETGID;
        }
        state.inode.mode = mode;
        follow_mode(state, mode);
    }
    let time = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    if let Some(accessed) = change.accessed {
        state.inode.accessed = time(accessed);
    }
    if let Some(modified) = change.modified {
        state.inode.modified = time(modified);
    }
    state.inode.changed = now;
}

/// Lets the access ACL follow the mode.
fn follow_mode(state: &mut State, mode: u32) {
    if state.inode.flags & HAS_ACL == 0 {
        return;
    }
    let value = state.xattrs.as_ref().and_then(|xattrs| xattrs.get(ACCESS_NAME));
    if let Some(mut acl) = value.and_then(|value| Acl::parse(&value).ok()) {
        acl.apply_mode(mode);
        put_xattr(state, ACCESS_NAME, Some(acl.encode().into()));
    }
}
