//! Entries of the journal, and what is kept of scrubs, one parser a function: what must hold of any bytes. The harness of the tests
//! (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use crate::{
    integrity::{LIST_MAX, Outcome, Progress},
    reporting::{Ring, event_log},
};

/// An entry of the journal.
pub fn journal(bytes: &[u8]) {
    if let Some(entry) = event_log::decode(&event_log::key(Ring::Events, 7), bytes) {
        assert_eq!(entry.id, 7);
    }
    let _ = event_log::decode(bytes, bytes);
}

/// How far a scrub came: bounded.
pub fn scrub_progress(bytes: &[u8]) {
    if let Ok(progress) = Progress::decode(bytes) {
        assert!(progress.is_bounded());
        progress.encode();
    }
}

/// What a scrub found: bounded.
pub fn scrub_record(bytes: &[u8]) {
    if let Ok(outcome) = Outcome::decode(bytes) {
        assert!(outcome.damaged.len() as u64 <= LIST_MAX);
    }
}
