//! Snapshots, holds, and the checkpoints that retention holds.
//!
//! Invariants: taking a snapshot is one record per dataset, all of one checkpoint; destroying one is two records in
//! the foreground (the held record goes, a sweep job comes), whatever it holds; a checkpoint leaves the held set
//! under the commit lock of its dataset, so that no batch keeps anything for it afterwards.

use std::{cell::Cell, sync::Arc};

use terrace_store::Batch;

use crate::{
    admin::{Datasets, DestroyReport, Node},
    posix::{ROOT, Tree},
    records::{HeldRecord, Job, Recount, TEXT_BYTES_MAX, Time, keys},
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

impl Datasets {
    /// Takes the snapshot `DATASET@NAME`, with `recursive` also of every dataset below, all of the same moment.
    /// Durable when it returns. Returns the checkpoint.
    pub fn snapshot(&self, name: &str, recursive: bool, note: &str) -> Result<u64, DatasetError> {
        let _admin = self.administer();
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
            if node.state.held().read().by_name(snapshot).is_some() {
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
        let mut room = self.room_for_snapshot(&nodes, snapshot)?;
        let (checkpoint, _) = self.close_checkpoint(nodes, |checkpoint, nodes| {
            self.complete_room(&mut room, nodes, snapshot)?;
            self.hold_checkpoint(
                checkpoint,
                nodes.iter().map(|node| (node, record.clone())).collect(),
            )
        })?;
        self.environment.store.flush(self.environment.store.newest())?;
        Ok(checkpoint)
    }

    /// Puts `checkpoint` into the held sets of datasets whose commit locks are held and that are committed to it.
    fn hold_checkpoint(
        &self,
        checkpoint: u64,
        mut records: Vec<(&Arc<Node>, HeldRecord)>,
    ) -> Result<(), DatasetError> {
        let mut batch = Batch::new();
        for (node, record) in &mut records {
            let counters = node.state.counters();
            record.referenced_bytes = counters.referenced_bytes();
            record.objects = counters.objects;
            batch.put(keys::held(node.number(), checkpoint), record.encode());
            if let Some(counters) = self.all_shared(node) {
                batch.put(keys::counters(node.number()), counters.encode());
            }
        }
        self.facts.commit(&self.environment.store, batch)?;
        for (node, record) in records {
            node.state.held().write().insert(checkpoint, record);
            if let Some(counters) = self.all_shared(node) {
                node.state.set_recount(None);
                node.state.set_counters(counters);
            }
        }
        Ok(())
    }

    /// Holds the checkpoint just closed for the datasets whose retention wants it and that changed since.
    pub(crate) fn retain(&self, checkpoint: u64, nodes: &[Arc<Node>]) -> Result<(), DatasetError> {
        let time = self.environment.now();
        let taken = Cell::new(0);
        let wanted = nodes.iter().filter(|node| {
            let newest_held = node.state.held().read().newest_until(checkpoint);
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
            self.hold_checkpoint(checkpoint, records)
        }
    }

    /// Lets go of the retained checkpoints that no rule keeps any more.
    pub(crate) fn thin(&self) -> Result<(), DatasetError> {
        let now = self.environment.now().seconds;
        for (_, node) in self.registry.all() {
            let settings = node.state.settings();
            let retained: Vec<_> = {
                let held = node.state.held().read();
                let unnamed = held
                    .iter()
                    .filter(|(_, record)| record.name.is_empty() && record.holds.is_empty());
                unnamed
                    .map(|(checkpoint, record)| (checkpoint, record.time.seconds))
                    .collect()
            };
            let gone = settings.retention.thin(&retained, now);
            if !gone.is_empty() {
                self.let_go(&node, &gone, |record| {
                    record.name.is_empty() && record.holds.is_empty()
                })?;
            }
        }
        Ok(())
    }

    /// Takes checkpoints that still pass `check` out of a dataset's held set and gives what only they held to the
    /// sweep.
    fn let_go(
        &self,
        node: &Arc<Node>,
        checkpoints: &[u64],
        check: impl Fn(&HeldRecord) -> bool,
    ) -> Result<(), DatasetError> {
        let _commit = node.state.commit_lock();
        if node.state.is_gone() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.privileged();
        let mut jobs = Vec::new();
        let mut removed = Vec::new();
        // No version dies for a holder at or above this before the checkpoint is out of the set.
        let current = self.checkpoints.current();
        {
            let mut held = node.state.held().write();
            for &checkpoint in checkpoints {
                if !held.get(checkpoint).is_some_and(&check) {
                    continue;
                }
                let Some(record) = held.remove(checkpoint) else {
                    continue;
                };
                removed.push((checkpoint, record));
                let job = Job::Snapshot {
                    dataset: node.number(),
                    previous: held.newest_before(checkpoint),
                    snapshot: checkpoint,
                    next: held.oldest_after(checkpoint).unwrap_or(current).min(current),
                    cursor: Vec::new(),
                };
                batch.delete(keys::held(node.number(), checkpoint));
                jobs.push(self.new_sweep(&mut batch, job));
            }
        }
        let newest_gone = removed.iter().map(|(checkpoint, _)| *checkpoint).max();
        let recounted = newest_gone.and_then(|gone| self.shared_without(node, gone, &mut batch));
        if let Err(error) = self.facts.commit(&self.environment.store, batch) {
            let mut held = node.state.held().write();
            removed
                .into_iter()
                .for_each(|(checkpoint, record)| held.insert(checkpoint, record));
            return Err(error.into());
        }
        if let Some((counters, job)) = recounted {
            let recount = job.as_ref().and_then(|(number, job)| Recount::of(*number, job));
            node.state.set_recount(recount);
            node.state.set_counters(counters);
            node.state.usage().give_back();
            jobs.extend(job);
        }
        node.end_views(removed.iter().map(|(checkpoint, _)| *checkpoint));
        self.sweeper.add(jobs);
        Ok(())
    }

    /// Destroys the snapshot `DATASET@NAME`, with `recursive` also those of that name below. Constant time; what only
    /// it held is freed in the background. Refuses what a hold protects.
    pub fn destroy_snapshot(
        &self,
        name: &str,
        recursive: bool,
        dry_run: bool,
    ) -> Result<DestroyReport, DatasetError> {
        let _admin = self.administer();
        let (dataset, snapshot) = split_snapshot(name)?;
        let own = self.registry.node(dataset)?;
        let tree = match recursive {
            true => self.registry.tree(dataset),
            false => vec![(dataset.to_owned(), own)],
        };
        let mut report = DestroyReport::default();
        let mut found = Vec::new();
        for (dataset, node) in tree {
            let held = node.state.held().read();
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
                self.let_go(&node, &[checkpoint], |record| record.holds.is_empty())?;
            }
            self.environment.store.flush(self.environment.store.newest())?;
        }
        Ok(report)
    }

    /// Lets go of what retention does not keep (`terrace prune`); a dry run only lists.
    pub fn prune(&self, dataset: &str, dry_run: bool) -> Result<DestroyReport, DatasetError> {
        let _admin = self.administer();
        let node = self.registry.node(dataset)?;
        let now = self.environment.now().seconds;
        let retained: Vec<_> = {
            let held = node.state.held().read();
            let unnamed = held
                .iter()
                .filter(|(_, record)| record.name.is_empty() && record.holds.is_empty());
            unnamed
                .map(|(checkpoint, record)| (checkpoint, record.time.seconds))
                .collect()
        };
        let gone = node.state.settings().retention.thin(&retained, now);
        if !dry_run && !gone.is_empty() {
            self.let_go(&node, &gone, |record| {
                record.name.is_empty() && record.holds.is_empty()
            })?;
        }
        let snapshots = gone
            .iter()
            .map(|checkpoint| format!("{dataset}@@{checkpoint}"))
            .collect();
        Ok(DestroyReport {
            snapshots,
            ..DestroyReport::default()
        })
    }

    /// All snapshots (and, with `retained`, checkpoints that retention holds) of all datasets, or of one and those
    /// below it, by dataset and age.
    pub fn snapshots(&self, below: Option<&str>, retained: bool) -> Result<Vec<SnapshotInfo>, DatasetError> {
        let nodes = self.registry.below(below)?;
        let mut list = Vec::new();
        for (dataset, node) in nodes {
            for (checkpoint, record) in node.state.held().read().iter() {
                if retained || !record.name.is_empty() {
                    list.push(snapshot_info(&dataset, checkpoint, record));
                }
            }
        }
        Ok(list)
    }

    /// One snapshot, `DATASET@NAME`.
    pub fn snapshot_info(&self, name: &str) -> Result<SnapshotInfo, DatasetError> {
        let (node, dataset, checkpoint) = self.find_snapshot(name)?;
        let held = node.state.held().read();
        let record = held
            .get(checkpoint)
            .ok_or_else(|| DatasetError::NoSnapshot(name.to_owned()))?;
        Ok(snapshot_info(&dataset, checkpoint, record))
    }

    /// The size that a volume had when its snapshot `DATASET@NAME` was taken, bytes; `None` of a filesystem.
    pub fn snapshot_size(&self, name: &str) -> Result<Option<u64>, DatasetError> {
        let (node, dataset, checkpoint) = self.find_snapshot(name)?;
        if !node.state.kind().is_volume() {
            return Ok(None);
        }
        let view = self.volume_view(&dataset, &At::Checkpoint(checkpoint))?;
        Ok(Some(view.attributes(ROOT)?.size))
    }

    fn find_snapshot(&self, name: &str) -> Result<(Arc<Node>, String, u64), DatasetError> {
        let (dataset, snapshot) = split_snapshot(name)?;
        let node = self.registry.node(dataset)?;
        let checkpoint = node.state.held().read().by_name(snapshot);
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
        let _admin = self.administer();
        let (node, _, checkpoint) = self.find_snapshot(name)?;
        let mut record = {
            let held = node.state.held().read();
            held.get(checkpoint)
                .cloned()
                .ok_or_else(|| DatasetError::NoSnapshot(name.to_owned()))?
        };
        change(&mut record.holds)?;
        self.replace_held(&node, checkpoint, record)
    }

    /// Gives a snapshot another name within its dataset.
    pub fn rename_snapshot(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        let _admin = self.administer();
        let (node, dataset, checkpoint) = self.find_snapshot(from)?;
        let (to_dataset, snapshot) = split_snapshot(to)?;
        if to_dataset != dataset {
            return Err(DatasetError::Refused(
                "a snapshot stays with its dataset; only the name may change".into(),
            ));
        }
        let mut record = {
            let held = node.state.held().read();
            if held.by_name(snapshot).is_some() {
                return Err(DatasetError::Exists(to.to_owned()));
            }
            held.get(checkpoint)
                .cloned()
                .ok_or_else(|| DatasetError::NoSnapshot(from.to_owned()))?
        };
        record.name = snapshot.to_owned();
        self.replace_held(&node, checkpoint, record)
    }

    fn replace_held(&self, node: &Node, checkpoint: u64, record: HeldRecord) -> Result<(), DatasetError> {
        let mut batch = Batch::new();
        batch.privileged();
        batch.put(keys::held(node.number(), checkpoint), record.encode());
        let sequence = self.environment.store.commit(batch)?;
        node.state.held().write().insert(checkpoint, record);
        self.environment.store.flush(sequence)?;
        Ok(())
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
