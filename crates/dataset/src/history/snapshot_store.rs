//! `SnapshotStore`: snapshots, and the tags that keep them from being destroyed.
//!
//! Invariants: snapshots that are taken together are of one checkpoint, and durable when it is reported; destroying one is constant
//! work in the foreground, whatever it holds.

use std::sync::Arc;

use super::{checkpointer::Checkpointer, held_sets::HeldSets, snapshot_room::SnapshotRoom};
use crate::{
    live::Environment,
    posix::{ROOT, Tree},
    records::{HeldRecord, TEXT_BYTES_MAX, Time},
    registry::{Node, Registry},
    settings::{At, DatasetError, check_part, split_snapshot},
};

/// What is known of a snapshot, or of a checkpoint that retention holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// `DATASET@NAME`, or `DATASET@@CHECKPOINT` for a retained checkpoint.
    pub name: String,
    /// Its dataset's full name.
    pub dataset: String,
    /// The name behind the `@`; empty for a retained checkpoint.
    pub snapshot: String,
    /// Its checkpoint.
    pub checkpoint: u64,
    /// When it was taken.
    pub time: Time,
    /// What the user said of it.
    pub note: String,
    /// Tags that forbid destroying it.
    pub holds: Vec<String>,
    /// Content that the dataset mapped then, bytes, before compression and dedup.
    pub referenced_bytes: u64,
    /// Objects that the dataset had then.
    pub objects: u64,
}

/// What was, or with a dry run would be, destroyed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DestroyReport {
    /// Datasets, by full name.
    pub datasets: Vec<String>,
    /// Snapshots, by full name.
    pub snapshots: Vec<String>,
    /// Content that destroyed datasets map, or that a destroyed snapshot can be the only one to hold, bytes, before compression
    /// and dedup: an upper bound of what is freed.
    pub bytes: u64,
}

/// See the module.
pub struct SnapshotStore {
    environment: Arc<Environment>,
    registry: Arc<Registry>,
    checkpointer: Arc<Checkpointer>,
    held: Arc<HeldSets>,
}

impl SnapshotStore {
    pub(crate) fn new(
        environment: &Arc<Environment>,
        registry: &Arc<Registry>,
        checkpointer: &Arc<Checkpointer>,
        held: &Arc<HeldSets>,
    ) -> Self {
        Self {
            environment: environment.clone(),
            registry: registry.clone(),
            checkpointer: checkpointer.clone(),
            held: held.clone(),
        }
    }

    /// Takes the snapshot `DATASET@NAME`, with `recursive` also of every dataset below, all of the same moment.
    /// Durable when it returns. Returns the checkpoint.
    pub fn take(&self, name: &str, recursive: bool, note: &str) -> Result<u64, DatasetError> {
        let _admin = self.registry.administer();
        let (dataset, snapshot) = split_snapshot(name)?;
        if note.len() > TEXT_BYTES_MAX {
            return Err(DatasetError::Refused(format!(
                "the note is longer than {TEXT_BYTES_MAX} bytes"
            )));
        }
        let own = self.registry.node(dataset)?;
        let nodes = match recursive {
            true => self.registry.tree(dataset),
            false => vec![(dataset.to_owned(), own)],
        };
        for (name, node) in &nodes {
            if node.state.held().by_name(snapshot).is_some() {
                return Err(DatasetError::Exists(format!("{name}@{snapshot}")));
            }
        }
        let record = HeldRecord {
            name: snapshot.to_owned(),
            time: self.environment.now(),
            note: note.to_owned(),
            ..HeldRecord::default()
        };
        let nodes: Vec<_> = nodes.into_iter().map(|(_, node)| node).collect();
        let mut room = SnapshotRoom::set_aside(&self.environment, &nodes, snapshot)?;
        let (checkpoint, _) = self.checkpointer.close(nodes, |checkpoint, nodes| {
            room.complete(nodes)?;
            self.held.hold(
                checkpoint,
                nodes.iter().map(|node| (node, record.clone())).collect(),
            )
        })?;
        self.environment.store.flush(self.environment.store.newest())?;
        Ok(checkpoint)
    }

    /// Destroys the snapshot `DATASET@NAME`, with `recursive` also those of that name below. Constant time; what only
    /// it held is freed in the background. Refuses what a hold protects.
    pub fn destroy(&self, name: &str, recursive: bool, dry_run: bool) -> Result<DestroyReport, DatasetError> {
        let _admin = self.registry.administer();
        let (dataset, snapshot) = split_snapshot(name)?;
        let own = self.registry.node(dataset)?;
        let tree = match recursive {
            true => self.registry.tree(dataset),
            false => vec![(dataset.to_owned(), own)],
        };
        let mut report = DestroyReport::default();
        let mut found = Vec::new();
        for (dataset, node) in tree {
            let held = node.state.held();
            let Some(checkpoint) = held.by_name(snapshot) else {
                continue;
            };
            let full = format!("{dataset}@{snapshot}");
            let record = held.get(checkpoint);
            if let Some(tag) = record.and_then(|record| record.holds.first()) {
                return Err(DatasetError::Held {
                    name: full,
                    tag: tag.clone(),
                });
            }
            // What the live dataset has still stays, and so does what the snapshot never had.
            let referenced = record.map_or(0, |record| record.referenced_bytes);
            let history = node.state.counters().history_bytes();
            report.bytes = report.bytes.saturating_add(history.min(referenced));
            drop(held);
            report.snapshots.push(full);
            found.push((node, checkpoint));
        }
        if found.is_empty() {
            return Err(DatasetError::NoSnapshot(name.to_owned()));
        }
        if !dry_run {
            for (node, checkpoint) in found {
                self.held
                    .drop_checkpoints(&node, &[checkpoint], |record| record.holds.is_empty())?;
            }
            self.environment.store.flush(self.environment.store.newest())?;
        }
        Ok(report)
    }

