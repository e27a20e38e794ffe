//! The FUSE wire protocol (7.31–7.45), as of Linux `include/uapi/linux/fuse.h`: what a request is, how it is read
//! from bytes and how replies are written. Knows nothing of mounts, threads or filesystems.
//!
//! Invariants: reading is total (any bytes give a request or a [`ProtocolError`], never a panic, nothing is
//! allocated); a reply never grows beyond its buffer. All numbers are in the machine's byte order, as the kernel
//! sends them.

mod constants;
mod cursor;
mod directory;
mod init;
mod reply;
mod request;
mod transfer_buffer;

pub use constants::*;
pub use cursor::ProtocolError;
pub use directory::DirectoryWriter;
pub use init::{InitRequest, Negotiated, TRANSFER_BYTES_MAX, Wishes, negotiate};
pub use reply::{AttributeValues, EntryValues, PAYLOAD_BYTES_MAX, ReplyBuffer, StatfsValues};
pub use request::{Dialect, ForgetItems, Header, Request, SetAttributesIn, parse};
pub use transfer_buffer::{SmallRow, TransferBuffer};
