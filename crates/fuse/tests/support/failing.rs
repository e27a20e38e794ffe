//! `Failing`: a store of which commits and flushes fail while it is told so.
//!
//! Invariant: what was not flushed without an error is flushed by nobody else.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use terrace_store::{Batch, MemoryStore, Sequence, Store, StoreError};

/// One for the process, so that a test need not ask through a mount.
static FLUSHES_FAIL: AtomicBool = AtomicBool::new(false);
static COMMITS_FAIL: AtomicBool = AtomicBool::new(false);

/// Has what makes changes durable fail from now on, or not any more: `commits`, `flushes` or neither.
pub fn fail(what: &str) {
    COMMITS_FAIL.store(what == "commits", SeqCst);
    FLUSHES_FAIL.store(what == "flushes", SeqCst);
}

/// Whether flushes fail.
pub fn flushes_fail() -> bool {
    FLUSHES_FAIL.load(SeqCst)
}

/// See above.
pub struct Failing {
    memory: MemoryStore,
}

impl Failing {
    /// Of that size.
    pub fn new(bytes: u64) -> Self {
        Self {
            memory: MemoryStore::new(bytes),
        }
    }
}

fn told_to(flag: &AtomicBool) -> Result<(), StoreError> {
    match flag.load(SeqCst) {
        true => Err(StoreError::Device("the device is gone".into())),
        false => Ok(()),
    }
}

impl Store for Failing {
    terrace_store::in_memory!(memory: get scan write_chunks read_chunk chunk_info newest reserve_beside reserve_always space rewrite);

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        told_to(&COMMITS_FAIL)?;
        self.memory.commit(batch)
    }

    fn flush(&self, sequence: Sequence) -> Result<(), StoreError> {
        told_to(&FLUSHES_FAIL)?;
        self.memory.flush(sequence)
    }
}
