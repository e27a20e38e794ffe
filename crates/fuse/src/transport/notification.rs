//! What the kernel is told without having asked.

use std::{io, ops::Range};

use super::kernel_device::Connection;
use crate::protocol::{ReplyBuffer, notification};

/// Has the kernel ask for the attributes of a node before it relies on them, and drop what it keeps of a range of its content.
/// With a range this waits for the kernel's own requests there; without, it can be called while a request is served, whose caller
/// finds the new attributes as soon as his call returns.
pub fn invalidate_inode(connection: &Connection, node: u64, content: Option<Range<u64>>) -> io::Result<()> {
    // A negative offset: attributes only. A length of zero: to the end.
    let (offset, length) = match content {
        Some(range) => (range.start, range.end.saturating_sub(range.start)),
        None => (-1_i64 as u64, 0),
    };
    let mut message = ReplyBuffer::new();
    message.u64(node);
    message.u64(offset);
    message.u64(length);
    notify(connection, message, notification::INVALIDATE_INODE)
}

/// Sends a message that no request asked for.
pub fn notify(connection: &Connection, mut message: ReplyBuffer, code: i32) -> io::Result<()> {
    match connection.notify(message.finish_notification(code)) {
        // The kernel does not know the object or name: nothing to forget.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(()),
        told => told,
    }
}
