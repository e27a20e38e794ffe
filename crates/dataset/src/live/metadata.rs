//! Memory for changes of metadata: names, inodes and attributes that were changed, made or removed and are not committed.
//!
//! Invariants: what one commit takes of them is bounded ([`Budget::metadata_most_bytes`](terrace_cache::Budget::metadata_most_bytes)),
//! since what it builds of them, and what the store makes of that, is in proportion; they are dirty as written content is, within
//! the same share, and who finds no room there commits first. A removal waits like all others, and is then let in however full
//! it is: only it brings room back. The last release of a removed object (FORGET) changes it once more, and may neither wait
//! nor fail: its memory is counted when the object is removed, or, where too many of them are held, when it comes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::dirty_epoch::DirtyEpoch;
use crate::objects::State;

/// Room that a change of metadata takes until it is committed, bytes.
pub(crate) const METADATA_BYTES: u64 = 512;
/// What a change of metadata takes in RAM until it is committed, as a multiple of its room: the object, its name, the records.
pub(crate) const MEMORY_FACTOR: u64 = 3;
/// What the last release of a removed object takes.
const RELEASE_BYTES: u64 = METADATA_BYTES * MEMORY_FACTOR;

/// What a dataset has taken for them, bytes.
#[derive(Default)]
pub(crate) struct Metadata {
    /// Of room, since the last freeze.
    room_bytes: AtomicU64,
    /// Of memory, for releases since the last freeze.
    released_bytes: AtomicU64,
    /// Of memory, for releases that are yet to come.
    owed_bytes: AtomicU64,
}

impl DirtyEpoch {
    /// Room of so many bytes was taken for changes of metadata: they are dirty from now on.
    pub(crate) fn count_metadata(&self, room_bytes: u64) {
        let bytes = room_bytes * MEMORY_FACTOR;
        // A freeze that comes between takes away what it finds here, and no more than was added there.
        self.dataset.environment().budget.add_metadata(bytes);
        self.metadata.room_bytes.fetch_add(room_bytes, Relaxed);
        self.add_dirty(bytes);
    }

    /// What is dirty of metadata and in no commit yet, bytes of memory.
    pub(crate) fn unfrozen_metadata_bytes(&self) -> u64 {
        let room_bytes = self.metadata.room_bytes.load(Relaxed);
        room_bytes * MEMORY_FACTOR + self.metadata.released_bytes.load(Relaxed)
    }

    /// A commit takes all of them: their room and their memory, bytes. The gate is held exclusively.
    pub(super) fn freeze_metadata(&self) -> (u64, u64) {
        let room_bytes = self.metadata.room_bytes.swap(0, Relaxed);
        let bytes = room_bytes * MEMORY_FACTOR + self.metadata.released_bytes.swap(0, Relaxed);
        self.dataset.environment().budget.metadata_frozen(bytes);
        (room_bytes, bytes)
    }

    /// The object lost its last name and is held: counts what its last release will change.
    pub(crate) fn owe_release(&self, state: &mut State) {
        if !state.owes_release && self.dataset.environment().budget.owe(RELEASE_BYTES) {
            state.owes_release = true;
            self.metadata.owed_bytes.fetch_add(RELEASE_BYTES, Relaxed);
            self.add_dirty(RELEASE_BYTES);
        }
    }

    /// The object has a name again. The gate and the state are held.
    pub(crate) fn owe_nothing(&self, state: &mut State) {
        if self.pay(state) {
            self.sub_dirty(RELEASE_BYTES);
        }
    }

    fn pay(&self, state: &mut State) -> bool {
        let owed = std::mem::take(&mut state.owes_release);
        if owed {
            self.metadata.owed_bytes.fetch_sub(RELEASE_BYTES, Relaxed);
            self.dataset.environment().budget.paid(RELEASE_BYTES);
        }
        owed
    }

    /// The last release has come. Waits for nothing. The gate and the state are held.
    pub(crate) fn charge_release(&self, state: &mut State) {
        if !self.pay(state) {
            self.add_dirty(RELEASE_BYTES);
        }
        self.dataset.environment().budget.add_metadata(RELEASE_BYTES);
        self.metadata.released_bytes.fetch_add(RELEASE_BYTES, Relaxed);
    }

    /// The dataset is closed: what was never committed, or released, no longer counts.
    pub(super) fn drop_metadata(&self) {
        let budget = &self.dataset.environment().budget;
        budget.metadata_frozen(self.unfrozen_metadata_bytes());
        budget.paid(self.metadata.owed_bytes.load(Relaxed));
    }
}
