//! `Lifecycle`: creating, renaming, resizing and destroying datasets.
//!
//! Invariants: each change is one batch, flushed before it is reported; destroying does O(datasets named) work in the
//! foreground and leaves the content to the sweep; what is destroyed is gone for its users at once.

use crate::{
    faces::{Filesystem, Volume},
    history::{DestroyReport, Recounter},
    live::Environment,
    properties::{PropertyService, above_quota},
    quota::{WorkingRoom, working_bytes_of},
    records::{Counters, DatasetRecord, Job, Kind, VOLUME_BYTES_MAX, VersionedBatch, keys},
    registry::{Node, PoolFacts, Registry},
    settings::{DatasetError, VOLUME_CHUNK_SIZE, name as names},
};
use std::{collections::BTreeMap, sync::Arc};

use terrace_store::{BLOCK_BYTES, Batch, Reservation};

/// What to create.
#[derive(Debug, Clone, Default)]
pub struct NewDataset {
    /// A volume of this size, bytes; `None` for a filesystem.
    pub volume_bytes: Option<u64>,
    /// Do not reserve the size of a volume.
    pub sparse: bool,
    /// Create missing datasets above as well.
    pub parents: bool,
    /// Properties to set.
    pub properties: Vec<(String, String)>,
}

/// See the module.
pub(super) struct Lifecycle {
    pub(super) environment: Arc<Environment>,
    pub(super) registry: Arc<Registry>,
    pub(super) facts: Arc<PoolFacts>,
    pub(super) recounter: Arc<Recounter>,
    pub(super) properties: Arc<PropertyService>,
    /// What the usage of all of them shares.
    pub(super) common: Arc<WorkingRoom>,
}

impl Lifecycle {
    /// Creates a filesystem or volume.
    pub(super) fn create(&self, name: &str, new: &NewDataset) -> Result<(), DatasetError> {
        let _admin = self.registry.administer();
        names::check_dataset(name)?;
        let stored = self.registry.stored_name(name)?;
        if self.registry.get(name).is_some() {
            return Err(DatasetError::Exists(name.to_owned()));
        }
        let missing = self.missing_parents(name)?;
        if let Some(parent) = missing.last()
            && !new.parents
        {
            return Err(DatasetError::NoParent(parent.clone()));
        }
        let mut properties = BTreeMap::new();
        for (property, value) in &new.properties {
            properties.insert(property.clone(), self.properties.check(property, value)?);
        }
        let kind = match new.volume_bytes {
            None if properties.contains_key("block_size") => {
                return Err(DatasetError::InvalidProperty(
                    "'block_size' is a property of volumes".into(),
                ));
            }
            None => Kind::Filesystem,
            Some(size_bytes) => {
                let size_bytes = check_volume_size(size_bytes)?;
                if !new.sparse && !properties.contains_key("reservation") {
                    properties.insert("reservation".into(), terrace_device::exact_size(size_bytes));
                }
                // Written down, so that volumes made before this was their default keep what they have.
                let is_chosen =
                    |(_, above): &(String, BTreeMap<String, String>)| above.contains_key("chunk_size");
                if !properties.contains_key("chunk_size") && !self.registry.chain(name).iter().any(is_chosen)
                {
                    properties.insert("chunk_size".into(), VOLUME_CHUNK_SIZE.into());
                }
                Kind::Volume { size_bytes }
            }
        };
        let mut made = Vec::new();
        for parent in &missing {
            made.push(self.prepare(
                self.registry.stored_name(parent)?,
                Kind::Filesystem,
                BTreeMap::new(),
            )?);
        }
        let reservation = crate::settings::settings(&[(name.to_owned(), properties.clone())], &[]);
        let (store, reserved) = (&self.environment.store, reservation.reservation_bytes);
        if reserved > 0 {
            self.properties.check_reservation(name, reserved)?;
            if let Some(quota) = reservation.quota_bytes.filter(|quota| *quota < reserved) {
                return Err(above_quota(name, reserved, name, quota));
            }
        }
        // Given back when as much is set aside for the dataset itself.
        let _room = self
            .environment
            .set_aside(reserved.saturating_add(working_bytes_of(store, reserved)))?;
        made.push(self.prepare(stored, kind, properties)?);
        self.finish_create(made)
    }

    /// The datasets above `name` that do not exist, topmost first.
    fn missing_parents(&self, name: &str) -> Result<Vec<String>, DatasetError> {
        let mut missing = Vec::new();
        let mut above = names::parent(name);
        while let Some(parent) = above {
            match self.registry.get(parent) {
                Some(node) if node.state.kind().is_volume() => {
                    return Err(DatasetError::Refused(format!(
                        "'{parent}' is a volume, and nothing can lie below one; choose a name beside it"
                    )));
                }
                Some(_) => break,
                None => missing.push(parent.to_owned()),
            }
            above = names::parent(parent);
        }
        missing.reverse();
        Ok(missing)
    }

