//! `Request`: one message of the kernel, read from bytes.

use super::{
    constants::{operation as op, *},
    cursor::{Cursor, ProtocolError},
    init::InitRequest,
};

/// What every request starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole request, bytes.
    pub length: u32,
    /// Which operation (`operation::*`).
    pub operation: u32,
    /// Names the request; the reply carries it.
    pub unique: u64,
    /// The node it is about.
    pub node: u64,
    /// Who asks.
    pub uid: u32,
    /// Who asks.
    pub gid: u32,
    /// Who asks; 0 from outside our process namespace.
    pub pid: u32,
    /// Length of what follows the operation's own fields, bytes.
    pub extension_bytes: usize,
    /// A supplementary group of the caller that the new object's directory belongs to (CREATE_SUPP_GROUP).
    pub group: Option<u32>,
}

/// Fields of SETATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SetAttributesIn {
    /// Which of the fields count (`set_attribute::*`).
    pub valid: u32,
    pub size: u64,
    pub accessed_seconds: i64,
    pub modified_seconds: i64,
    pub accessed_nanos: u32,
    pub modified_nanos: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The nodes and counts of a BATCH_FORGET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgetItems<'a>(&'a [u8]);

impl ForgetItems<'_> {
    /// (node, lookups to forget), as many as really came.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.chunks_exact(16).map(|item| {
            let mut cursor = Cursor::new(item);
            (cursor.u64().unwrap_or(0), cursor.u64().unwrap_or(0))
        })
    }
}

/// What the kernel asks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(ForgetItems<'a>),
    GetAttributes,
    SetAttributes(SetAttributesIn),
    ReadLink,
    SymbolicLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        mode: u32,
        device: u32,
        umask: u32,
        name: &'a [u8],
    },
    MakeDirectory {
        mode: u32,
        umask: u32,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        to_node: u64,
        flags: u32,
        name: &'a [u8],
        to_name: &'a [u8],
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
        kill_privileges: bool,
    },
    Read {
        offset: u64,
        size: u32,
        read_flags: u32,
        flags: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        write_flags: u32,
        flags: u32,
    },
    StatFs,
    Release,
    Fsync {
        data_only: bool,
    },
    SetExtended {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        kill_setgid: bool,
    },
    GetExtended {
        name: &'a [u8],
        size: u32,
    },
    ListExtended {
        size: u32,
    },
    RemoveExtended {
        name: &'a [u8],
    },
    Flush,
    Init(InitRequest),
    OpenDirectory,
    ReadDirectory {
        offset: u64,
        size: u32,
        plus: bool,
    },
    ReleaseDirectory,
    FsyncDirectory {
        data_only: bool,
    },
    Access {
        mask: u32,
    },
    Create {
        flags: u32,
        mode: u32,
        umask: u32,
        name: &'a [u8],
    },
    TemporaryFile {
        flags: u32,
        mode: u32,
        umask: u32,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    /// `data` is what the caller hands over; `out_bytes` is how much it wants.
    Ioctl {
        command: u32,
        data: &'a [u8],
        out_bytes: u32,
    },
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    /// `wide`: the answer is 64 bits long (COPY_FILE_RANGE_64).
    CopyRange {
        offset: u64,
        to_node: u64,
        to_offset: u64,
        length: u64,
        wide: bool,
    },
    Statx {
        mask: u32,
    },
    SyncFs,
    /// Anything else: to be answered with ENOSYS.
    Unknown,
}

impl Request<'_> {
    /// Whether the kernel waits for what comes of it. It does not where it only lets go of something: that comes some
    /// time after the call that caused it.
    pub fn is_awaited(&self) -> bool {
        !matches!(
            self,
            Request::Forget { .. }
                | Request::BatchForget(_)
                | Request::Release
                | Request::ReleaseDirectory
                | Request::Interrupt { .. }
        )
    }
}

/// What of the protocol's history the kernel at the other end has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// SETXATTR has its long form (negotiated by SETXATTR_EXT, Linux 5.12).
    pub long_setxattr: bool,
}

/// Reads one request. `bytes` is what one read of the device returned.
pub fn parse(bytes: &[u8], dialect: Dialect) -> Result<(Header, Request<'_>), ProtocolError> {
    let mut header = parse_header(bytes)?;
    let whole = bytes
        .get(IN_HEADER_BYTES..header.length as usize)
        .ok_or(ProtocolError::Truncated)?;
    let body_bytes = whole
        .len()
        .checked_sub(header.extension_bytes)
        .ok_or(ProtocolError::Truncated)?;
    let (body, extensions) = whole.split_at(body_bytes);
    header.group = parse_group(extensions);
    let request = parse_body(header.operation, Cursor::new(body), dialect)?;
    Ok((header, request))
}

