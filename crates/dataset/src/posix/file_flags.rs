//! `FileFlags`: what `chattr` sets and `lsattr` shows.
//!
//! Invariants: they hold for everybody, user 0 and the kernel included; they stand in the flags of the inode, in bits of their own,
//! as Linux numbers them (`FS_IMMUTABLE_FL` and so on); an object that may not be changed can still lose them.

use super::fs_error::FsError;
use crate::records::InodeRecord;

const IMMUTABLE: u32 = 0x10;
const APPEND_ONLY: u32 = 0x20;
const NO_DUMP: u32 = 0x40;
pub(crate) const NO_ACCESS_TIME: u32 = 0x80;
const ALL: u32 = IMMUTABLE | APPEND_ONLY | NO_DUMP | NO_ACCESS_TIME;
/// What a new object takes over from its directory, as on ext4.
const INHERITED: u32 = NO_DUMP | NO_ACCESS_TIME;

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileFlags {
    /// Nothing of it changes: neither content nor attributes nor names (of it, and in it).
    pub immutable: bool,
    /// Content comes only at the end, and names in it do not go.
    pub append_only: bool,
    /// Backups of the old kind leave it out.
    pub no_dump: bool,
    /// Reading it leaves the time of the last access.
    pub no_access_time: bool,
}

impl FileFlags {
    /// Of an inode's flags.
    pub(crate) fn of(inode: &InodeRecord) -> Self {
        Self {
            immutable: inode.flags & IMMUTABLE != 0,
            append_only: inode.flags & APPEND_ONLY != 0,
            no_dump: inode.flags & NO_DUMP != 0,
            no_access_time: inode.flags & NO_ACCESS_TIME != 0,
        }
    }

    /// As they stand in an inode, in place of those it has.
    pub(crate) fn put_into(self, inode: &mut InodeRecord) {
        inode.flags = inode.flags & !ALL | self.bits();
    }

    /// Whether who has these may be kept from changes where `inode` is not, or the other way round.
    pub(crate) fn protects_otherwise(self, inode: &InodeRecord) -> bool {
        (inode.flags ^ self.bits()) & (IMMUTABLE | APPEND_ONLY) != 0
    }

    fn bits(self) -> u32 {
        [
            (self.immutable, IMMUTABLE),
            (self.append_only, APPEND_ONLY),
            (self.no_dump, NO_DUMP),
            (self.no_access_time, NO_ACCESS_TIME),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(0, |bits, (_, bit)| bits | bit)
    }
}

fn refuse_if(refused: bool) -> Result<(), FsError> {
    match refused {
        true => Err(FsError::NotPermitted),
        false => Ok(()),
    }
}

/// Whether an inode with these flags is kept from changes.
pub(crate) fn is_protected(flags: u32) -> bool {
    flags & (IMMUTABLE | APPEND_ONLY) != 0
}

/// Whether names may come into a directory.
pub(crate) fn may_gain_names(directory: &InodeRecord) -> Result<(), FsError> {
    refuse_if(directory.flags & IMMUTABLE != 0)
}

/// Whether names may go out of a directory.
pub(crate) fn may_lose_names(directory: &InodeRecord) -> Result<(), FsError> {
    refuse_if(is_protected(directory.flags))
}

/// Whether names, mode, owner, times and extended attributes of an object may change, and content that it has.
pub(crate) fn may_change(inode: &InodeRecord) -> Result<(), FsError> {
    refuse_if(is_protected(inode.flags))
}

/// Whether anything of an object may change: its times as they are now, room reserved behind it.
pub(crate) fn may_touch(inode: &InodeRecord) -> Result<(), FsError> {
    refuse_if(inode.flags & IMMUTABLE != 0)
}

/// Whether content may be written at `offset`.
pub(crate) fn may_write_at(inode: &InodeRecord, offset: u64) -> Result<(), FsError> {
    refuse_if(inode.flags & IMMUTABLE != 0 || (inode.flags & APPEND_ONLY != 0 && offset < inode.size))
}

/// The flags with which an object begins in a directory.
pub(crate) fn inherited(directory: &InodeRecord) -> u32 {
    directory.flags & INHERITED
}
