//! `TransferBuffer`: memory that a request or a reply lies in, as long as the longest may be.
//!
//! It takes memory from the system as it is used, and keeps it for the next request. A mount that has rested gives it back
//! ([`TransferBuffer::give_back`]), as otherwise each thread of each mount would keep as much as its longest request ever took.
//!
//! Invariants: what is in use is counted, in whole pages; it starts on a page boundary.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use terrace_device::AlignedBuffer;

const PAGE_BYTES: usize = 4096;
/// A buffer of which no more is in use, with the page before the payload, is not worth the call that gives it back.
const KEPT_BYTES: usize = 16 << 10;

/// So many short requests in a row mean that the memory of the long one before them is not needed.
const ROW: u32 = 64;

/// How many requests came since the last long one.
#[derive(Default)]
pub struct SmallRow {
    row: u32,
}

impl SmallRow {
    /// A request came, with its reply so long. Whether enough short ones have come to expect no further long one.
    pub fn note(&mut self, bytes: usize) -> bool {
        self.row = match bytes > KEPT_BYTES - PAGE_BYTES {
            true => 0,
            false => self.row + 1,
        };
        if self.row == ROW {
            self.row = 0;
            return true;
        }
        false
    }
}

/// See the module.
pub struct TransferBuffer {
    memory: AlignedBuffer,
    /// From its start so many bytes may have been used since memory was given back last.
    used_bytes: usize,
    count: Arc<AtomicU64>,
}

impl TransferBuffer {
    /// `bytes` long, zeroed; what is in use counts in `count`.
    pub fn new(bytes: usize, count: &Arc<AtomicU64>) -> Self {
        Self {
            memory: AlignedBuffer::zeroed(bytes),
            used_bytes: 0,
            count: count.clone(),
        }
    }

    /// The first `end` bytes are used.
    pub fn note_use(&mut self, end: usize) {
        if end > self.used_bytes {
            let used_bytes = end.next_multiple_of(PAGE_BYTES);
            self.count
                .fetch_add((used_bytes - self.used_bytes) as u64, Relaxed);
            self.used_bytes = used_bytes;
        }
    }

    /// Whether so much is in use that a mount at rest should give it back.
    pub fn is_grown(&self) -> bool {
        self.used_bytes > KEPT_BYTES
    }

    /// Gives back what is in use beyond the first `kept_bytes`, whose content stays.
    pub fn give_back(&mut self, kept_bytes: usize) {
        let kept_bytes = kept_bytes.next_multiple_of(PAGE_BYTES);
        if kept_bytes < self.used_bytes && self.memory.give_back(kept_bytes) {
            self.count
                .fetch_sub((self.used_bytes - kept_bytes) as u64, Relaxed);
            self.used_bytes = kept_bytes;
        }
    }
}

impl Drop for TransferBuffer {
    fn drop(&mut self) {
        self.count.fetch_sub(self.used_bytes as u64, Relaxed);
    }
}

impl Deref for TransferBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl DerefMut for TransferBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_bytes_are_counted_until_given_back() {
        let count = Arc::<AtomicU64>::default();
        let mut buffer = TransferBuffer::new(1 << 20, &count);
        assert_eq!(count.load(Relaxed), 0);
        buffer.note_use(1);
        buffer.note_use(300_000);
        buffer.note_use(10);
        buffer[..300_000].fill(7);
        assert_eq!(count.load(Relaxed), 303_104);
        assert!(buffer.is_grown());
        buffer.give_back(5000);
        assert_eq!(count.load(Relaxed), 8192);
        assert!(!buffer.is_grown());
        assert_eq!((buffer[8191], buffer[8192], buffer[299_999]), (7, 0, 0));
        drop(buffer);
        assert_eq!(count.load(Relaxed), 0);
    }
}
