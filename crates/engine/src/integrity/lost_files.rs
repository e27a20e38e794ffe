//! What is lost with devices that are gone: which files, named in the background.
//!
//! Invariants: one look at a time, in bounded steps; what is known stays readable until the next look has ended; nobody
//! looks while no live content lies on a device that is not there, and what was found is then forgotten.

use std::collections::HashSet;

use terrace_chunk::ChunkStore;
use terrace_sync::{Mutex, rank};

use super::damaged_files::{DamageWalk, Damaged, DamagedFile};
use crate::LostStatus;

/// Records that one step reads.
const STEP_RECORDS: usize = 1000;
/// How often it is asked whether there is anything to look for, nanoseconds.
const LOOK_INTERVAL: u64 = 10_000_000_000;
/// Files that the status names.
pub(super) const NAMED_MAX: usize = 20;

#[derive(Default)]
struct State {
    walk: Option<DamageWalk>,
    /// Live bytes on absent devices when the last look began, and whether records are out of reach; `None`: look again, whatever
    /// they are.
    looked_for: Option<(u64, bool)>,
    next_look: u64,
    /// What could not be read of a device that was to be emptied, and how much that is; until the next look.
    unreadable_bytes: u64,
    known: bool,
    whole: bool,
    files: Vec<DamagedFile>,
}

/// What is known of lost.
#[derive(Default)]
pub(crate) struct LostFiles {
    state: Mutex<State, rank::engine::LostFiles>,
}

impl LostFiles {
    /// Does a bounded piece; whether there is more to do at once.
    pub(crate) fn step(&self, chunks: &std::sync::Arc<ChunkStore>, pool: &str, now: u64) -> bool {
        let taken = self.state.lock().walk.take();
        let Some(mut walk) = taken else {
            return self.begin(chunks, pool, now);
        };
        let more = walk.step(&**chunks, STEP_RECORDS);
        let found = (!more).then(|| walk.files(&**chunks));
        let mut state = self.state.lock();
        match found {
            None => state.walk = Some(walk),
            Some((files, whole)) => {
                (state.files, state.whole, state.known) = (files, whole, true);
                state.unreadable_bytes = 0;
                state.next_look = now + LOOK_INTERVAL;
            }
        }
        more
    }

    fn begin(&self, chunks: &std::sync::Arc<ChunkStore>, pool: &str, now: u64) -> bool {
        if now < self.state.lock().next_look {
            return false;
        }
        let gone = (
            chunks.live_on_absent_devices(),
            chunks.metadata_out_of_reach() > 0,
        );
        let mut state = self.state.lock();
        state.next_look = now + LOOK_INTERVAL;
        if state.looked_for.replace(gone) == Some(gone) {
            return false;
        }
        if gone == (0, false) {
            (state.files, state.known, state.unreadable_bytes) = (Vec::new(), false, 0);
            return false;
        }
        state.walk = Some(DamageWalk::new(pool, Damaged::Gone(chunks.clone())));
        true
    }

    /// Whoever empties a device found that nothing else is left on it than what these files need.
    pub(crate) fn told(&self, files: Vec<DamagedFile>, whole: bool, unreadable_bytes: u64) {
        let mut state = self.state.lock();
        (state.files, state.whole, state.known) = (files, whole, true);
        state.unreadable_bytes = unreadable_bytes;
        // This holds until something is known better.
        state.looked_for.get_or_insert((0, false));
    }

    /// A device is gone for good, or everything was read: the next step looks again.
    pub(crate) fn look_again(&self) {
        let mut state = self.state.lock();
        (state.next_look, state.looked_for) = (0, None);
    }

    /// In short; `None` if nothing is lost. Where a device is missing and nobody has looked yet, that is not known.
    pub(crate) fn status(&self, device_missing: bool) -> Option<LostStatus> {
        let state = self.state.lock();
        let looking = state.walk.is_some() || (device_missing && state.looked_for.is_none());
        if !looking && (!state.known || state.files.is_empty()) {
            return None;
        }
        let bytes = state.looked_for.map_or(0, |(bytes, _)| bytes);
        Some(LostStatus {
            bytes: bytes.max(state.unreadable_bytes),
            ..summary(&state.files, looking, state.whole)
        })
    }

    /// A page of all that is known, `others` included: files from number `from` on, and whether there are more.
    pub(crate) fn page_with(
        &self,
        mut others: Vec<DamagedFile>,
        from: usize,
        limit: usize,
    ) -> (Vec<DamagedFile>, bool) {
        let state = self.state.lock();
        let mut known = HashSet::new();
        if !others.is_empty() {
            known.extend(state.files.iter().map(|file| file.path.clone()));
        }
        others.retain(|file| known.insert(file.path.clone()));
        let mut rest = state.files.iter().chain(&others).skip(from);
        let page = rest.by_ref().take(limit).cloned().collect();
        (page, rest.next().is_some())
    }
}

/// What is known of these files, in short.
pub(super) fn summary(files: &[DamagedFile], is_looking: bool, is_whole: bool) -> LostStatus {
    let named = files.iter().take(NAMED_MAX);
    LostStatus {
        state: if is_looking { "looking" } else { "known" }.into(),
        bytes: 0,
        files: files.len() as u64,
        complete: is_whole && !is_looking,
        names: named.map(|file| file.path.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_long_as_nobody_has_looked_nothing_is_claimed_of_a_missing_device() {
        let lost = LostFiles::default();
        assert_eq!(lost.status(false), None);
        let state = lost.status(true).map(|status| (status.state, status.complete));
        assert_eq!(state, Some(("looking".to_owned(), false)));
        lost.state.lock().looked_for = Some((0, false));
        assert_eq!(lost.status(true), None);
        lost.look_again();
        assert!(lost.status(true).is_some());
    }
}