    /// All snapshots (and, with `retained`, checkpoints that retention holds) of all datasets, or of one and those
    /// below it, by dataset and age.
    pub fn list(&self, below: Option<&str>, retained: bool) -> Result<Vec<SnapshotInfo>, DatasetError> {
        let nodes = self.registry.below(below)?;
        let mut list = Vec::new();
        for (dataset, node) in nodes {
            for (checkpoint, record) in node.state.held().iter() {
                if retained || !record.name.is_empty() {
                    list.push(snapshot_info(&dataset, checkpoint, record));
                }
            }
        }
        Ok(list)
    }

    /// One snapshot, `DATASET@NAME`.
    pub fn info(&self, name: &str) -> Result<SnapshotInfo, DatasetError> {
        let (node, dataset, checkpoint) = self.find(name)?;
        let held = node.state.held();
        let record = held
            .get(checkpoint)
            .ok_or_else(|| DatasetError::NoSnapshot(name.to_owned()))?;
        Ok(snapshot_info(&dataset, checkpoint, record))
    }

    /// The size that a volume had when its snapshot `DATASET@NAME` was taken, bytes; `None` of a filesystem.
    pub fn size(&self, name: &str) -> Result<Option<u64>, DatasetError> {
        let (node, _, checkpoint) = self.find(name)?;
        if !node.state.kind().is_volume() {
            return Ok(None);
        }
        let view = node.view(true, &At::Checkpoint(checkpoint))?;
        Ok(Some(view.attributes(ROOT)?.size))
    }

    fn find(&self, name: &str) -> Result<(Arc<Node>, String, u64), DatasetError> {
        let (dataset, snapshot) = split_snapshot(name)?;
        let node = self.registry.node(dataset)?;
        let checkpoint = node.state.held().by_name(snapshot);
        let checkpoint = checkpoint.ok_or_else(|| DatasetError::NoSnapshot(name.to_owned()))?;
        Ok((node, dataset.to_owned(), checkpoint))
    }

    /// Forbids destroying a snapshot until the tag is released.
    pub fn hold(&self, tag: &str, name: &str) -> Result<(), DatasetError> {
        check_part(tag).map_err(|cause| DatasetError::InvalidName {
            name: tag.to_owned(),
            cause,
        })?;
        self.change_holds(name, |holds| {
            let missing = !holds.iter().any(|other| other == tag);
            if missing && holds.len() < 100 {
                holds.push(tag.to_owned());
                return Ok(());
            }
            Err(DatasetError::Hold {
                name: name.to_owned(),
                tag: tag.to_owned(),
                state: "already a",
            })
        })
    }

    /// Takes a tag away.
    pub fn release(&self, tag: &str, name: &str) -> Result<(), DatasetError> {
        self.change_holds(name, |holds| match holds.iter().position(|other| other == tag) {
            Some(at) => {
                holds.remove(at);
                Ok(())
            }
            None => Err(DatasetError::Hold {
                name: name.to_owned(),
                tag: tag.to_owned(),
                state: "no",
            }),
        })
    }

    fn change_holds(
        &self,
        name: &str,
        change: impl FnOnce(&mut Vec<String>) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        let _admin = self.registry.administer();
        let (node, _, checkpoint) = self.find(name)?;
        let mut record = {
            let held = node.state.held();
            held.get(checkpoint)
                .cloned()
                .ok_or_else(|| DatasetError::NoSnapshot(name.to_owned()))?
        };
        change(&mut record.holds)?;
        self.held.replace_held(&node, checkpoint, record)
    }

    /// Gives a snapshot another name within its dataset.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        let _admin = self.registry.administer();
        let (node, dataset, checkpoint) = self.find(from)?;
        let (to_dataset, snapshot) = split_snapshot(to)?;
        if to_dataset != dataset {
            return Err(DatasetError::Refused(
                "a snapshot stays with its dataset; only the name may change".into(),
            ));
        }
        let mut record = {
            let held = node.state.held();
            if held.by_name(snapshot).is_some() {
                return Err(DatasetError::Exists(to.to_owned()));
            }
            held.get(checkpoint)
                .cloned()
                .ok_or_else(|| DatasetError::NoSnapshot(from.to_owned()))?
        };
        record.name = snapshot.to_owned();
        self.held.replace_held(&node, checkpoint, record)
    }
}

fn snapshot_info(dataset: &str, checkpoint: u64, record: &HeldRecord) -> SnapshotInfo {
    let name = if record.name.is_empty() {
        format!("{dataset}@@{checkpoint}")
    } else {
        format!("{dataset}@{}", record.name)
    };
    SnapshotInfo {
        name,
        dataset: dataset.to_owned(),
        snapshot: record.name.clone(),
        checkpoint,
        time: record.time,
        note: record.note.clone(),
        holds: record.holds.clone(),
        referenced_bytes: record.referenced_bytes,
        objects: record.objects,
    }
}
