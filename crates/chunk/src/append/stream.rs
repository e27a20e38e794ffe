//! `Stream`: the open segment that appends of one kind go to.

use std::sync::Arc;

use terrace_sync::{Mutex, rank};

use crate::buffers::OpenSegment;

/// The open segment of a stream.
#[derive(Default)]
pub(crate) struct Stream {
    pub(super) slot: Mutex<Slot, rank::append::Stream>,
}

#[derive(Default)]
pub(crate) struct Slot {
    pub(super) open: Option<Arc<OpenSegment>>,
    /// It lies on a slower tier than the stream is for, since that had no room when as many segments had been released.
    pub(super) spilled_at: Option<u64>,
    /// One that was begun so, from when there was room again until there is none.
    pub(super) aside: Option<Arc<OpenSegment>>,
}

impl Stream {
    /// Whether it has an open segment.
    pub(crate) fn has_open(&self) -> bool {
        self.slot.lock().open().is_some()
    }
}

impl Slot {
    pub(super) fn open(&self) -> Option<&Arc<OpenSegment>> {
        self.open.as_ref().filter(|open| !open.is_closed())
    }
}
