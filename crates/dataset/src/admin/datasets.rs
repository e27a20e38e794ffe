//! `Datasets`: all filesystems and volumes of a pool: their components, tied together.

use std::sync::Arc;

use super::lifecycle::{Lifecycle, NewDataset};
use crate::{
    faces::{Filesystem, View, Volume},
    history::{
        Checkpointer, DestroyReport, Flusher, HeldSets, Recounter, RetainedCheckpoints, SnapshotStore,
        Sweeper,
    },
    live::{DatasetState, Environment, Fragment, RoomSource},
    posix::FsError,
    properties::PropertyService,
    quota::WorkingRoom,
    registry::{DatasetInfo, PoolFacts, Registry},
    relayout::{Accepts, Cut, HotPiece, Relaid},
    relief::SpaceReclaimer,
    settings::{At, DatasetError},
};

/// All datasets of a pool. All methods may be called from any thread.
pub struct Datasets {
    environment: Arc<Environment>,
    registry: Arc<Registry>,
    facts: Arc<PoolFacts>,
    common: Arc<WorkingRoom>,
    checkpointer: Arc<Checkpointer>,
    retained: Arc<RetainedCheckpoints>,
    snapshots: SnapshotStore,
    flusher: Flusher,
    sweeper: Arc<Sweeper>,
    reclaimer: Arc<SpaceReclaimer>,
    properties: Arc<PropertyService>,
    lifecycle: Lifecycle,
}

impl Datasets {
    /// Opens the datasets of a pool by that name; a new pool gets its root dataset. Takes time in proportion to the
    /// number of datasets and held checkpoints, not to what they hold.
    pub fn open(environment: Arc<Environment>, pool: &str) -> Result<Self, DatasetError> {
        let facts = Arc::new(PoolFacts::open(environment.store.clone())?);
        let registry = Arc::new(Registry::new(pool));
        let common: Arc<WorkingRoom> = Arc::default();
        let recounter = Arc::new(Recounter::new(&facts));
        let held = Arc::new(HeldSets::new(&environment, &facts, &recounter));
        let checkpointer = Arc::new(Checkpointer::new(&environment, &registry, &facts));
        let retained = Arc::new(RetainedCheckpoints::new(&environment, &registry, &held));
        let sweeper = Arc::new(Sweeper::new(&environment, &registry, &facts, &recounter));
        let reclaimer = SpaceReclaimer::new(&environment, &registry, &checkpointer, &sweeper);
        let properties = Arc::new(PropertyService::new(&environment, &registry, &checkpointer));
        let lifecycle = Lifecycle {
            environment: environment.clone(),
            registry: registry.clone(),
            facts: facts.clone(),
            recounter,
            properties: properties.clone(),
            common: common.clone(),
        };
        lifecycle.open_all()?;
        Ok(Self {
            snapshots: SnapshotStore::new(&environment, &registry, &checkpointer, &held),
            flusher: Flusher::new(&environment, &registry, &checkpointer, &retained),
            reclaimer: Arc::new(reclaimer),
            environment,
            registry,
            facts,
            common,
            checkpointer,
            retained,
            sweeper,
            properties,
            lifecycle,
        })
    }

    /// From now on, who finds no room waits for what all datasets can give back.
    pub fn relieve(&self) {
        let reclaimer: Arc<dyn RoomSource> = self.reclaimer.clone();
        self.environment.room.set_source(Arc::downgrade(&reclaimer));
    }

    /// Store, clock, caches.
    pub fn environment(&self) -> &Arc<Environment> {
        &self.environment
    }

    /// Snapshots, and the tags that keep them.
    pub fn snapshots(&self) -> &SnapshotStore {
        &self.snapshots
    }

    /// Checkpoints that retention holds.
    pub fn retained(&self) -> &RetainedCheckpoints {
        &self.retained
    }

    /// What commits when it is time.
    pub fn flusher(&self) -> &Flusher {
        &self.flusher
    }

    /// Freeing in the background.
    pub fn sweeper(&self) -> &Sweeper {
        &self.sweeper
    }

    /// Properties.
    pub fn properties(&self) -> &PropertyService {
        &self.properties
    }

    /// The pool's name.
    pub fn pool(&self) -> String {
        self.registry.pool().to_owned()
    }

    /// The checkpoint in which changes are made now.
    pub fn checkpoint(&self) -> u64 {
        self.facts.checkpoints().current()
    }

