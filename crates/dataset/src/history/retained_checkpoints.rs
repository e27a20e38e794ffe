//! `RetainedCheckpoints`: checkpoints that the retention of datasets holds, and what they take.
//!
//! Invariants: one that no rule keeps any more is let go of when the next commit is due; of a dataset with promises one is held only
//! if there is room to write over what it holds; what they take is told from the counters of each dataset, and nothing is walked.

use std::{cell::Cell, collections::BTreeMap, sync::Arc};

use terrace_device::format_size;
use terrace_sync::{Mutex, rank};

use super::{held_sets::HeldSets, snapshot_store::DestroyReport};
use crate::{
    live::Environment,
    records::HeldRecord,
    registry::{Node, Registry},
    settings::DatasetError,
};

/// See the module.
pub struct RetainedCheckpoints {
    environment: Arc<Environment>,
    registry: Arc<Registry>,
    held: Arc<HeldSets>,
    /// Datasets of which none was held for want of room, by number, with what it would have had to set aside, bytes.
    without_room: Mutex<BTreeMap<u32, u64>, rank::dataset::Unretained>,
}

impl RetainedCheckpoints {
    pub(crate) fn new(
        environment: &Arc<Environment>,
        registry: &Arc<Registry>,
        held: &Arc<HeldSets>,
    ) -> Self {
        Self {
            environment: environment.clone(),
            registry: registry.clone(),
            held: held.clone(),
            without_room: Mutex::default(),
        }
    }

    /// Holds the checkpoint just closed for the datasets whose retention wants it and that changed since.
    pub(super) fn retain(&self, checkpoint: u64, nodes: &[Arc<Node>]) -> Result<(), DatasetError> {
        let time = self.environment.now();
        let taken = Cell::new(0);
        let wanted = nodes.iter().filter(|node| {
            let newest_held = node.state.held().newest_until(checkpoint);
            !node.state.settings().retention.is_none()
                && newest_held.is_none_or(|held| node.state.counters().newest_checkpoint > held)
                && self.may_retain(node, &taken)
        });
        let record = HeldRecord {
            time,
            ..HeldRecord::default()
        };
        let records: Vec<_> = wanted.map(|node| (node, record.clone())).collect();
        if records.is_empty() {
            Ok(())
        } else {
            self.held.hold(checkpoint, records)
        }
    }

    /// Lets go of those that no rule keeps any more.
    pub(super) fn thin(&self) -> Result<(), DatasetError> {
        let now = self.environment.now().seconds;
        for (_, node) in self.registry.all() {
            self.drop_checkpoints(&node, &outlived(&node, now))?;
        }
        Ok(())
    }

    /// Lets go of those of a dataset that no rule keeps (`terrace prune`); a dry run only lists.
    pub fn prune(&self, dataset: &str, dry_run: bool) -> Result<DestroyReport, DatasetError> {
        let _admin = self.registry.administer();
        let node = self.registry.node(dataset)?;
        let gone = outlived(&node, self.environment.now().seconds);
        if !dry_run {
            self.drop_checkpoints(&node, &gone)?;
        }
        let names = gone.iter().map(|checkpoint| format!("{dataset}@@{checkpoint}"));
        Ok(DestroyReport {
            snapshots: names.collect(),
            ..DestroyReport::default()
        })
    }

    fn drop_checkpoints(&self, node: &Arc<Node>, checkpoints: &[u64]) -> Result<(), DatasetError> {
        match checkpoints.is_empty() {
            true => Ok(()),
            false => self.held.drop_checkpoints(node, checkpoints, is_retained),
        }
    }

    /// Whether there is room to hold a checkpoint of a dataset, beside the `taken` bytes that others need for theirs at the same moment.
    fn may_retain(&self, node: &Node, taken: &Cell<u64>) -> bool {
        if !node.has_promise() {
            return true;
        }
        let needs = node.state.usage().snapshot_bytes(0);
        let all = taken.get().saturating_add(needs);
        let may = needs == 0 || self.environment.store.available_bytes() >= all;
        let mut without_room = self.without_room.lock();
        if may {
            taken.set(all);
            without_room.remove(&node.number());
        } else {
            without_room.insert(node.number(), needs);
        }
        may
    }

    /// Datasets of which retention held no checkpoint when it was to, with what it would have had to set aside, bytes.
    pub fn without_room(&self) -> Vec<(String, u64)> {
        let name_of = |number: &u32| {
            let node = self.registry.by_number(*number)?;
            (!node.state.settings().retention.is_none()).then(|| node.state.name().to_string())
        };
        let mut without_room = self.without_room.lock();
        without_room.retain(|number, _| name_of(number).is_some());
        let lacking = without_room.iter();
        lacking
            .filter_map(|(number, bytes)| Some((name_of(number)?, *bytes)))
            .collect()
    }

    /// What status, and whoever finds no room, is told of history that retention keeps, where that is `worth_bytes` or more; empty
    /// else. It is content as it was written, and what snapshots hold as well is not told apart from it.
    pub fn describe(&self, worth_bytes: u64) -> String {
        let mut keeping = Vec::new();
        let mut has_snapshots = false;
        for (name, node) in self.registry.all() {
            let held = node.state.held();
            let any_retained = held.iter().any(|(_, record)| is_retained(record));
            let bytes = node.state.counters().history_bytes();
            if any_retained && bytes > 0 {
                has_snapshots |= held.iter().any(|(_, record)| !record.name.is_empty());
                keeping.push((bytes, name));
            }
        }
        let all = keeping
            .iter()
            .fold(0u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
        let Some((_, most)) = keeping.iter().max() else {
            return String::new();
        };
        if all < worth_bytes {
            return String::new();
        }
        let others = match keeping.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let snapshots = if has_snapshots { " and snapshots" } else { "" };
        format!(
            "{} of history is kept by the retention{snapshots} of '{most}'{others}: 'terrace set retention=RULES {most}' with \
             shorter rules, or none, and 'terrace prune {most}' give back what they keep no longer",
            format_size(all)
        )
    }
}

/// Whether retention alone holds it.
fn is_retained(record: &HeldRecord) -> bool {
    record.name.is_empty() && record.holds.is_empty()
}

/// The retained checkpoints of a dataset that no rule keeps any more.
fn outlived(node: &Node, now_seconds: i64) -> Vec<u64> {
    let retained: Vec<_> = {
        let held = node.state.held();
        let retained = held.iter().filter(|(_, record)| is_retained(record));
        retained
            .map(|(checkpoint, record)| (checkpoint, record.time.seconds))
            .collect()
    };
    node.state.settings().retention.thin(&retained, now_seconds)
}
