//! `PendingFrees`: content and records that were let go of since the last freeze, and what the log has to take for them.
//!
//! Invariant: what is set aside for a commit is no longer pending for the log; its content is, until the counters do not count it.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_store::BLOCK_BYTES;

/// What a block takes there that is let go of, at most: a chunk of its own for each.
pub(crate) const BLOCK_LOG_BYTES: u64 = 64;

/// What the log has to take for what was let go of since the last freeze, bytes.
#[derive(Debug, Default)]
pub(crate) struct PendingFrees {
    log_bytes: AtomicU64,
    /// Content that the counters still count, about, with what is being committed.
    content_bytes: AtomicU64,
}

impl PendingFrees {
    /// Records of so many bytes go, or change for it.
    pub(crate) fn add_records(&self, bytes: u64) {
        self.log_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes of content go, at most.
    pub(crate) fn add_content(&self, bytes: u64) {
        self.add_records(bytes.div_ceil(BLOCK_BYTES as u64) * BLOCK_LOG_BYTES);
    }

    /// What the log has to take for it, bytes.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    /// It was set aside for a commit; the content of it that the counters still count.
    pub(crate) fn frozen(&self) -> u64 {
        self.log_bytes.store(0, Ordering::Relaxed);
        self.content_bytes.load(Ordering::Relaxed)
    }

    /// So many bytes of content go that the counters count until they do not any more.
    pub(crate) fn add_uncounted(&self, bytes: u64) {
        self.content_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The counters no longer count so many of them.
    pub(crate) fn counted(&self, bytes: u64) {
        self.content_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Content that the counters count, and that is gone, bytes.
    pub(crate) fn content_bytes(&self) -> u64 {
        self.content_bytes.load(Ordering::Relaxed)
    }
}
