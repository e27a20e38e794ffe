//! `Need`: who waits for room, and what became of it. `Waiting`: one who is counted as waiting.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Who needs room, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Need {
    /// Who waits for room, or makes it.
    waiting: AtomicUsize,
    /// Turns of work for it that were begun.
    turns: AtomicU64,
    /// Segments that new content took, so that what others were quicker to take counts as brought back.
    taken: AtomicU64,
}

impl Need {
    /// New content took so many segments.
    pub fn took(&self, segments: usize) {
        self.taken.fetch_add(segments as u64, Ordering::AcqRel);
    }

    /// Waits from now on.
    pub fn wait(&self) -> Waiting<'_> {
        Waiting::of(&self.waiting)
    }

    /// How many wait for room, or make it.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Turns of work for it that were begun so far.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// Begins one; its number.
    pub fn begin_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Segments that new content took so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
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
