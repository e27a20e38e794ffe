//! `Datasets`: all filesystems and volumes of a pool: opening them, listing them.
//! Creating, renaming and destroying is in `lifecycle`, properties in `set_properties`; checkpoints, snapshots and background
//! freeing in `history`.
//!
//! Invariants: one administrative change at a time (`admin`); locks are taken in the order admin, handle, commit
//! locks by ascending number, registry; the checkpoint counter after opening is above every number in any record.

use super::{
    facts::PoolFacts,
    node::{Borrowed, Handle, Node},
    registry::Registry,
    retained_space::Unretained,
};
use crate::{
    faces::{Filesystem, View, Volume},
    live::{DatasetState, Environment, Fragment},
    posix::FsError,
    quota::{Usage, WorkingRoom},
    records::{
        Checkpoints, Counters, DatasetRecord, Held, HeldRecord, Kind, SweepJobs, Time, damaged, for_each,
        for_range, keys,
    },
    relayout::{Accepts, Cut, HotPiece, Relaid},
    settings::{At, DatasetError, Settings},
};
use std::sync::{Arc, atomic::Ordering};

use parking_lot::{Mutex, MutexGuard};
use terrace_codec::Reader;
use terrace_store::Space;

/// What is known of a dataset without opening it.
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

/// Content of a dataset as of now, also what is not committed yet.
fn referenced_bytes(node: &Arc<Node>) -> u64 {
    let open = Borrowed::of(node);
    match open.as_ref().and_then(Borrowed::live) {
        Some(live) => live.referenced_bytes(),
        None => node.state.counters().referenced_bytes(),
    }
}

/// All datasets of a pool. All methods may be called from any thread.
pub struct Datasets {
    pub(crate) environment: Arc<Environment>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) registry: Registry,
    pub(crate) facts: PoolFacts,
    admin: Mutex<()>,
    pub(crate) sweeper: SweepJobs,
    /// What the usage of all of them shares.
    pub(crate) common: Arc<WorkingRoom>,
    pub(crate) unretained: Unretained,
}

impl Datasets {
    /// Opens the datasets of a pool by that name; a new pool gets its root dataset. Takes time in proportion to the
    /// number of datasets and held checkpoints, not to what they hold.
    pub fn open(environment: Arc<Environment>, pool: &str) -> Result<Self, DatasetError> {
        let store = environment.store.clone();
        let mut records = Vec::new();
        for_each(&store, keys::TABLE_DATASET, |key, value| {
            let mut reader = Reader::new(key);
            reader.u8("table")?;
            let number = reader.key_u32("dataset")?;
            records.push((number, DatasetRecord::decode(value)?));
            Ok(())
        })?;
        records.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        let sweeper = SweepJobs::open(&store)?;
        let facts = PoolFacts::open(store.as_ref(), sweeper.next_number())?;
        let datasets = Self {
            environment,
            checkpoints: facts.checkpoints().clone(),
            registry: Registry::new(pool),
            facts,
            admin: Mutex::default(),
            sweeper,
            common: Arc::default(),
            unretained: Unretained::default(),
        };
        if records.is_empty() {
            datasets.make_root()?;
        }
        for (number, record) in records {
            datasets.load(number, record)?;
        }
        Ok(datasets)
    }

