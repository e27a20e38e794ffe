//! `Attributes` and `SetAttributes`: what `stat` shows and what `chmod`, `chown`, `truncate` and `utimensat` change.

use crate::records::{FileKind, Time};

/// What `stat` shows of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Number, 1 for the root directory; used twice only as [`generation`] says.
    pub object: u64,
    /// Type.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky (0o7777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links; a directory has 2 and one for each directory in it.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Space mapped, in units of 512 bytes, before compression and dedup.
    pub blocks512: u64,
    /// Last read.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of content or attributes.
    pub changed: Time,
    /// Creation.
    pub created: Time,
    /// Device number of a device node.
    pub device: u32,
    /// Tells apart two objects that had the same number ([`generation`]).
    pub generation: u32,
}

/// The generation of an object, from the time at which it was made: kept for as long as it lives, wherever its record
/// goes. A number is given again only if a crash took the object that had it before its first commit; without a
/// generation a file handle from before the crash would then open another file. Never 0.
pub(crate) fn generation(created: Time) -> u32 {
    // The finalizer of SplitMix64.
    let mut mixed = created.as_nanos() as u64;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed >> 32) as u32).max(1)
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The clock's (UTIME_NOW; needs only write permission).
    Now,
    /// This one (needs ownership).
    To(Time),
}

/// What to change; `None` leaves it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits, 0o7777.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size, bytes.
    pub size: Option<u64>,
    /// Time of the last read.
    pub accessed: Option<SetTime>,
    /// Time of the last change of the content.
    pub modified: Option<SetTime>,
    /// The caller has the file open for writing: a change of size needs no permission (ftruncate).
    pub through_handle: bool,
}

/// Sizes as `statfs` shows them, bytes and objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsStatistics {
    /// Room in all.
    pub size_bytes: u64,
    /// Room left.
    pub available_bytes: u64,
    /// Mapped by this dataset, before compression and dedup.
    pub used_bytes: u64,
    /// Objects in this dataset.
    pub objects: u64,
}