fn parse_header(bytes: &[u8]) -> Result<Header, ProtocolError> {
    let mut cursor = Cursor::new(bytes);
    let length = cursor.u32()?;
    let operation = cursor.u32()?;
    let (unique, node) = (cursor.u64()?, cursor.u64()?);
    let (uid, gid, pid) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
    let extension_bytes = usize::from(cursor.u16()?) * 8;
    cursor.skip(2)?;
    if (length as usize) < IN_HEADER_BYTES || length as usize > bytes.len() {
        return Err(ProtocolError::Truncated);
    }
    Ok(Header {
        length,
        operation,
        unique,
        node,
        uid,
        gid,
        pid,
        extension_bytes,
        group: None,
    })
}

/// The first group of a groups extension. The kernel sends at most one; what is malformed is ignored, since the
/// group only ever widens what a caller may do with a directory that the kernel has checked already.
fn parse_group(extensions: &[u8]) -> Option<u32> {
    let mut rest = extensions;
    loop {
        let mut cursor = Cursor::new(rest);
        let size = cursor.u32().ok()? as usize;
        let kind = cursor.u32().ok()?;
        if size < 8 {
            return None;
        }
        if kind == EXTENSION_GROUPS {
            let count = cursor.u32().ok()?;
            return if count == 0 { None } else { cursor.u32().ok() };
        }
        rest = rest.get(size..)?;
    }
}

fn parse_body<'a>(
    operation: u32,
    mut body: Cursor<'a>,
    dialect: Dialect,
) -> Result<Request<'a>, ProtocolError> {
    Ok(match operation {
        op::LOOKUP => Request::Lookup { name: body.name()? },
        op::FORGET => Request::Forget { lookups: body.u64()? },
        op::BATCH_FORGET => parse_batch_forget(body)?,
        op::GETATTR => Request::GetAttributes,
        op::SETATTR => Request::SetAttributes(parse_set_attributes(body)?),
        op::READLINK => Request::ReadLink,
        op::OPEN => Request::Open {
            flags: body.u32()?,
            kill_privileges: body.u32()? & OPEN_KILL_SUIDGID != 0,
        },
        op::READ => parse_read(body)?,
        op::WRITE => parse_write(body)?,
        op::STATFS => Request::StatFs,
        op::RELEASE => Request::Release,
        op::FSYNC => Request::Fsync {
            data_only: parse_fsync(body)?,
        },
        op::FSYNCDIR => Request::FsyncDirectory {
            data_only: parse_fsync(body)?,
        },
        op::SETXATTR => parse_set_extended(body, dialect)?,
        op::GETXATTR => {
            let size = body.u32()?;
            body.skip(4)?;
            Request::GetExtended {
                size,
                name: body.text()?,
            }
        }
        op::LISTXATTR => Request::ListExtended { size: body.u32()? },
        op::REMOVEXATTR => Request::RemoveExtended { name: body.text()? },
        op::FLUSH => Request::Flush,
        op::INIT => Request::Init(InitRequest::parse(body)?),
        op::OPENDIR => Request::OpenDirectory,
        op::READDIR | op::READDIRPLUS => {
            body.skip(8)?;
            let (offset, size) = (body.u64()?, body.u32()?);
            Request::ReadDirectory {
                offset,
                size,
                plus: operation == op::READDIRPLUS,
            }
        }
        op::RELEASEDIR => Request::ReleaseDirectory,
        op::ACCESS => Request::Access { mask: body.u32()? },
        op::INTERRUPT => Request::Interrupt { unique: body.u64()? },
        op::DESTROY => Request::Destroy,
        op::IOCTL => {
            body.skip(12)?;
            let command = body.u32()?;
            body.skip(8)?;
            let (in_bytes, out_bytes) = (body.u32()?, body.u32()?);
            Request::Ioctl {
                command,
                data: body.bytes(in_bytes as usize)?,
                out_bytes,
            }
        }
        op::FALLOCATE => {
            body.skip(8)?;
            Request::Fallocate {
                offset: body.u64()?,
                length: body.u64()?,
                mode: body.u32()?,
            }
        }
        op::LSEEK => {
            body.skip(8)?;
            Request::Seek {
                offset: body.u64()?,
                whence: body.u32()?,
            }
        }
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
            body.skip(8)?;
            let (offset, to_node) = (body.u64()?, body.u64()?);
            body.skip(8)?;
            let (to_offset, length) = (body.u64()?, body.u64()?);
            Request::CopyRange {
                offset,
                to_node,
                to_offset,
                length,
                wide: operation == op::COPY_FILE_RANGE_64,
            }
        }
        op::STATX => {
            body.skip(20)?;
            Request::Statx { mask: body.u32()? }
        }
        op::SYNCFS => Request::SyncFs,
        _ => return parse_name_change(operation, body),
    })
}

