//! Permission checks: mode, owner, groups, ACL, sticky directories; and what privileges a change takes away.
//!
//! Invariant: a trusted context (the kernel has checked) passes everything here.

use super::{acl::Acl, context::Context, fs_error::FsError, tree::ACCESS_EXECUTE};
use crate::records::{FileKind, InodeRecord};

pub(crate) const SETUID: u32 = 0o4000;
pub(crate) const SETGID: u32 = 0o2000;
/// Both.
pub(crate) const SET_ID: u32 = SETUID | SETGID;
pub(crate) const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o010;

/// Whether the caller may do `mask` (ACCESS_*) with an object. `acl` is the value of its access ACL, if it has one.
pub(crate) fn check(
    context: &Context,
    inode: &InodeRecord,
    acl: Option<&[u8]>,
    mask: u32,
) -> Result<(), FsError> {
    if context.trusted || mask == 0 {
        return Ok(());
    }
    if context.is_root() {
        let executable = inode.kind == FileKind::Directory || inode.mode & 0o111 != 0;
        return if mask & ACCESS_EXECUTE != 0 && !executable {
            Err(FsError::AccessDenied)
        } else {
            Ok(())
        };
    }
    let permitted = match acl {
        Some(value) => Acl::parse(value)?.permits(context, inode.uid, inode.gid, mask),
        None => {
            let bits = if context.uid == inode.uid {
                inode.mode >> 6
            } else if context.in_group(inode.gid) {
                inode.mode >> 3
            } else {
                inode.mode
            };
            bits & mask == mask
        }
    };
    if permitted {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

/// Whether the caller may take the name of `victim` out of `directory` as far as the sticky bit is concerned.
pub(crate) fn check_sticky(
    context: &Context,
    directory: &InodeRecord,
    victim_uid: u32,
) -> Result<(), FsError> {
    let free = context.trusted
        || directory.mode & STICKY == 0
        || context.is_root()
        || context.uid == directory.uid
        || context.uid == victim_uid;
    if free { Ok(()) } else { Err(FsError::NotPermitted) }
}

/// Whether the caller owns the object, or may act as if.
pub(crate) fn check_owner(context: &Context, inode: &InodeRecord) -> Result<(), FsError> {
    let owns = context.trusted || context.is_root() || context.uid == inode.uid;
    if owns { Ok(()) } else { Err(FsError::NotPermitted) }
}

/// The mode without what a change of owner takes away, as Linux has it (`setattr_should_drop_suidgid`): setuid, and setgid
/// where it is a privilege (with execute permission of the group), or where the caller could not set it.
pub(crate) fn without_set_id(context: &Context, inode: &InodeRecord) -> u32 {
    let mode = inode.mode;
    if inode.kind == FileKind::Directory || mode & SET_ID == 0 {
        return mode;
    }
    let may_keep = || !context.strips_set_id() || context.in_group(inode.gid);
    let goes = mode & SETGID != 0 && (mode & GROUP_EXECUTE != 0 || !may_keep());
    mode & !SETUID & !(if goes { SETGID } else { 0 })
}

/// The mode after a change of content: the same, unless the caller has CAP_FSETID.
pub(crate) fn after_write(context: &Context, inode: &InodeRecord) -> u32 {
    if inode.mode & SET_ID != 0 && context.strips_set_id() {
        without_set_id(context, inode)
    } else {
        inode.mode
    }
}

/// Group and mode of a new object in `directory`.
pub(crate) fn inherit(context: &Context, directory: &InodeRecord, kind: FileKind, mode: u32) -> (u32, u32) {
    if directory.mode & SETGID == 0 {
        return (context.gid, mode);
    }
    if kind == FileKind::Directory {
        return (directory.gid, mode | SETGID);
    }
    let keeps = context.is_root()
        || mode & (SETGID | GROUP_EXECUTE) != SETGID | GROUP_EXECUTE
        || context.in_group(directory.gid);
    (directory.gid, if keeps { mode } else { mode & !SETGID })
}
