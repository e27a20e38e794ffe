//! `DatasetInfo`: what is known of a dataset without opening it.

use std::sync::Arc;

use terrace_store::Space;

use super::{node::Node, registry::Registry};
use crate::{
    records::{Kind, Time},
    settings::{DatasetError, Settings},
};

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetInfo {
    /// Full name.
    pub name: String,
    /// Number in keys.
    pub number: u32,
    /// Filesystem or volume.
    pub kind: Kind,
    /// When it was made.
    pub created: Time,
    /// Content that it maps now, bytes, before compression and dedup.
    pub referenced_bytes: u64,
    /// Content that only its snapshots and retained checkpoints map, bytes.
    pub history_bytes: u64,
    /// Referenced and history of it and of all datasets below, and room reserved for them, bytes.
    pub used_bytes: u64,
    /// What can still be written: room in the pool and in the quotas, bytes.
    pub available_bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Checkpoints held by retention.
    pub retained: u64,
    /// Whether somebody has it open (mounted, attached, served).
    pub in_use: bool,
    /// Settings in force.
    pub settings: Arc<Settings>,
}

impl Registry {
    /// All datasets, or one and those below it, by name, in a pool that has this space.
    pub(crate) fn list(&self, below: Option<&str>, space: &Space) -> Result<Vec<DatasetInfo>, DatasetError> {
        let nodes = self.below(below)?.into_iter();
        Ok(nodes
            .map(|(name, node)| self.describe(name, &node, space))
            .collect())
    }

    /// One dataset.
    pub(crate) fn info(&self, name: &str, space: &Space) -> Result<DatasetInfo, DatasetError> {
        let node = self.node(name)?;
        Ok(self.describe(name.to_owned(), &node, space))
    }

    fn describe(&self, name: String, node: &Arc<Node>, space: &Space) -> DatasetInfo {
        let counters = node.state.counters();
        let used_bytes = |(_, node): &(String, Arc<Node>)| {
            let history = node.state.counters().history_bytes();
            node.referenced_bytes() + history + node.state.usage().set_aside_bytes()
        };
        let used_bytes = self.tree(&name).iter().map(used_bytes).sum();
        // One lock after the other: who holds the handle may wait for a commit, and that for the held set.
        let in_use = node.is_used();
        let (snapshots, all) = {
            let held = node.state.held();
            let snapshots = held.iter().filter(|(_, record)| !record.name.is_empty()).count();
            (snapshots as u64, held.len() as u64)
        };
        let usage = node.state.usage();
        let room = usage.available_bytes(space);
        let record = node.record();
        DatasetInfo {
            number: node.number(),
            kind: record.kind,
            created: record.created,
            referenced_bytes: node.referenced_bytes(),
            history_bytes: counters.history_bytes(),
            used_bytes,
            available_bytes: usage.quota_left_bytes().map_or(room, |left| left.min(room)),
            objects: counters.objects,
            snapshots,
            retained: all - snapshots,
            in_use,
            settings: node.state.settings(),
            name,
        }
    }
}