    /// Record and first batch of a new dataset; its number is used up even if the batch is never committed.
    pub(super) fn prepare(
        &self,
        stored: String,
        kind: Kind,
        properties: BTreeMap<String, String>,
    ) -> Result<((u32, DatasetRecord), Batch), DatasetError> {
        let number = self.facts.next_dataset()?;
        let created = self.environment.now();
        let checkpoint = self.facts.checkpoints().current();
        let mut first = VersionedBatch::new(self.environment.store.clone(), number, checkpoint, None);
        let owner = self.environment.owner;
        match kind {
            Kind::Filesystem => Filesystem::format(&mut first, owner, created)?,
            Kind::Volume { size_bytes } => Volume::format(&mut first, size_bytes, owner, created)?,
        }
        let (mut batch, change) = first.finish()?;
        let mut counters = Counters {
            next_object: keys::ROOT_OBJECT + 1,
            shared_blocks: kind.is_volume().then_some(0),
            ..Default::default()
        };
        counters.apply(change, checkpoint);
        let record = DatasetRecord {
            name: stored,
            kind,
            created,
            properties,
        };
        batch.put(keys::counters(number), counters.encode());
        batch.put(keys::dataset(number), record.encode());
        Ok(((number, record), batch))
    }

    pub(super) fn finish_create(&self, made: Vec<((u32, DatasetRecord), Batch)>) -> Result<(), DatasetError> {
        let mut whole = Batch::new();
        let mut records = Vec::new();
        for (record, batch) in made {
            whole.append(batch);
            records.push(record);
        }
        let sequence = self.facts.commit(whole)?;
        self.environment.store.flush(sequence)?;
        self.load_all(records)
    }

    /// See [`Datasets::destroy`](super::Datasets::destroy).
    pub(super) fn destroy(
        &self,
        name: &str,
        recursive: bool,
        force: bool,
        dry_run: bool,
    ) -> Result<DestroyReport, DatasetError> {
        let _admin = self.registry.administer();
        self.registry.node(name)?;
        if self.registry.stored_name(name)?.is_empty() {
            return Err(DatasetError::Refused(format!(
                "'{name}' is the pool's root dataset; 'terrace pool destroy {name}' destroys the pool"
            )));
        }
        let tree = self.registry.tree(name);
        let mut report = DestroyReport::default();
        for (name, node) in &tree {
            report_snapshots(name, node, &mut report)?;
            report.bytes = report.bytes.saturating_add(node.state.counters().used_bytes());
            report.datasets.push(name.clone());
        }
        if !recursive {
            refuse_if_any(name, "datasets below it", &report.datasets[1..])?;
            refuse_if_any(name, "snapshots", &report.snapshots)?;
        }
        if let Some((used, _)) = tree.iter().find(|(_, node)| !force && node.is_used()) {
            return Err(DatasetError::Busy(used.clone()));
        }
        if dry_run {
            return Ok(report);
        }
        self.destroy_tree(&tree)?;
        Ok(report)
    }

    fn destroy_tree(&self, tree: &[(String, Arc<Node>)]) -> Result<(), DatasetError> {
        let store = &self.environment.store;
        let mut by_number: Vec<_> = tree.iter().map(|(_, node)| node).collect();
        by_number.sort_by_key(|node| node.number());
        let locks: Vec<_> = by_number.iter().map(|node| node.state.commit_lock()).collect();
        let mut batch = Batch::new();
        batch.privileged();
        let mut jobs = Vec::new();
        for node in &by_number {
            batch.delete(keys::dataset(node.number()));
            let bytes = node.state.counters().used_bytes();
            let job = Job::Dataset {
                dataset: node.number(),
                cursor: Vec::new(),
                bytes,
            };
            jobs.push(self.facts.number_job(&mut batch, job));
        }
        let sequence = self.facts.commit(batch)?;
        tree.iter().for_each(|(_, node)| node.state.set_gone());
        drop(locks);
        self.registry.remove(tree);
        tree.iter().for_each(|(_, node)| node.end());
        if let Some((_, top)) = tree.first() {
            top.state.usage().move_below(None);
        }
        self.facts.jobs().add(jobs);
        store.flush(sequence)?;
        Ok(())
    }

