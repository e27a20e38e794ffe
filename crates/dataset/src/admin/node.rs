//! `Node`: one dataset as the registry knows it, its handle while it is open, and the views of its past.
//!
//! Invariants: a node's record in RAM is the stored one; a borrowed handle does not count as use.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::{Mutex, RwLock};

use crate::{
    faces::{Filesystem, Live, View, Volume},
    live::DatasetState,
    records::DatasetRecord,
};

/// An open dataset.
#[derive(Clone)]
pub(crate) enum Handle {
    Filesystem(Arc<Filesystem>),
    Volume(Arc<Volume>),
}

impl Handle {
    pub(crate) fn live(&self) -> &dyn Live {
        match self {
            Self::Filesystem(filesystem) => filesystem.as_ref(),
            Self::Volume(volume) => volume.as_ref(),
        }
    }

    fn owners(&self) -> usize {
        match self {
            Self::Filesystem(filesystem) => Arc::strong_count(filesystem),
            Self::Volume(volume) => Arc::strong_count(volume),
        }
    }
}

/// Where a node keeps its handle while it is open.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) handle: Option<Handle>,
    borrowed: usize,
}

impl Slot {
    /// Whether somebody besides the registry has the handle.
    pub(crate) fn is_used(&self) -> bool {
        self.handle
            .as_ref()
            .is_some_and(|handle| handle.owners() > 1 + self.borrowed)
    }
}

/// A handle that the registry uses for a moment; does not count as use.
pub(crate) struct Borrowed {
    node: Arc<Node>,
    handle: Option<Handle>,
}

impl Borrowed {
    /// The handle of a node, if it is open.
    pub(crate) fn of(node: &Arc<Node>) -> Option<Self> {
        let mut slot = node.slot.lock();
        let handle = slot.handle.clone()?;
        slot.borrowed += 1;
        Some(Self {
            node: node.clone(),
            handle: Some(handle),
        })
    }

    pub(crate) fn live(&self) -> Option<&dyn Live> {
        self.handle.as_ref().map(Handle::live)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Both under the lock, so that `is_used` never sees one without the other.
        let mut slot = self.node.slot.lock();
        let handle = self.handle.take();
        slot.borrowed -= 1;
        let replaced = handle.is_some() && slot.handle.is_none();
        if replaced {
            // The last owner: closing it may take long.
            drop(slot);
        }
        drop(handle);
    }
}

/// One dataset.
pub(crate) struct Node {
    pub(crate) state: Arc<DatasetState>,
    pub(super) record: RwLock<DatasetRecord>,
    pub(super) slot: Mutex<Slot>,
    pub(super) views: Mutex<HashMap<u64, Weak<View>>>,
}

impl Node {
    /// Whether room is promised to it, or to files in it.
    pub(crate) fn has_promise(&self) -> bool {
        self.state.kind().is_volume() || self.state.usage().has_promise()
    }

    pub(crate) fn new(state: Arc<DatasetState>, record: DatasetRecord) -> Arc<Self> {
        Arc::new(Self {
            state,
            record: RwLock::new(record),
            slot: Mutex::default(),
            views: Mutex::default(),
        })
    }

    /// Views of these checkpoints are `Stale` from now on.
    pub(crate) fn end_views(&self, checkpoints: impl IntoIterator<Item = u64>) {
        let views = self.views.lock();
        for checkpoint in checkpoints {
            if let Some(view) = views.get(&checkpoint).and_then(Weak::upgrade) {
                view.set_gone();
            }
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.state.number()
    }
}
