//! `ReplyBuffer`: a reply being written, header and payload in one piece so that one write(2) sends it.
//!
//! Invariants: the payload starts on a page boundary (file data is read straight into it and copied by the kernel
//! page by page); it never grows beyond [`PAYLOAD_BYTES_MAX`]: what does not fit is dropped and the reply becomes
//! an error.

use std::{
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
};

use super::{constants::OUT_HEADER_BYTES, init::TRANSFER_BYTES_MAX, transfer_buffer::TransferBuffer};

const PAGE_BYTES: usize = 4096;
/// Room before the payload: for the header of a reply, or for that of a request that shares the memory.
const FRONT_BYTES: usize = 256;
/// Where the payload lies: on a page boundary, with room before it.
const PAYLOAD_AT: usize = PAGE_BYTES;
/// Longest payload of a reply, bytes.
pub const PAYLOAD_BYTES_MAX: usize = TRANSFER_BYTES_MAX;

/// What `fuse_attr` carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct AttributeValues {
    pub inode: u64,
    pub size: u64,
    pub blocks512: u64,
    pub accessed: (i64, u32),
    pub modified: (i64, u32),
    pub changed: (i64, u32),
    pub created: (i64, u32),
    /// With the file type's bits (S_IFMT).
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
}

/// What `fuse_entry_out` carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryValues {
    /// 0: there is no such name, and the kernel may remember that.
    pub node: u64,
    /// Tells apart uses of a node number.
    pub generation: u64,
    /// How long the kernel may rely on the name, seconds.
    pub entry_seconds: u64,
    /// How long the kernel may rely on the attributes, seconds.
    pub attribute_seconds: u64,
    /// The attributes.
    pub attributes: AttributeValues,
}

/// What `fuse_kstatfs` carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct StatfsValues {
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_bytes: u32,
    pub name_bytes_max: u32,
}

/// A reply being written.
pub struct ReplyBuffer {
    storage: TransferBuffer,
    length: usize,
    overflowed: bool,
    outdated: Option<u64>,
    outdated_content: Option<(u64, Range<u64>)>,
}

impl Default for ReplyBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplyBuffer {
    /// An empty one. Its memory is taken from the system as it is first used.
    pub fn new() -> Self {
        Self::counted_in(&Arc::default())
    }

    /// The same, of which what is in use counts in `bytes`.
    pub fn counted_in(bytes: &Arc<AtomicU64>) -> Self {
        Self {
            storage: TransferBuffer::new(PAYLOAD_AT + PAYLOAD_BYTES_MAX, bytes),
            length: 0,
            overflowed: false,
            outdated: None,
            outdated_content: None,
        }
    }

    /// Whether a mount at rest should have it [give memory back](Self::give_back).
    pub fn is_grown(&self) -> bool {
        self.storage.is_grown()
    }

    /// Gives memory back to the system, but for the first `kept_bytes` of the payload.
    pub fn give_back(&mut self, kept_bytes: usize) {
        self.storage.give_back(PAYLOAD_AT + kept_bytes);
    }

    /// Forgets what was written.
    pub fn clear(&mut self) {
        self.length = 0;
        self.overflowed = false;
        self.outdated = None;
        self.outdated_content = None;
    }

    /// Before it gets the reply, the kernel has to be told that the attributes of a node are no longer those that it has.
    pub fn outdate(&mut self, node: u64) {
        self.outdated = Some(node);
    }

    /// The node that the kernel has to be told of first.
    pub fn outdated(&self) -> Option<u64> {
        self.outdated
    }

    /// Before it gets the reply, the kernel has to drop what it keeps of the content of a node in this range.
    pub fn outdate_content(&mut self, node: u64, range: Range<u64>) {
        self.outdated_content = Some((node, range));
    }

    /// The node and the range of which the kernel has to drop what it keeps.
    pub fn outdated_content(&mut self) -> Option<(u64, Range<u64>)> {
        self.outdated_content.take()
    }

    /// Where the payload begins: page-aligned, [`PAYLOAD_BYTES_MAX`] long, in place for as long as the buffer lives.
    /// For a kernel that puts the payload of requests there, and takes that of replies.
    pub fn payload_pointer(&mut self) -> *mut u8 {
        self.storage[PAYLOAD_AT..].as_mut_ptr()
    }

    /// The payload written so far.
    pub fn payload(&self) -> &[u8] {
        &self.storage[PAYLOAD_AT..PAYLOAD_AT + self.length]
    }

    /// What lies where the payload goes, with `front` put before it in one piece. `None` if either is too long.
    pub fn join(&mut self, front: &[u8], payload_bytes: usize) -> Option<&[u8]> {
        if front.len() > FRONT_BYTES || payload_bytes > PAYLOAD_BYTES_MAX {
            return None;
        }
        let start = PAYLOAD_AT - front.len();
        self.storage.note_use(PAYLOAD_AT + payload_bytes);
        self.storage[start..PAYLOAD_AT].copy_from_slice(front);
        self.storage.get(start..PAYLOAD_AT + payload_bytes)
    }