    /// Puts a stored dataset into the registry.
    pub(crate) fn load(&self, number: u32, record: DatasetRecord) -> Result<Arc<Node>, DatasetError> {
        let store = &self.environment.store;
        let counters = match store.get(&keys::counters(number))? {
            Some(value) => {
                Counters::decode(&value).map_err(|cause| damaged("a dataset's counters", &cause))?
            }
            None => Counters::default(),
        };
        let mut held = Held::default();
        let (from, to) = keys::dataset_range(keys::TABLE_HELD, number);
        let mut newest = counters.newest_checkpoint;
        for_range(store, from, &to, |key, value| {
            let mut reader = Reader::new(key);
            reader.bytes(5, "table and dataset")?;
            let checkpoint = reader.key_u64("checkpoint")?;
            newest = newest.max(checkpoint);
            held.insert(checkpoint, HeldRecord::decode(value)?);
            Ok(())
        })?;
        self.checkpoints.raise(newest.saturating_add(1));
        let name = self.registry.full_name(&record.name);
        let above = crate::settings::parent(&name).and_then(|above| self.registry.get(above));
        let above = above.map(|above| above.state.usage().clone());
        let usage = Usage::new(store.clone(), self.common.clone(), above);
        usage.add_live_blocks(i64::try_from(counters.live_blocks).unwrap_or(i64::MAX));
        let state = Arc::new(DatasetState::new(
            number,
            record.kind,
            &name,
            self.environment.clone(),
            self.checkpoints.clone(),
            Settings::default(),
            held,
            counters,
            usage,
        ));
        self.resume_recount(&state);
        let node = Node::new(state, record);
        self.registry.insert(name.clone(), node.clone());
        self.apply_settings(&name, &node);
        Ok(node)
    }

    /// The pool's name.
    pub fn pool(&self) -> String {
        self.registry.pool()
    }