    /// Gives a dataset and all below it another name; may be in use.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        let _admin = self.registry.administer();
        names::check_dataset(to)?;
        let top = self.registry.node(from)?;
        if self.registry.stored_name(from)?.is_empty() {
            return Err(DatasetError::Refused(format!(
                "'{from}' is the pool's root dataset; export the pool and import it under another name"
            )));
        }
        self.registry.stored_name(to)?;
        if self.registry.get(to).is_some() {
            return Err(DatasetError::Exists(to.to_owned()));
        }
        if to.starts_with(&format!("{from}/")) {
            return Err(DatasetError::Refused(format!(
                "'{to}' would lie below itself; give it a third name, make '{from}' anew, and rename it to '{to}' then"
            )));
        }
        if let Some(parent) = self.missing_parents(to)?.last() {
            return Err(DatasetError::NoParent(parent.clone()));
        }
        self.properties.check_rename(from, to)?;
        let tree = self.registry.tree(from);
        let mut moved = Vec::new();
        let mut batch = Batch::new();
        for (old, node) in tree {
            let new = format!("{to}{}", &old[from.len()..]);
            names::check_dataset(&new)?;
            let mut record = node.record();
            record.name = self.registry.stored_name(&new)?;
            batch.put(keys::dataset(node.number()), record.encode());
            moved.push((old, new, node, record));
        }
        let sequence = self.environment.store.commit(batch)?;
        self.registry.rename(&moved);
        let above = names::parent(to).and_then(|above| self.registry.get(above));
        top.state
            .usage()
            .move_below(above.map(|above| above.state.usage().clone()));
        let moved: Vec<_> = moved.into_iter().map(|(_, new, node, _)| (new, node)).collect();
        let applied = self.properties.apply_others(&moved);
        self.environment.store.flush(sequence)?;
        applied
    }

    /// Changes the size of a volume, bytes (rounded up to 4096); what lies behind a smaller size is dropped.
    pub(super) fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<(), DatasetError> {
        let size_bytes = check_volume_size(size_bytes)?;
        let volume = self.registry.node(name)?.volume()?;
        let _admin = self.registry.administer();
        let (node, more) = self.grant_size(name, size_bytes)?;
        let mut record = node.record();
        if more.is_some() {
            node.state.usage().keep_reservation(size_bytes);
            drop(more);
            record
                .properties
                .insert("reservation".into(), terrace_device::exact_size(size_bytes));
        }
        record.kind = Kind::Volume { size_bytes };
        volume.resize_with(size_bytes, Some((keys::dataset(node.number()), record.encode())))?;
        node.state.set_kind(record.kind);
        node.set_record(record);
        // Whatever `durability` says; one batch has both.
        volume.flush_always()?;
        self.environment.store.flush(self.environment.store.newest())?;
        Ok(())
    }

    /// See [`Datasets::check_resize`](super::Datasets::check_resize).
    pub(super) fn check_resize(&self, name: &str, size_bytes: u64) -> Result<(u64, u64), DatasetError> {
        let size_bytes = check_volume_size(size_bytes)?;
        let has_bytes = self.registry.node(name)?.volume()?.size_bytes();
        let _admin = self.registry.administer();
        self.grant_size(name, size_bytes)?;
        Ok((has_bytes, size_bytes))
    }

    /// The volume, if it may get that size; with the room that it takes if all of it is reserved. `admin` is held.
    fn grant_size(
        &self,
        name: &str,
        size_bytes: u64,
    ) -> Result<(Arc<Node>, Option<Reservation>), DatasetError> {
        let node = self.registry.node(name)?;
        let record = node.record();
        let Kind::Volume { size_bytes: old } = record.kind else {
            return Err(DatasetError::Refused(format!("'{name}' is not a volume")));
        };
        // Before any room is promised, which would stay so.
        if node.state.settings().readonly {
            return Err(DatasetError::Refused(format!(
                "'{name}' is read-only; 'terrace set readonly=off {name}' lets it be changed"
            )));
        }
        if record.properties.get("reservation") != Some(&terrace_device::exact_size(old)) {
            return Ok((node, None));
        }
        self.properties.check_reservation(name, size_bytes)?;
        let more = self
            .environment
            .set_aside(node.state.usage().more_for(size_bytes))?;
        Ok((node, Some(more)))
    }
}

fn report_snapshots(name: &str, node: &Node, report: &mut DestroyReport) -> Result<(), DatasetError> {
    for (_, record) in node.state.held().iter() {
        let snapshot = format!("{name}@{}", record.name);
        if let Some(tag) = record.holds.first() {
            return Err(DatasetError::Held {
                name: snapshot,
                tag: tag.clone(),
            });
        }
        if !record.name.is_empty() {
            report.snapshots.push(snapshot);
        }
    }
    Ok(())
}

fn refuse_if_any(name: &str, what: &'static str, list: &[String]) -> Result<(), DatasetError> {
    if list.is_empty() {
        return Ok(());
    }
    let mut examples = list.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    if list.len() > 3 {
        examples.push_str(&format!(" and {} more", list.len() - 3));
    }
    Err(DatasetError::NotEmpty {
        name: name.to_owned(),
        what,
        examples,
    })
}

/// The size that a volume of `size_bytes` gets: whole blocks of 4 KiB.
///
/// # Errors
/// `InvalidSize` if no volume can have it.
fn check_volume_size(size_bytes: u64) -> Result<u64, DatasetError> {
    if size_bytes == 0 || size_bytes > VOLUME_BYTES_MAX {
        return Err(DatasetError::InvalidSize { size_bytes });
    }
    Ok(size_bytes.next_multiple_of(BLOCK_BYTES as u64))
}
