//! `Registry`: all datasets of the pool by name and number, in RAM, and the pool's name, with which theirs begin.
//!
//! Invariants: names start with the pool's; a dataset's parent is in the registry too. The turn of administrative changes is the first
//! lock that is taken; that of the names is the last, and held for no call of the store.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use terrace_sync::{Mutex, MutexGuard, RwLock, rank};

use super::node::Node;
use crate::{records::DatasetRecord, settings::DatasetError};

/// See the module.
pub(crate) struct Registry {
    pool: String,
    nodes: RwLock<Nodes, rank::dataset::Registry>,
    turn: Mutex<(), rank::dataset::Administration>,
}

/// All by name and by number.
#[derive(Default)]
struct Nodes {
    by_name: BTreeMap<String, Arc<Node>>,
    by_number: HashMap<u32, Arc<Node>>,
}

impl Nodes {
    fn insert(&mut self, name: String, node: Arc<Node>) {
        self.by_number.insert(node.number(), node.clone());
        self.by_name.insert(name, node);
    }

    fn remove(&mut self, name: &str) -> Option<Arc<Node>> {
        let node = self.by_name.remove(name)?;
        self.by_number.remove(&node.number());
        Some(node)
    }

    fn get(&self, name: &str) -> Option<Arc<Node>> {
        self.by_name.get(name).cloned()
    }

    fn by_number(&self, number: u32) -> Option<Arc<Node>> {
        self.by_number.get(&number).cloned()
    }

    /// All, by name.
    fn iter(&self) -> impl Iterator<Item = (&String, &Arc<Node>)> {
        self.by_name.iter()
    }

    /// A dataset and all below it, by name (parents before children).
    fn tree(&self, name: &str) -> Vec<(String, Arc<Node>)> {
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

/// A dataset that gets another name: its old name, its new one, and its record then.
pub(super) type Renamed = (String, String, Arc<Node>, DatasetRecord);

impl Registry {
    pub(crate) fn new(pool: &str) -> Self {
        Self {
            pool: pool.to_owned(),
            nodes: RwLock::default(),
            turn: Mutex::default(),
        }
    }

    /// The pool's name.
    pub(crate) fn pool(&self) -> &str {
        &self.pool
    }

    /// One administrative change at a time.
    pub(crate) fn administer(&self) -> MutexGuard<'_, (), rank::dataset::Administration> {
        self.turn.lock()
    }

    pub(crate) fn insert(&self, name: String, node: Arc<Node>) {
        self.nodes.write().insert(name, node);
    }

    /// Takes these out, in one moment.
    pub(crate) fn remove(&self, tree: &[(String, Arc<Node>)]) {
        let mut nodes = self.nodes.write();
        tree.iter().for_each(|(name, _)| drop(nodes.remove(name)));
    }

    /// Gives these other names, in one moment.
    pub(crate) fn rename(&self, moved: &[Renamed]) {
        let mut nodes = self.nodes.write();
        moved.iter().for_each(|(old, ..)| drop(nodes.remove(old)));
        for (_, new, node, record) in moved {
            node.set_record(record.clone());
            node.state.set_name(new);
            nodes.insert(new.clone(), node.clone());
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.read().get(name)
    }

    /// The same; `NotFound` without one.
    pub(crate) fn node(&self, name: &str) -> Result<Arc<Node>, DatasetError> {
        self.get(name)
            .ok_or_else(|| DatasetError::NotFound(name.to_owned()))
    }

    pub(crate) fn by_number(&self, number: u32) -> Option<Arc<Node>> {
        self.nodes.read().by_number(number)
    }

    /// A dataset and all below it, by name (parents before children).
    pub(crate) fn tree(&self, name: &str) -> Vec<(String, Arc<Node>)> {
        self.nodes.read().tree(name)
    }

    /// All, or one and those below it, by name.
    pub(crate) fn below(&self, name: Option<&str>) -> Result<Vec<(String, Arc<Node>)>, DatasetError> {
        let Some(name) = name else { return Ok(self.all()) };
        self.node(name)?;
        Ok(self.tree(name))
    }

    /// All, by name.
    pub(crate) fn all(&self) -> Vec<(String, Arc<Node>)> {
        let nodes = self.nodes.read();
        nodes
            .iter()
            .map(|(name, node)| (name.clone(), node.clone()))
            .collect()
    }

    /// Those that are wanted, by name.
    pub(crate) fn nodes_where(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Arc<Node>> {
        let nodes = self.nodes.read();
        let nodes = nodes.iter().map(|(_, node)| node);
        nodes.filter(|node| wanted(node)).cloned().collect()
    }

    /// Whether there is one like that.
    pub(crate) fn any(&self, wanted: impl Fn(&Node) -> bool) -> bool {
        self.nodes.read().iter().any(|(_, node)| wanted(node))
    }

    /// Name and properties of a dataset and of each above it.
    pub(crate) fn chain(&self, name: &str) -> Vec<(String, BTreeMap<String, String>)> {
        let nodes = self.nodes.read();
        std::iter::successors(Some(name), |name| crate::settings::parent(name))
            .filter_map(|name| {
                nodes
                    .get(name)
                    .map(|node| (name.to_owned(), node.record().properties))
            })
            .collect()
    }

    pub(crate) fn full_name(&self, stored: &str) -> String {
        match stored.is_empty() {
            true => self.pool.clone(),
            false => format!("{}/{stored}", self.pool),
        }
    }

    pub(crate) fn stored_name(&self, full: &str) -> Result<String, DatasetError> {
        match full.strip_prefix(&self.pool) {
            Some("") => Ok(String::new()),
            Some(rest) if rest.starts_with('/') => Ok(rest[1..].to_owned()),
            _ => Err(DatasetError::Refused(format!(
                "'{full}' does not lie in pool '{}'",
                self.pool
            ))),
        }
    }
}