    /// Whether more was written than fits.
    pub fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Payload written so far, bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Cuts the payload back to `length`.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Room for `length` bytes of payload after what is there; what is not filled must be cut off with
    /// [`truncate`](Self::truncate). At most what fits.
    pub fn extend(&mut self, length: usize) -> &mut [u8] {
        let start = PAYLOAD_AT + self.length;
        let length = length.min(PAYLOAD_BYTES_MAX - self.length);
        self.length += length;
        self.storage.note_use(start + length);
        &mut self.storage[start..start + length]
    }

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if bytes.len() > PAYLOAD_BYTES_MAX - self.length {
            self.overflowed = true;
            return;
        }
        self.extend(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends a number.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_ne_bytes());
    }

    /// Appends a number.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    /// Appends a number.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_ne_bytes());
    }

    /// Appends `fuse_attr`.
    pub fn attributes(&mut self, values: &AttributeValues) {
        let mut bytes = [0; 88];
        let numbers64 = [
            values.inode,
            values.size,
            values.blocks512,
            values.accessed.0 as u64,
            values.modified.0 as u64,
            values.changed.0 as u64,
        ];
        let numbers32 = [
            values.accessed.1,
            values.modified.1,
            values.changed.1,
            values.mode,
            values.links,
            values.uid,
            values.gid,
            values.device,
            PAGE_BYTES as u32,
            0,
        ];
        for (slot, number) in bytes[..48].chunks_exact_mut(8).zip(numbers64) {
            slot.copy_from_slice(&number.to_ne_bytes());
        }
        for (slot, number) in bytes[48..].chunks_exact_mut(4).zip(numbers32) {
            slot.copy_from_slice(&number.to_ne_bytes());
        }
        self.bytes(&bytes);
    }

    /// Appends `fuse_attr_out`.
    pub fn attributes_reply(&mut self, valid_seconds: u64, values: &AttributeValues) {
        self.u64(valid_seconds);
        self.u64(0);
        self.attributes(values);
    }

    /// Appends `fuse_entry_out`.
    pub fn entry(&mut self, values: &EntryValues) {
        self.u64(values.node);
        self.u64(values.generation);
        self.u64(values.entry_seconds);
        self.u64(values.attribute_seconds);
        self.u64(0);
        self.attributes(&values.attributes);
    }

    /// Appends `fuse_open_out`; there are no file handles.
    pub fn open(&mut self, open_flags: u32) {
        self.u64(0);
        self.u32(open_flags);
        self.u32(0);
    }

    /// Appends `fuse_write_out`.
    pub fn written(&mut self, bytes: u32) {
        self.u32(bytes);
        self.u32(0);
    }

    /// Appends `fuse_ioctl_out` with the result 0; what the caller gets comes behind it.
    pub fn ioctl(&mut self) {
        (0..4).for_each(|_| self.u32(0));
    }

    /// Appends `fuse_statfs_out`.
    pub fn statfs(&mut self, values: &StatfsValues) {
        self.u64(values.blocks);
        self.u64(values.blocks_free);
        self.u64(values.blocks_available);
        self.u64(values.files);
        self.u64(values.files_free);
        self.u32(values.block_bytes);
        self.u32(values.name_bytes_max);
        self.u32(values.block_bytes);
        (0..7).for_each(|_| self.u32(0));
    }

    /// Appends `fuse_statx_out`.
    pub fn statx(&mut self, valid_seconds: u64, values: &AttributeValues) {
        const BASIC_AND_BIRTH_TIME: u32 = 0xfff;
        self.u64(valid_seconds);
        self.u64(0);
        self.u64(0);
        self.u64(0);
        self.u32(BASIC_AND_BIRTH_TIME);
        self.u32(PAGE_BYTES as u32);
        self.u64(0);
        self.u32(values.links);
        self.u32(values.uid);
        self.u32(values.gid);
        self.u16(values.mode as u16);
        self.u16(0);
        self.u64(values.inode);
        self.u64(values.size);
        self.u64(values.blocks512);
        self.u64(0);
        for time in [values.accessed, values.created, values.changed, values.modified] {
            self.u64(time.0 as u64);
            self.u32(time.1);
            self.u32(0);
        }
        self.u32(libc::major(u64::from(values.device)));
        self.u32(libc::minor(u64::from(values.device)));
        (0..2 + 28).for_each(|_| self.u32(0));
    }

    /// Puts the header in front and gives the whole message. With an `error` (a positive Linux error number) the
    /// payload is dropped.
    pub fn finish(&mut self, unique: u64, error: i32) -> &[u8] {
        let error = if self.overflowed && error == 0 {
            libc::EIO
        } else {
            error
        };
        self.message(unique, -error)
    }

    /// The whole message as a notification of the kernel.
    pub fn finish_notification(&mut self, code: i32) -> &[u8] {
        self.message(0, code)
    }

    fn message(&mut self, unique: u64, code: i32) -> &[u8] {
        let payload = if code < 0 { 0 } else { self.length };
        let start = PAYLOAD_AT - OUT_HEADER_BYTES;
        let total = OUT_HEADER_BYTES + payload;
        let header = &mut self.storage[start..PAYLOAD_AT];
        header[..4].copy_from_slice(&(total as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&code.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        &self.storage[start..start + total]
    }
}
