//! `RecentWrites`: what a client wrote lately, as it remembers it, to be written again if a stop loses it.

use std::collections::VecDeque;

use terrace_store::{Compression, Placement};

use crate::models::Content;

/// Writes that a client remembers.
const RECENT_MAX: usize = 12;

/// Chunks that a client wrote, and how.
#[derive(Clone)]
pub(crate) struct Recent {
    /// The newest batch then.
    pub(crate) after: u64,
    pub(crate) contents: Vec<Content>,
    pub(crate) compression: Compression,
    pub(crate) dedup: bool,
    pub(crate) placement: Placement,
}

/// See the module.
#[derive(Default)]
pub(crate) struct RecentWrites(VecDeque<Recent>);

impl RecentWrites {
    pub(super) fn remember(&mut self, recent: Recent) {
        if self.0.len() == RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(recent);
    }

    /// Those that a recovery up to this batch lost; all are forgotten.
    pub(super) fn take_lost(&mut self, newest: u64) -> Vec<Recent> {
        self.0.drain(..).filter(|recent| recent.after >= newest).collect()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
