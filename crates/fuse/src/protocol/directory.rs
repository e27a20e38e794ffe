//! Entries of READDIR and READDIRPLUS.

use super::reply::{EntryValues, ReplyBuffer};

const ENTRY_BYTES: usize = 128;
const DIRENT_BYTES: usize = 24;

/// Packs directory entries into a reply of bounded size.
pub struct DirectoryWriter<'a> {
    reply: &'a mut ReplyBuffer,
    limit: usize,
    plus: bool,
}

impl<'a> DirectoryWriter<'a> {
    /// For a reply of at most `size` bytes; `plus`: with attributes.
    pub fn new(reply: &'a mut ReplyBuffer, size: u32, plus: bool) -> Self {
        let limit = (size as usize).min(super::reply::PAYLOAD_BYTES_MAX);
        Self { reply, limit, plus }
    }

    /// Whether an entry with a name of this length still fits.
    pub fn fits(&self, name_bytes: usize) -> bool {
        self.reply.len() + self.bytes(name_bytes) <= self.limit
    }

    /// About how many entries with names of ordinary length still fit.
    pub fn room(&self) -> usize {
        (self.limit - self.reply.len().min(self.limit)) / self.bytes(8) + 1
    }

    /// Appends one entry; false, and nothing is written, if it does not fit. `cookie` is where to go on after it;
    /// `file_type` is a DT_* number; `entry` counts only with `plus`: node 0 says nothing of the entry.
    pub fn add(&mut self, inode: u64, cookie: u64, file_type: u32, name: &[u8], entry: &EntryValues) -> bool {
        if !self.fits(name.len()) {
            return false;
        }
        let end = self.reply.len() + self.bytes(name.len());
        if self.plus {
            self.reply.entry(entry);
        }
        self.reply.u64(inode);
        self.reply.u64(cookie);
        self.reply.u32(name.len() as u32);
        self.reply.u32(file_type);
        self.reply.bytes(name);
        let padding = end - self.reply.len();
        self.reply.extend(padding).fill(0);
        true
    }

    fn bytes(&self, name_bytes: usize) -> usize {
        let entry = if self.plus { ENTRY_BYTES } else { 0 };
        entry + (DIRENT_BYTES + name_bytes).next_multiple_of(8)
    }
}
