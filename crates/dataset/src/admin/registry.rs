//! `Registry`: all datasets of the pool by name and number, in RAM.
//!
//! Invariants: names start with the pool's; a dataset's parent is in the registry too; a node's record in RAM is the
//! stored one.

use std::{
    collections::{BTreeMap, HashMap},
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
    pub(crate) record: RwLock<DatasetRecord>,
    pub(crate) slot: Mutex<Slot>,
    pub(crate) views: Mutex<HashMap<u64, Weak<View>>>,
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

    pub(crate) fn number(&self) -> u32 {
        self.state.number()
    }
}

/// All datasets; names are full names with the pool in front.
#[derive(Default)]
pub(crate) struct Registry {
    by_name: BTreeMap<String, Arc<Node>>,
    by_number: HashMap<u32, Arc<Node>>,
}

impl Registry {
    pub(crate) fn insert(&mut self, name: String, node: Arc<Node>) {
        self.by_number.insert(node.number(), node.clone());
        self.by_name.insert(name, node);
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Arc<Node>> {
        let node = self.by_name.remove(name)?;
        self.by_number.remove(&node.number());
        Some(node)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Node>> {
        self.by_name.get(name).cloned()
    }

    pub(crate) fn by_number(&self, number: u32) -> Option<Arc<Node>> {
        self.by_number.get(&number).cloned()
    }

    /// All, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Arc<Node>)> {
        self.by_name.iter()
    }

    /// A dataset and all below it, by name (parents before children).
    pub(crate) fn tree(&self, name: &str) -> Vec<(String, Arc<Node>)> {
        let own = self.by_name.get_key_value(name);
        let below = format!("{name}/");
        let range = self
            .by_name
            .range(below.clone()..)
            .take_while(|(key, _)| key.starts_with(&below));
        own.into_iter()
            .chain(range)
            .map(|(name, node)| (name.clone(), node.clone()))
            .collect()
    }
}
