//! READ, WRITE, FSYNC, FALLOCATE, LSEEK, COPY_FILE_RANGE.

use terrace_dataset::{AllocateMode, SeekTarget};

use super::{Errno, Server};
use crate::{
    credentials::KERNEL,
    nodes::VIRTUAL,
    protocol::{Header, ReplyBuffer, Request, WRITE_KILL_SUIDGID},
};

/// Longest copy in one request, so that its reply does not take seconds; callers go on from a short answer.
const COPY_BYTES_MAX: u64 = 256 << 20;

impl Server {
    pub(super) fn read(
        &self,
        process: u32,
        node: u64,
        offset: u64,
        size: u32,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let place = self.place(node)?;
        let (tree, object) = place.object(self.tree.as_ref()).ok_or(Errno(libc::EISDIR))?;
        let buffer = reply.extend(size as usize);
        let length = match self.modes.keeps_access_times() {
            true => tree.read_for(process, object, offset, buffer)?,
            false => tree.read_unnoted(process, object, offset, buffer)?,
        };
        reply.truncate(length);
        Ok(())
    }

    pub(super) fn write(
        &self,
        header: &Header,
        offset: u64,
        data: &[u8],
        write_flags: u32,
        flags: u32,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let (live, object) = self.live(header.node)?;
        // O_APPEND needs nothing here: the kernel serialises writers and knows the size.
        let kill_privileges = write_flags & WRITE_KILL_SUIDGID != 0;
        let written = live.write(&KERNEL, object, offset, data, kill_privileges)?;
        if flags & libc::O_DSYNC as u32 != 0 {
            live.sync(object)?;
        }
        reply.written(written as u32);
        Ok(())
    }

    /// Does a write that needs no waiting for anything. Else nothing is done, and false: it is left to
    /// [`handle`](Self::handle). `reply` is empty.
    pub fn write_at_once(&self, header: &Header, request: &Request<'_>, reply: &mut ReplyBuffer) -> bool {
        let Request::Write {
            offset,
            data,
            write_flags,
            flags,
        } = *request
        else {
            return false;
        };
        let Ok((live, object)) = self.live(header.node) else {
            return false;
        };
        let is_plain = flags & libc::O_DSYNC as u32 == 0
            && write_flags & WRITE_KILL_SUIDGID == 0
            && !self.modes.is_sync();
        let done = is_plain && live.write_at_once(object, offset, data);
        if done {
            self.nodes.outdate(header.node);
            reply.written(data.len() as u32);
        }
        done
    }

    pub(super) fn fsync(&self, node: u64) -> Result<(), Errno> {
        match &self.live {
            // Also where no changes are taken any more: there may have been some.
            Some(live) if node & VIRTUAL == 0 => Ok(live.sync(node)?),
            // What cannot change is durable already.
            _ => Ok(()),
        }
    }

    pub(super) fn allocate(&self, node: u64, offset: u64, length: u64, mode: u32) -> Result<(), Errno> {
        const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32 | KEEP_SIZE;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        const ZERO_KEEP_SIZE: u32 = ZERO | KEEP_SIZE;
        let (live, object) = self.live(node)?;
        let mode = match mode {
            0 => AllocateMode::Reserve { keep_size: false },
            KEEP_SIZE => AllocateMode::Reserve { keep_size: true },
            PUNCH => AllocateMode::Punch,
            ZERO => AllocateMode::Zero { keep_size: false },
            ZERO_KEEP_SIZE => AllocateMode::Zero { keep_size: true },
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        Ok(live.allocate(&KERNEL, object, mode, offset, length)?)
    }

    pub(super) fn seek(
        &self,
        node: u64,
        offset: u64,
        whence: u32,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let place = self.place(node)?;
        let (tree, object) = place.object(self.tree.as_ref()).ok_or(Errno(libc::EINVAL))?;
        let target = match whence as i32 {
            libc::SEEK_DATA => SeekTarget::Data,
            libc::SEEK_HOLE => SeekTarget::Hole,
            _ => return Err(Errno(libc::EINVAL)),
        };
        reply.u64(tree.seek(object, offset, target)?);
        Ok(())
    }

    /// From and to are (node, offset). `wide`: the reply has 64 bits.
    pub(super) fn copy_range(
        &self,
        from: (u64, u64),
        to: (u64, u64),
        length: u64,
        wide: bool,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let (live, to_object) = self.live(to.0)?;
        // From a past state there is nothing to share with by number: the caller reads and writes instead.
        let (_, from_object) = self.live(from.0).map_err(|_| Errno(libc::EXDEV))?;
        let length = length.min(COPY_BYTES_MAX);
        let copied = live.copy_range(&KERNEL, (from_object, from.1), (to_object, to.1), length)?;
        if wide {
            reply.u64(copied);
        } else {
            reply.written(copied as u32);
        }
        Ok(())
    }
}