    /// One administrative change at a time.
    pub(crate) fn administer(&self) -> MutexGuard<'_, ()> {
        self.admin.lock()
    }

    /// Store, clock, caches.
    pub fn environment(&self) -> &Arc<Environment> {
        &self.environment
    }

    /// The checkpoint in which changes are made now.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoints.current()
    }

    /// The filesystem of this name, opened if it was not. It counts as in use while the answer is kept.
    pub fn filesystem(&self, name: &str) -> Result<Arc<Filesystem>, DatasetError> {
        let node = self.registry.node(name)?;
        let mut slot = node.slot.lock();
        if let Some(Handle::Filesystem(filesystem)) = &slot.handle {
            return Ok(filesystem.clone());
        }
        if node.state.kind().is_volume() {
            return Err(wrong_kind(name, "volume", "filesystem"));
        }
        self.refuse_gone(name, &node)?;
        let filesystem = Filesystem::open(node.state.clone())?;
        slot.handle = Some(Handle::Filesystem(filesystem.clone()));
        Ok(filesystem)
    }

    /// The volume of this name, opened if it was not. It counts as in use while the answer is kept.
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>, DatasetError> {
        let node = self.registry.node(name)?;
        let mut slot = node.slot.lock();
        if let Some(Handle::Volume(volume)) = &slot.handle {
            return Ok(volume.clone());
        }
        if !node.state.kind().is_volume() {
            return Err(wrong_kind(name, "filesystem", "volume"));
        }
        self.refuse_gone(name, &node)?;
        let volume = Volume::open(node.state.clone())?;
        slot.handle = Some(Handle::Volume(volume.clone()));
        Ok(volume)
    }

    fn refuse_gone(&self, name: &str, node: &Node) -> Result<(), DatasetError> {
        if node.state.is_gone() {
            Err(DatasetError::NotFound(name.to_owned()))
        } else {
            Ok(())
        }
    }

    /// The shared state of a dataset.
    pub fn state(&self, name: &str) -> Result<Arc<DatasetState>, DatasetError> {
        Ok(self.registry.node(name)?.state.clone())
    }

    /// The shared state of the dataset with this number.
    pub fn state_by_number(&self, number: u32) -> Option<Arc<DatasetState>> {
        self.registry.by_number(number).map(|node| node.state.clone())
    }

    /// Lays the content of regions (each but once) out anew, if their datasets are in use, later otherwise: of what `wanted`
    /// accepts of each about `most_bytes`. What became of them, one by one; neighbours of one dataset change in one batch.
    pub fn relayout(
        &self,
        fragments: &[Fragment],
        cut: Cut,
        wanted: Accepts<'_>,
        most_bytes: u64,
    ) -> Vec<Result<Relaid, FsError>> {
        let of_one = fragments.chunk_by(|one, next| one.dataset == next.dataset);
        let results = of_one.flat_map(|fragments| {
            let node = self.registry.by_number(fragments[0].dataset);
            let open = node.as_ref().and_then(Borrowed::of);
            match open.as_ref().and_then(Borrowed::live) {
                Some(live) => live.relayout(fragments, cut, wanted, most_bytes),
                None if node.is_some() => vec![Ok(Relaid::Busy); fragments.len()],
                None => vec![Ok(Relaid::Left); fragments.len()],
            }
        });
        results.collect()
    }

    /// Gives hot blocks of long chunks chunks of their own on this tier, as far as their datasets are in use: those of a region side by
    /// side, and of neighbours of one dataset in one batch. How many bytes of content that were.
    pub fn raise(&self, pieces: &[HotPiece], tier: u8) -> Result<u64, FsError> {
        let mut raised = 0;
        for pieces in pieces.chunk_by(|one, next| one.fragment.dataset == next.fragment.dataset) {
            let node = self.registry.by_number(pieces[0].fragment.dataset);
            let open = node.as_ref().and_then(Borrowed::of);
            if let Some(live) = open.as_ref().and_then(Borrowed::live) {
                raised += live.raise(pieces, tier)?;
            }
        }
        Ok(raised)
    }

    /// A filesystem as it was; the answer stays readable as long as the checkpoint is held.
    pub fn view(&self, name: &str, at: &At) -> Result<Arc<View>, DatasetError> {
        if self.registry.node(name)?.state.kind().is_volume() {
            return Err(wrong_kind(name, "volume", "filesystem"));
        }
        self.view_of_any(name, at)
    }

    /// A volume as it was: its content is the object [`ROOT`](crate::ROOT).
    pub fn volume_view(&self, name: &str, at: &At) -> Result<Arc<View>, DatasetError> {
        if !self.registry.node(name)?.state.kind().is_volume() {
            return Err(wrong_kind(name, "filesystem", "volume"));
        }
        self.view_of_any(name, at)
    }

    fn view_of_any(&self, name: &str, at: &At) -> Result<Arc<View>, DatasetError> {
        let node = self.registry.node(name)?;
        let checkpoint = self.resolve(name, at)?;
        let mut views = node.views.lock();
        if let Some(view) = views.get(&checkpoint).and_then(std::sync::Weak::upgrade) {
            return Ok(view);
        }
        views.retain(|_, view| view.strong_count() > 0);
        // Asked again with the lock held: destroying a snapshot marks the views that it finds under this lock.
        if node.state.held().read().get(checkpoint).is_none() {
            return Err(DatasetError::NoSnapshot(format!("{name}@@{checkpoint}")));
        }
        let view = Arc::new(View::new(node.state.clone(), checkpoint));
        views.insert(checkpoint, Arc::downgrade(&view));
        Ok(view)
    }

    /// The held checkpoint that `at` means.
    pub fn resolve(&self, name: &str, at: &At) -> Result<u64, DatasetError> {
        let node = self.registry.node(name)?;
        let held = node.state.held().read();
        let found = match at {
            At::Checkpoint(checkpoint) => held.get(*checkpoint).map(|_| *checkpoint),
            At::Time(time) => held.newest_at(*time),
            At::Snapshot(snapshot) => {
                let missing = || DatasetError::NoSnapshot(format!("{name}@{snapshot}"));
                return held.by_name(snapshot).ok_or_else(missing);
            }
        };
        found.ok_or_else(|| {
            let nearest = match at {
                At::Checkpoint(checkpoint) => {
                    let below = held.newest_until(*checkpoint).map(|n| n.to_string());
                    let above = held.oldest_after(*checkpoint).map(|n| n.to_string());
                    [below, above]
                        .into_iter()
                        .flatten()
                        .collect::<Vec<_>>()
                        .join(" and ")
                }
                _ => held.iter().next().map(|(n, _)| n.to_string()).unwrap_or_default(),
            };
            let nearest = if nearest.is_empty() {
                "none (take a snapshot, or set the property 'retention')".to_owned()
            } else {
                nearest
            };
            DatasetError::NotHeld {
                name: name.to_owned(),
                at: at.to_string(),
                nearest,
            }
        })
    }

    /// All datasets, or one and those below it, by name.
    pub fn list(&self, below: Option<&str>) -> Result<Vec<DatasetInfo>, DatasetError> {
        let nodes = self.registry.below(below)?;
        let space = self.environment.store.space();
        Ok(nodes
            .into_iter()
            .map(|(name, node)| self.describe(name, &node, &space))
            .collect())
    }

    /// One dataset.
    pub fn info(&self, name: &str) -> Result<DatasetInfo, DatasetError> {
        let node = self.registry.node(name)?;
        let space = self.environment.store.space();
        Ok(self.describe(name.to_owned(), &node, &space))
    }

    fn describe(&self, name: String, node: &Arc<Node>, space: &Space) -> DatasetInfo {
        let counters = node.state.counters();
        let tree = self.registry.tree(&name);
        let used_bytes = tree
            .iter()
            .map(|(_, node)| {
                let history = node.state.counters().history_bytes();
                referenced_bytes(node) + history + node.state.usage().set_aside_bytes()
            })
            .sum();
        // One lock after the other: who holds the handle may wait for a commit, and that for the held set.
        let in_use = node.slot.lock().is_used();
        let (snapshots, all) = {
            let held = node.state.held().read();
            let snapshots = held.iter().filter(|(_, record)| !record.name.is_empty()).count();
            (snapshots as u64, held.len() as u64)
        };
        let usage = node.state.usage();
        let room = usage.available_bytes(space);
        DatasetInfo {
            number: node.number(),
            kind: node.record.read().kind,
            created: node.record.read().created,
            referenced_bytes: referenced_bytes(node),
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

    /// Whether the retention of any dataset holds checkpoints.
    pub fn retains(&self) -> bool {
        self.registry
            .any(|node| !node.state.settings().retention.is_none())
    }

    /// Datasets of which retention held no checkpoint when it was to, with what it would have had to set aside, bytes.
    pub fn without_room_to_retain(&self) -> Vec<(String, u64)> {
        self.unretained.list(|number| {
            let node = self.registry.by_number(number)?;
            (!node.state.settings().retention.is_none()).then(|| node.state.name().to_string())
        })
    }

    /// Room to work in that is set aside for preallocated ranges of all files, bytes.
    pub fn working_bytes_of_files(&self) -> u64 {
        self.common.working_bytes_of_files()
    }

    /// Whether background freeing is left to do.
    pub fn sweep_pending(&self) -> bool {
        let orphans = self
            .registry
            .any(|node| node.state.orphans_pending().load(Ordering::SeqCst));
        orphans || !self.sweeper.is_idle()
    }

    /// Drops what nobody uses any more; afterwards it is opened again when asked for.
    pub fn close(&self, name: &str) -> Result<(), DatasetError> {
        let node = self.registry.node(name)?;
        let mut slot = node.slot.lock();
        if slot.is_used() {
            return Err(DatasetError::Busy(name.to_owned()));
        }
        if let Some(idle) = &slot.handle {
            let _commit = node.state.commit_lock();
            idle.live().pause()?.freeze(node.state.current_checkpoint());
            idle.live().commit_frozen()?;
            idle.live().close();
        }
        slot.handle = None;
        Ok(())
    }
}

fn wrong_kind(name: &str, is: &'static str, wanted: &'static str) -> DatasetError {
    DatasetError::WrongKind {
        name: name.to_owned(),
        is,
        wanted,
    }
}
