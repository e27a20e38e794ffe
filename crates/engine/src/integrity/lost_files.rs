//! What is lost with devices that are gone: which files, named in the background.
//!
//! Invariants: one look at a time, in bounded steps; what is known stays readable until the next look has ended; nobody
//! looks while no live content lies on a device that is not there, and what was found is then forgotten.

use parking_lot::Mutex;
use terrace_chunk::ChunkStore;

use super::damaged_files::{DamageWalk, Damaged, DamagedFile};
use crate::LostStatus;

/// Records that one step reads.
const STEP_RECORDS: usize = 1000;
/// How often it is asked whether there is anything to look for, nanoseconds.
const LOOK_INTERVAL: u64 = 10_000_000_000;
/// Files that the status names.
const NAMED_MAX: usize = 20;

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

/// What is known of losses.
#[derive(Default)]
pub(crate) struct Losses {
    state: Mutex<State>,
}

impl Losses {
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
        Some(LostStatus {
            state: if looking { "looking" } else { "known" }.into(),
            bytes: state
                .looked_for
                .map_or(0, |(bytes, _)| bytes)
                .max(state.unreadable_bytes),
            files: state.files.len() as u64,
            complete: state.whole && !looking,
            names: state
                .files
                .iter()
                .take(NAMED_MAX)
                .map(|file| file.path.clone())
                .collect(),
        })
    }

    /// All that is known, a page of it: files from number `from` on, and whether there are more.
    pub(crate) fn page(&self, from: usize, limit: usize) -> (Vec<DamagedFile>, bool) {
        let state = self.state.lock();
        let page: Vec<DamagedFile> = state.files.iter().skip(from).take(limit).cloned().collect();
        let more = from + page.len() < state.files.len();
        (page, more)
    }
}

/// Some of these names, and how many more there are.
pub(crate) fn names_in_words(names: &[String], most: usize, of: u64) -> String {
    let named = names.len().min(most);
    let mut words = names[..named].join(", ");
    let more = of.saturating_sub(named as u64);
    if more > 0 {
        words.push_str(&format!(" and {more} more"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_long_as_nobody_has_looked_nothing_is_claimed_of_a_missing_device() {
        let losses = Losses::default();
        assert_eq!(losses.status(false), None);
        let state = losses.status(true).map(|status| (status.state, status.complete));
        assert_eq!(state, Some(("looking".to_owned(), false)));
        losses.state.lock().looked_for = Some((0, false));
        assert_eq!(losses.status(true), None);
        losses.look_again();
        assert!(losses.status(true).is_some());
    }

    #[test]
    fn a_list_of_names_is_cut_and_says_so() {
        let names = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        assert_eq!(names_in_words(&names, 5, 3), "a, b, c");
        assert_eq!(names_in_words(&names, 2, 30), "a, b and 28 more");
        assert_eq!(names_in_words(&[], 2, 0), "");
    }
}
