//! Errors of background work, which has nobody to return them to.
//!
//! Invariant: the same error is noted once, not at every step that meets it.

use std::sync::Arc;

use terrace_sync::{Mutex, rank};

use super::event_log::EventLog;
use crate::EngineError;

/// See the module.
pub(crate) struct Complaints {
    events: Arc<EventLog>,
    last: Mutex<String, rank::Leaf>,
}

impl Complaints {
    pub(crate) fn new(events: Arc<EventLog>) -> Self {
        Self {
            events,
            last: Mutex::default(),
        }
    }

    /// Notes an error of a worker, unless it is the one that was noted last.
    pub(crate) fn add(&self, worker: &str, error: &EngineError) {
        if matches!(error, EngineError::Closed) {
            return;
        }
        let text = format!("{worker}: {error}");
        let mut last = self.last.lock();
        if *last != text {
            tracing::error!("{text}");
            last.clone_from(&text);
            drop(last);
            self.events.add("error", &text);
        }
    }
}
