//! INIT: agreeing on version, limits and features.

use super::{
    constants::*,
    cursor::{Cursor, ProtocolError},
    reply::ReplyBuffer,
    request::Dialect,
};

/// Largest WRITE and READ we serve, bytes.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// What the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct InitRequest {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub features: u64,
}

impl InitRequest {
    pub(super) fn parse(mut body: Cursor<'_>) -> Result<Self, ProtocolError> {
        let (major, minor) = (body.u32()?, body.u32()?);
        let (max_readahead, low) = (body.u32()?, body.u32()?);
        let mut features = u64::from(low);
        if features & feature::INIT_EXT != 0 {
            features |= u64::from(body.u32()?) << 32;
        }
        Ok(Self {
            major,
            minor,
            max_readahead,
            features,
        })
    }
}

/// What a mount wants beyond what every mount wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wishes {
    /// POSIX ACLs: the kernel then checks permissions itself and leaves the umask to us.
    pub acl: bool,
    /// Requests through an io_uring ring.
    pub ring: bool,
    /// Background requests (readahead, asynchronous direct I/O, write-back of mmap) in flight before the kernel holds
    /// callers back.
    pub background: u16,
    /// Longest WRITE and READ, bytes; whole pages, at most [`TRANSFER_BYTES_MAX`].
    pub transfer_bytes: usize,
}

/// What was agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// The lesser of both minor versions.
    pub minor: u32,
    /// Features in use.
    pub features: u64,
    /// Longest readahead, bytes.
    pub max_readahead: u32,
    /// Longest WRITE, bytes; READ is bounded by the same number of pages.
    pub max_write: u32,
    /// As [`Wishes::background`].
    pub background: u16,
}

impl Negotiated {
    /// Whether all of `features` are in use.
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// How requests are to be read from now on.
    pub fn dialect(&self) -> Dialect {
        Dialect {
            long_setxattr: self.has(feature::SETXATTR_EXT),
        }
    }

    /// Writes the answer.
    pub fn write(&self, reply: &mut ReplyBuffer) {
        let features = self.features;
        reply.u32(MAJOR);
        reply.u32(self.minor);
        reply.u32(self.max_readahead);
        reply.u32(features as u32);
        reply.u16(self.background);
        // From three quarters on the kernel takes the filesystem to be busy.
        reply.u16(self.background - self.background / 4);
        reply.u32(self.max_write);
        reply.u32(1); // Timestamps have a granularity of one nanosecond.
        reply.u16((self.max_write as usize / PAGE_BYTES) as u16);
        reply.u16(0);
        reply.u32((features >> 32) as u32);
        (0..7).for_each(|_| reply.u32(0));
    }
}

/// Chooses among what the kernel offers; `None` when its version is not one we talk.
///
/// - WRITEBACK_CACHE is never taken: writes would sit in the kernel beyond our own loss window and come in an
///   order of its choosing, which breaks "every crash state is a prefix in order".
/// - We are the only writer, so cached pages are dropped only when we say so (EXPLICIT_INVAL_DATA, no
///   AUTO_INVAL_DATA).
/// - READDIRPLUS_AUTO is not taken: a listing always brings attributes, so that what looks at each file afterwards
///   (`ls -l`, `find`, `du`, `rsync`) asks nothing more. With it only the first part of a listing would.
/// - EXPORT_SUPPORT: file handles stay good when the kernel has forgotten their nodes (`server/handles.rs`).
/// - Locks are not taken over: the kernel does them itself, which is right for a local filesystem.
/// - ATOMIC_O_TRUNC is not taken: opens cost no message (NO_OPEN_SUPPORT), truncation comes as SETATTR.
/// - ALLOW_IDMAP is taken, as permissions are the kernel's to check (`default_permissions`). Requests but those that make something
///   no longer tell a user then: who asks is looked for in `/proc` where it matters (`credentials.rs`).
/// - SYNCFS exists for fuseblk and virtio-fs only; syncfs(2) on a FUSE mount never reaches a server, which is why
///   the daemon commits by itself every few seconds.
pub fn negotiate(offer: &InitRequest, wishes: Wishes) -> Option<Negotiated> {
    if offer.major != MAJOR || offer.minor < MINOR_MIN {
        return None;
    }
    let mut wanted = feature::ASYNC_READ
        | feature::BIG_WRITES
        | feature::DO_READDIRPLUS
        | feature::ASYNC_DIO
        | feature::EXPORT_SUPPORT
        | feature::NO_OPEN_SUPPORT
        | feature::PARALLEL_DIROPS
        | feature::MAX_PAGES
        | feature::CACHE_SYMLINKS
        | feature::NO_OPENDIR_SUPPORT
        | feature::EXPLICIT_INVAL_DATA
        | feature::HANDLE_KILLPRIV_V2
        | feature::SETXATTR_EXT
        | feature::INIT_EXT
        | feature::CREATE_SUPP_GROUP
        | feature::HAS_EXPIRE_ONLY
        | feature::DIRECT_IO_ALLOW_MMAP
        | feature::ALLOW_IDMAP;
    if wishes.acl {
        wanted |= feature::POSIX_ACL | feature::DONT_MASK;
    }
    if wishes.ring {
        wanted |= feature::OVER_IO_URING;
    }
    let features = wanted & offer.features;
    let max_write = if features & feature::MAX_PAGES != 0 {
        wishes.transfer_bytes.clamp(PAGE_BYTES, TRANSFER_BYTES_MAX)
    } else {
        wishes.transfer_bytes.min(32 * PAGE_BYTES)
    };
    Some(Negotiated {
        minor: offer.minor.min(MINOR_MAX),
        features,
        max_readahead: offer.max_readahead.min(max_write as u32),
        max_write: max_write as u32,
        background: wishes.background,
    })
}