    /// Room to work in that is set aside for preallocated ranges of all files, bytes.
    pub fn working_bytes_of_files(&self) -> u64 {
        self.common.working_bytes_of_files()
    }

    /// The tiers of the pool changed: pins name tiers, and find them again by name.
    pub fn tiers_changed(&self) {
        self.properties.apply_all();
    }

    /// See [`Flusher::commit_all`].
    pub fn commit_all(&self) -> Result<u64, DatasetError> {
        self.flusher.commit_all()
    }

    /// Commits and flushes everything, also what is kept only in RAM: before the pool is closed.
    pub fn save_all(&self) -> Result<(), DatasetError> {
        self.checkpointer.save_all()
    }

    /// All datasets, or one and those below it, by name.
    pub fn list(&self, below: Option<&str>) -> Result<Vec<DatasetInfo>, DatasetError> {
        self.registry.list(below, &self.environment.store.space())
    }

    /// One dataset.
    pub fn info(&self, name: &str) -> Result<DatasetInfo, DatasetError> {
        self.registry.info(name, &self.environment.store.space())
    }

    /// The shared state of a dataset.
    pub fn state(&self, name: &str) -> Result<Arc<DatasetState>, DatasetError> {
        Ok(self.registry.node(name)?.state.clone())
    }

    /// The shared state of the dataset with this number.
    pub fn state_by_number(&self, number: u32) -> Option<Arc<DatasetState>> {
        self.registry.by_number(number).map(|node| node.state.clone())
    }

    /// The filesystem of this name, opened if it was not. It counts as in use while the answer is kept.
    pub fn filesystem(&self, name: &str) -> Result<Arc<Filesystem>, DatasetError> {
        self.registry.node(name)?.filesystem()
    }

    /// The volume of this name, opened if it was not. It counts as in use while the answer is kept.
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>, DatasetError> {
        self.registry.node(name)?.volume()
    }

    /// A filesystem as it was; the answer stays readable as long as the checkpoint is held.
    pub fn view(&self, name: &str, at: &At) -> Result<Arc<View>, DatasetError> {
        self.registry.node(name)?.view(false, at)
    }

    /// A volume as it was: its content is the object [`ROOT`](crate::ROOT).
    pub fn volume_view(&self, name: &str, at: &At) -> Result<Arc<View>, DatasetError> {
        self.registry.node(name)?.view(true, at)
    }

    /// Drops what nobody uses any more; afterwards it is opened again when asked for.
    pub fn close(&self, name: &str) -> Result<(), DatasetError> {
        self.registry.node(name)?.close()
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
        self.registry.relayout(fragments, cut, wanted, most_bytes)
    }

    /// Gives hot blocks of long chunks chunks of their own on this tier, as far as their datasets are in use: those of a region side by
    /// side, and of neighbours of one dataset in one batch. How many bytes of content that were.
    pub fn raise(&self, pieces: &[HotPiece], tier: u8) -> Result<u64, FsError> {
        self.registry.raise(pieces, tier)
    }

    /// Creates a filesystem or volume.
    pub fn create(&self, name: &str, new: &NewDataset) -> Result<(), DatasetError> {
        self.lifecycle.create(name, new)
    }

    /// Destroys a dataset; with `recursive` also its snapshots and everything below. Refuses what is in use unless
    /// `force` is set (its users get `Stale` from then on), and what a hold protects in any case.
    pub fn destroy(
        &self,
        name: &str,
        recursive: bool,
        force: bool,
        dry_run: bool,
    ) -> Result<DestroyReport, DatasetError> {
        self.lifecycle.destroy(name, recursive, force, dry_run)
    }

    /// Gives a dataset and all below it another name; may be in use.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        self.lifecycle.rename(from, to)
    }

    /// Changes the size of a volume, bytes (rounded up to 4096); what lies behind a smaller size is dropped.
    pub fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<(), DatasetError> {
        self.lifecycle.resize_volume(name, size_bytes)
    }

    /// What [`resize_volume`](Self::resize_volume) would do now, or why it would refuse; changes nothing. Returns the size that
    /// the volume has and the one that it would get, bytes.
    pub fn check_resize(&self, name: &str, size_bytes: u64) -> Result<(u64, u64), DatasetError> {
        self.lifecycle.check_resize(name, size_bytes)
    }
}
