//! Damage that readers met and no scrub has looked at yet: which files have it, named in the background.
//!
//! Invariants: one look at a time, in bounded steps; what is known stays readable until the next look has ended; where a scrub has
//! ended, what it found takes the place of all this.

use terrace_chunk::ChunkStore;
use terrace_sync::{Mutex, rank};

use super::{
    damaged_files::{DamageWalk, Damaged, DamagedFile},
    lost_files::{NAMED_MAX, summary},
};
use crate::LostStatus;

/// Records that one step reads.
const STEP_RECORDS: usize = 1000;
/// How long is waited from the end of a look to the next one, nanoseconds: it goes through all records, and a device that fails
/// brings more and more of them.
const LOOK_INTERVAL: u64 = 10_000_000_000;

#[derive(Default)]
struct State {
    walk: Option<DamageWalk>,
    /// Chunks that the last look was for.
    looked_for: usize,
    next_look: u64,
    whole: bool,
    files: Vec<DamagedFile>,
}

/// What is known of it.
#[derive(Default)]
pub(super) struct ReadErrors {
    state: Mutex<State, rank::engine::ReadErrors>,
}

impl ReadErrors {
    /// Does a bounded piece; whether there is more to do at once.
    pub(super) fn step(&self, chunks: &ChunkStore, pool: &str, now: u64) -> bool {
        let taken = self.state.lock().walk.take();
        let Some(mut walk) = taken else {
            return self.begin(chunks, pool, now);
        };
        let more = walk.step(chunks, STEP_RECORDS);
        let found = (!more).then(|| walk.files(chunks));
        let mut state = self.state.lock();
        match found {
            // A scrub has ended meanwhile.
            _ if state.looked_for == 0 => return false,
            None => state.walk = Some(walk),
            Some((files, whole)) => {
                (state.files, state.whole) = (files, whole);
                state.next_look = now.saturating_add(LOOK_INTERVAL);
            }
        }
        more
    }

    fn begin(&self, chunks: &ChunkStore, pool: &str, now: u64) -> bool {
        {
            let mut state = self.state.lock();
            if chunks.unreadable_count() == 0 {
                if state.looked_for > 0 {
                    *state = State::default();
                }
                return false;
            }
            if now < state.next_look {
                return false;
            }
            state.next_look = now.saturating_add(LOOK_INTERVAL);
        }
        // What was deleted or written over meanwhile is no damage any more.
        chunks.prune_unreadable();
        let mut state = self.state.lock();
        let met = chunks.unreadable();
        if met.is_empty() || met.len() == state.looked_for {
            return false;
        }
        state.looked_for = met.len();
        state.walk = Some(DamageWalk::new(pool, Damaged::Chunks(met)));
        true
    }

    /// A scrub has read everything.
    pub(super) fn scrubbed(&self, chunks: &ChunkStore) {
        let mut state = self.state.lock();
        chunks.forget_unreadable();
        *state = State::default();
    }

    /// In short; `None` if nothing was met.
    pub(super) fn status(&self, chunks: &ChunkStore) -> Option<LostStatus> {
        let state = self.state.lock();
        let met = chunks.unreadable_count();
        if met == 0 {
            return None;
        }
        let looking = state.walk.is_some() || state.looked_for != met;
        Some(summary(&state.files, looking, state.whole))
    }

    /// All that is known.
    pub(super) fn files(&self) -> Vec<DamagedFile> {
        self.state.lock().files.clone()
    }
}

/// What is known of losses and of what was met, in one.
pub(super) fn both(lost: Option<LostStatus>, met: Option<LostStatus>) -> Option<LostStatus> {
    let (Some(mut lost), Some(met)) = (lost.clone(), met.clone()) else {
        return lost.or(met);
    };
    if met.state == "looking" {
        lost.state = met.state;
    }
    lost.complete &= met.complete;
    let known = lost.names.len();
    let new: Vec<String> = met
        .names
        .into_iter()
        .filter(|name| !lost.names.contains(name))
        .collect();
    lost.names.extend(new);
    lost.names.truncate(NAMED_MAX.max(known));
    // Some may be in both, of which not all are named here.
    lost.files = lost.files.max(met.files).max(lost.names.len() as u64);
    Some(lost)
}