/// What makes, moves and removes names.
fn parse_name_change(operation: u32, mut body: Cursor<'_>) -> Result<Request<'_>, ProtocolError> {
    Ok(match operation {
        op::SYMLINK => Request::SymbolicLink {
            name: body.name()?,
            target: body.text()?,
        },
        op::MKNOD => {
            let (mode, device, umask) = (body.u32()?, body.u32()?, body.u32()?);
            body.skip(4)?;
            Request::MakeNode {
                mode,
                device,
                umask,
                name: body.name()?,
            }
        }
        op::MKDIR => Request::MakeDirectory {
            mode: body.u32()?,
            umask: body.u32()?,
            name: body.name()?,
        },
        op::UNLINK => Request::Unlink { name: body.name()? },
        op::RMDIR => Request::RemoveDirectory { name: body.name()? },
        op::RENAME => Request::Rename {
            to_node: body.u64()?,
            flags: 0,
            name: body.name()?,
            to_name: body.name()?,
        },
        op::RENAME2 => {
            let (to_node, flags) = (body.u64()?, body.u32()?);
            body.skip(4)?;
            Request::Rename {
                to_node,
                flags,
                name: body.name()?,
                to_name: body.name()?,
            }
        }
        op::LINK => Request::Link {
            node: body.u64()?,
            name: body.name()?,
        },
        op::CREATE => {
            let (flags, mode, umask) = (body.u32()?, body.u32()?, body.u32()?);
            body.skip(4)?;
            Request::Create {
                flags,
                mode,
                umask,
                name: body.name()?,
            }
        }
        op::TMPFILE => Request::TemporaryFile {
            flags: body.u32()?,
            mode: body.u32()?,
            umask: body.u32()?,
        },
        _ => Request::Unknown,
    })
}

fn parse_batch_forget(mut body: Cursor<'_>) -> Result<Request<'_>, ProtocolError> {
    let count = body.u32()? as usize;
    body.skip(4)?;
    let bytes = count.checked_mul(16).ok_or(ProtocolError::Truncated)?;
    Ok(Request::BatchForget(ForgetItems(body.bytes(bytes)?)))
}

fn parse_set_attributes(mut body: Cursor<'_>) -> Result<SetAttributesIn, ProtocolError> {
    let valid = body.u32()?;
    body.skip(4 + 8)?;
    let size = body.u64()?;
    body.skip(8)?;
    let (accessed_seconds, modified_seconds) = (body.u64()? as i64, body.u64()? as i64);
    body.skip(8)?;
    let (accessed_nanos, modified_nanos) = (body.u32()?, body.u32()?);
    body.skip(4)?;
    let mode = body.u32()?;
    body.skip(4)?;
    let (uid, gid) = (body.u32()?, body.u32()?);
    Ok(SetAttributesIn {
        valid,
        size,
        accessed_seconds,
        modified_seconds,
        accessed_nanos,
        modified_nanos,
        mode,
        uid,
        gid,
    })
}

fn parse_read(mut body: Cursor<'_>) -> Result<Request<'_>, ProtocolError> {
    body.skip(8)?;
    let (offset, size, read_flags) = (body.u64()?, body.u32()?, body.u32()?);
    body.skip(8)?;
    Ok(Request::Read {
        offset,
        size,
        read_flags,
        flags: body.u32()?,
    })
}

fn parse_write(mut body: Cursor<'_>) -> Result<Request<'_>, ProtocolError> {
    body.skip(8)?;
    let (offset, size, write_flags) = (body.u64()?, body.u32()?, body.u32()?);
    body.skip(8)?;
    let flags = body.u32()?;
    body.skip(4)?;
    Ok(Request::Write {
        offset,
        data: body.bytes(size as usize)?,
        write_flags,
        flags,
    })
}

fn parse_fsync(mut body: Cursor<'_>) -> Result<bool, ProtocolError> {
    body.skip(8)?;
    Ok(body.u32()? & FSYNC_DATA_ONLY != 0)
}

fn parse_set_extended(mut body: Cursor<'_>, dialect: Dialect) -> Result<Request<'_>, ProtocolError> {
    let (size, flags) = (body.u32()?, body.u32()?);
    let mut set_flags = 0;
    if dialect.long_setxattr {
        set_flags = body.u32()?;
        body.skip(4)?;
    }
    let name = body.text()?;
    let value = body.bytes(size as usize)?;
    Ok(Request::SetExtended {
        name,
        value,
        flags,
        kill_setgid: set_flags & SETXATTR_ACL_KILL_SGID != 0,
    })
}
