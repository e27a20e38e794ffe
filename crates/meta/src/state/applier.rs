//! `Applier`: batches enter the tree here, in memory.
//!
//! Invariants: batches enter one at a time, in order of their sequences; a batch that does not fit the limits of keys and values
//! changes nothing; no call reads or writes the storage.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use terrace_sync::{Mutex, rank};

use super::current::{Current, State};
use crate::{
    MetaError,
    entries::{KEY_BYTES_MAX, Key, Memtable, Operation, VALUE_BYTES_MAX},
};

/// Part of the memory at which the newest memtable is sealed.
pub(crate) const SEALED_AT: usize = 4;

/// See the module. All methods may be called from any thread.
pub struct Applier {
    current: Arc<Current>,
    /// As [`Options::memory_bytes`](crate::Options::memory_bytes), at the moment.
    memory_bytes: AtomicUsize,
    /// The newest sequence applied; held while a batch is applied.
    newest: Mutex<u64, rank::meta::Newest>,
}

impl Applier {
    pub(crate) fn new(current: Arc<Current>, memory_bytes: usize) -> Self {
        let newest = current.look().version.flushed_sequence;
        Self {
            current,
            memory_bytes: AtomicUsize::new(memory_bytes),
            newest: Mutex::new(newest),
        }
    }

    /// Memory for records that are not yet in tables, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// What it may use of it from now on; what is too much leaves as the next steps write it to tables.
    pub fn set_memory_bytes(&self, memory_bytes: usize) {
        self.memory_bytes.store(memory_bytes, Ordering::Relaxed);
    }

    /// Applies a batch: readers see all of it or nothing. `sequence` must be above every earlier one; operations on
    /// the same key count in order. In memory only: the caller's log makes it durable.
    pub fn apply<K: Into<Key> + AsRef<[u8]>>(
        &self,
        sequence: u64,
        operations: Vec<(K, Operation)>,
    ) -> Result<(), MetaError> {
        for (key, operation) in &operations {
            let value = if let Operation::Put(value) = operation {
                value.len()
            } else {
                0
            };
            for (what, bytes, limit) in [
                ("key", key.as_ref().len(), KEY_BYTES_MAX),
                ("value", value, VALUE_BYTES_MAX),
            ] {
                if bytes > limit {
                    return Err(MetaError::TooLong { what, bytes, limit });
                }
            }
        }
        let mut newest = self.newest.lock();
        if sequence <= *newest {
            return Err(MetaError::OutOfOrder {
                sequence,
                newest: *newest,
            });
        }
        *newest = sequence;
        let active = self.current.look().active.clone();
        active.apply(sequence, operations);
        if active.bytes() >= self.memory_bytes() / SEALED_AT {
            self.rotate(sequence);
        }
        Ok(())
    }

    /// Seals the active memtable; the caller holds the lock of the newest sequence.
    fn rotate(&self, sequence: u64) {
        let fresh = Memtable::after(sequence, self.memory_bytes() / SEALED_AT);
        self.current.install(|state| {
            let sealed = std::mem::replace(&mut state.active, Arc::new(fresh));
            state.sealed.insert(0, sealed);
        });
    }

    /// Seals the memtable: what was applied so far will be written by the next steps. Returns the newest sequence
    /// applied; once [`Reader::flushed_sequence`](super::Reader::flushed_sequence) reaches it, a manifest holds it.
    pub fn seal(&self) -> u64 {
        let newest = self.newest.lock();
        let state = self.current.now();
        // One without records is sealed too if it saw (empty) batches, so that the flushed sequence follows.
        let newest_before = state
            .sealed
            .first()
            .map_or(state.version.flushed_sequence, |last| last.sequence());
        if !state.active.is_empty() || *newest > newest_before {
            self.rotate(*newest);
        }
        *newest
    }

    /// The newest sequence applied.
    pub fn newest_sequence(&self) -> u64 {
        *self.newest.lock()
    }

    /// How far the steps are behind: 0 not at all, 1 writers should wait for steps (more than 1: they did not).
    pub fn pressure(&self) -> f64 {
        let state = self.current.now();
        let depth = state.version.depth().saturating_sub(8) as f64 / 16.0;
        self.memory_share_of(&state).max(depth)
    }

    /// How much of its memory records take that are not yet in tables: 1 all of it.
    pub fn memory_share(&self) -> f64 {
        self.memory_share_of(&self.current.now())
    }

    fn memory_share_of(&self, state: &State) -> f64 {
        state.memory_bytes() as f64 / self.memory_bytes().max(1) as f64
    }
}
