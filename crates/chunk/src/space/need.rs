//! `Need`: who waits for room, and what became of it. `Waiting`: one who is counted as waiting.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Who needs room, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Need {
    /// Who waits for room, or makes it.
    pub(crate) waiting: AtomicUsize,
    /// Turns of work for it that were begun.
    pub(crate) turns: AtomicU64,
    /// Segments that new content took, so that what others were quicker to take counts as brought back.
    pub(crate) taken: AtomicU64,
}

impl Need {
    /// New content took so many segments.
    pub fn took(&self, segments: usize) {
        self.taken.fetch_add(segments as u64, Ordering::AcqRel);
    }

    /// Whether somebody waits.
    pub fn is_felt(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }
}

/// Counts who waits, also if they are thrown out of it.
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    pub(crate) fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
