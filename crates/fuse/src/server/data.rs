//! READ, WRITE, FSYNC, FALLOCATE, LSEEK, COPY_FILE_RANGE.

use terrace_dataset::{AllocateMode, Context, SeekTarget, SetId, Strip};

use super::{modes::Modes, nodes::Nodes};
use crate::{
    content::{Files, KERNEL, MAPPING, VIRTUAL, caller, has_fsetid},
    errno::Errno,
    protocol::{Header, READ_LOCKOWNER, ReplyBuffer, WRITE_CACHE, WRITE_KILL_SUIDGID, WRITE_LOCKOWNER},
};

/// Longest copy in one request, so that its reply does not take seconds; callers go on from a short answer.
const COPY_BYTES_MAX: u64 = 256 << 20;

/// Setuid and setgid in a mode.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// The caller of a request, who has no CAP_FSETID.
fn stripping(header: &Header) -> Context {
    Context {
        strip: Strip::SetId,
        ..caller(header, 0)
    }
}

pub(super) fn read(
    nodes: &Nodes,
    modes: &Modes,
    header: &Header,
    offset: u64,
    size: u32,
    read_flags: u32,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let place = nodes.place(header.node)?;
    let (tree, object) = place.object(nodes.tree()).ok_or(Errno(libc::EISDIR))?;
    // First noted, then read: who writes past the cache does it the other way round, so that one of the two sees the other.
    nodes
        .known()
        .note_read(header.node, read_flags & READ_LOCKOWNER == 0);
    let buffer = reply.extend(size as usize);
    let length = match modes.keeps_access_times() {
        true => tree.read_for(header.pid, object, offset, buffer)?,
        false => tree.read_unnoted(header.pid, object, offset, buffer)?,
    };
    reply.truncate(length);
    Ok(())
}

pub(super) fn write(
    nodes: &Nodes,
    header: &Header,
    offset: u64,
    data: &[u8],
    write_flags: u32,
    flags: u32,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let (live, object) = nodes.live(header.node)?;
    // O_APPEND needs nothing here: the kernel serialises writers and knows the size.
    let context = if write_flags & WRITE_CACHE != 0 {
        MAPPING
    } else if write_flags & WRITE_KILL_SUIDGID != 0 {
        stripping(header)
    } else {
        KERNEL
    };
    let written = live.write(&context, object, offset, data);
    // What failed may have been done in part.
    if context.strips_set_id() && written.as_ref().map(|done| done.set_id) != Ok(SetId::Kept) {
        reply.outdate(header.node);
    }
    outdate_cached(nodes, header.node, offset, data, write_flags, reply);
    let mut bytes = written?.bytes;
    // Nobody asks the kernel how much of its pages was written: what went wrong with the rest is what counts.
    while write_flags & WRITE_CACHE != 0 && bytes < data.len() {
        bytes += live
            .write(&context, object, offset + bytes as u64, &data[bytes..])?
            .bytes;
    }
    if flags & libc::O_DSYNC as u32 != 0 {
        live.sync(object)?;
    }
    reply.written(bytes as u32);
    Ok(())
}

/// After a write past the kernel's page cache: what the cache has of the range must go before the writer is told. The kernel
/// looks for that before such a write; after it, it does not where the writer need not wait (`fuse_aio_complete`), and what
/// was read meanwhile would stay for good.
fn outdate_cached(
    nodes: &Nodes,
    node: u64,
    offset: u64,
    data: &[u8],
    write_flags: u32,
    reply: &mut ReplyBuffer,
) {
    if nodes.known().note_written(node) && write_flags & WRITE_LOCKOWNER != 0 {
        reply.outdate_content(node, offset..offset.saturating_add(data.len() as u64));
    }
}

pub(super) fn fsync(nodes: &Nodes, node: u64) -> Result<(), Errno> {
    match nodes.live_files() {
        // Also where no changes are taken any more: there may have been some.
        Some(live) if node & VIRTUAL == 0 => Ok(live.sync(node)?),
        // What cannot change is durable already.
        _ => Ok(()),
    }
}

/// The caller of a change that carries no word of CAP_FSETID, as it is for the rules of set-id bits. Where such a bit may
/// fall, the kernel is told with the reply.
fn changer(
    header: &Header,
    (live, object): (&dyn Files, u64),
    reply: &mut ReplyBuffer,
) -> Result<Context, Errno> {
    if live.attributes(object)?.mode & SET_ID == 0 || has_fsetid(header) {
        return Ok(KERNEL);
    }
    reply.outdate(object);
    Ok(stripping(header))
}

pub(super) fn allocate(
    nodes: &Nodes,
    header: &Header,
    offset: u64,
    length: u64,
    mode: u32,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
    const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32 | KEEP_SIZE;
    const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
    const ZERO_KEEP_SIZE: u32 = ZERO | KEEP_SIZE;
    let (live, object) = nodes.live(header.node)?;
    let mode = match mode {
        0 => AllocateMode::Reserve { keep_size: false },
        KEEP_SIZE => AllocateMode::Reserve { keep_size: true },
        PUNCH => AllocateMode::Punch,
        ZERO => AllocateMode::Zero { keep_size: false },
        ZERO_KEEP_SIZE => AllocateMode::Zero { keep_size: true },
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    let context = changer(header, (live, object), reply)?;
    Ok(live.allocate(&context, object, mode, offset, length)?)
}

pub(super) fn seek(
    nodes: &Nodes,
    node: u64,
    offset: u64,
    whence: u32,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let place = nodes.place(node)?;
    let (tree, object) = place.object(nodes.tree()).ok_or(Errno(libc::EINVAL))?;
    let target = match whence as i32 {
        libc::SEEK_DATA => SeekTarget::Data,
        libc::SEEK_HOLE => SeekTarget::Hole,
        _ => return Err(Errno(libc::EINVAL)),
    };
    reply.u64(tree.seek(object, offset, target)?);
    Ok(())
}

/// From is an offset in the node of the header, to is (node, offset). `wide`: the reply has 64 bits.
pub(super) fn copy_range(
    nodes: &Nodes,
    header: &Header,
    from: u64,
    to: (u64, u64),
    length: u64,
    wide: bool,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let (live, to_object) = nodes.live(to.0)?;
    // From a past state there is nothing to share with by number: the caller reads and writes instead.
    let (_, from_object) = nodes.live(header.node).map_err(|_| Errno(libc::EXDEV))?;
    let length = length.min(COPY_BYTES_MAX);
    let context = changer(header, (live, to_object), reply)?;
    let copied = live.copy_range(&context, (from_object, from), (to_object, to.1), length)?;
    if wide {
        reply.u64(copied);
    } else {
        reply.written(copied as u32);
    }
    Ok(())
}
