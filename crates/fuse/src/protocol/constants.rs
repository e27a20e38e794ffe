//! Numbers of the protocol, by their names in `linux/fuse.h` without the prefix where that is unambiguous.
#![allow(missing_docs)]

/// The kernel's and our major version.
pub const MAJOR: u32 = 7;
/// The oldest minor version we talk (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// The newest minor version we know (Linux 6.18).
pub const MINOR_MAX: u32 = 45;
/// The root directory's node.
pub const ROOT_NODE: u64 = 1;

/// Bytes of `fuse_in_header`.
pub const IN_HEADER_BYTES: usize = 40;
/// Bytes of `fuse_write_in`.
pub const WRITE_IN_BYTES: usize = 40;
/// Bytes of `fuse_out_header`.
pub const OUT_HEADER_BYTES: usize = 16;

/// Operations.
pub mod operation {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
    /// One more than the highest we know.
    pub const COUNT: usize = 54;

    /// What an operation is called.
    pub fn name(operation: u32) -> &'static str {
        match operation {
            LOOKUP => "LOOKUP",
            FORGET => "FORGET",
            GETATTR => "GETATTR",
            SETATTR => "SETATTR",
            READLINK => "READLINK",
            SYMLINK => "SYMLINK",
            MKNOD => "MKNOD",
            MKDIR => "MKDIR",
            UNLINK => "UNLINK",
            RMDIR => "RMDIR",
            RENAME => "RENAME",
            LINK => "LINK",
            OPEN => "OPEN",
            READ => "READ",
            WRITE => "WRITE",
            STATFS => "STATFS",
            RELEASE => "RELEASE",
            FSYNC => "FSYNC",
            SETXATTR => "SETXATTR",
            GETXATTR => "GETXATTR",
            LISTXATTR => "LISTXATTR",
            REMOVEXATTR => "REMOVEXATTR",
            FLUSH => "FLUSH",
            INIT => "INIT",
            OPENDIR => "OPENDIR",
            READDIR => "READDIR",
            RELEASEDIR => "RELEASEDIR",
            FSYNCDIR => "FSYNCDIR",
            GETLK => "GETLK",
            SETLK => "SETLK",
            SETLKW => "SETLKW",
            ACCESS => "ACCESS",
            CREATE => "CREATE",
            INTERRUPT => "INTERRUPT",
            BMAP => "BMAP",
            DESTROY => "DESTROY",
            IOCTL => "IOCTL",
            POLL => "POLL",
            NOTIFY_REPLY => "NOTIFY_REPLY",
            BATCH_FORGET => "BATCH_FORGET",
            FALLOCATE => "FALLOCATE",
            READDIRPLUS => "READDIRPLUS",
            RENAME2 => "RENAME2",
            LSEEK => "LSEEK",
            COPY_FILE_RANGE => "COPY_FILE_RANGE",
            SYNCFS => "SYNCFS",
            TMPFILE => "TMPFILE",
            STATX => "STATX",
            COPY_FILE_RANGE_64 => "COPY_FILE_RANGE_64",
            _ => "unknown",
        }
    }
}

/// Bits of INIT, request and reply.
pub mod feature {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `fuse_setattr_in.valid`.
pub mod set_attribute {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Reply to OPEN: do not drop the page cache.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// Reply to OPENDIR: the kernel may cache the listing.
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// `fuse_open_in.open_flags`.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: written back from the page cache, the credentials are the kernel's.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: the owner of locks is told. The kernel does so where it passes its page cache by, and only there.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `fuse_read_in.read_flags`: the same of a READ.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `fuse_write_in.write_flags`.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fuse_setxattr_in.setxattr_flags`.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `fuse_fsync_in.fsync_flags`.
pub const FSYNC_DATA_ONLY: u32 = 1 << 0;
/// Type of the request extension that carries groups.
pub const EXTENSION_GROUPS: u32 = 32;

/// Commands of IOCTL that the kernel sends for `lsattr`, `chattr` and `xfs_io` (`linux/fs.h`), and their data.
pub mod ioctl {
    pub const GET_FLAGS: u32 = 0x8008_6601;
    pub const SET_FLAGS: u32 = 0x4008_6602;
    pub const GET_VERSION: u32 = 0x8008_7601;
    pub const GET_XATTR: u32 = 0x801c_581f;
    pub const SET_XATTR: u32 = 0x401c_5820;
    /// Bytes of `struct fsxattr`.
    pub const XATTR_BYTES: usize = 28;
    /// (`FS_*_FL`, `FS_XFLAG_*`) of an immutable file, one that is only appended to, one left out of dumps, and one of which
    /// the time of the last access stays.
    pub const IMMUTABLE: (u32, u32) = (0x10, 0x8);
    pub const APPEND: (u32, u32) = (0x20, 0x10);
    pub const NO_DUMP: (u32, u32) = (0x40, 0x80);
    pub const NO_ACCESS_TIME: (u32, u32) = (0x80, 0x40);
}

/// Requests through io_uring (Linux 6.14): commands and the layout of `fuse_uring_req_header`.
pub mod ring {
    /// Gives the kernel the memory of an entry and waits for a request.
    pub const COMMAND_REGISTER: u32 = 1;
    /// Answers a request and waits for the next.
    pub const COMMAND_COMMIT_AND_FETCH: u32 = 2;
    /// Bytes of `fuse_uring_req_header`: the header of request and reply, that of the operation, that of the entry.
    pub const HEADERS_BYTES: usize = 288;
    /// Where the header of the operation lies in it, and how much room it has.
    pub const OPERATION_AT: usize = 128;
    pub const OPERATION_BYTES_MAX: usize = 128;
    /// Where the number lies by which a request is answered.
    pub const COMMIT_ID_AT: usize = 264;
    /// Where the length of the payload lies, of request and reply.
    pub const PAYLOAD_BYTES_AT: usize = 272;
}

/// Codes of messages to the kernel that no request asked for.
pub mod notification {
    pub const INVALIDATE_INODE: i32 = 2;
    pub const INVALIDATE_ENTRY: i32 = 3;
    /// Linux 6.16: all cached names are looked up again.
    pub const INCREASE_EPOCH: i32 = 8;
}
