//! `Node`: one dataset as the registry knows it, its handle while it is open, and the views of its past.
//!
//! Invariants: a node's record in RAM is the stored one; a borrowed handle does not count as use.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use terrace_sync::{Mutex, RwLock, rank};

use crate::{
    faces::{Filesystem, Live, View, Volume},
    live::DatasetState,
    records::DatasetRecord,
    settings::{At, DatasetError},
};

/// An open dataset.
#[derive(Clone)]
enum Handle {
    Filesystem(Arc<Filesystem>),
    Volume(Arc<Volume>),
}

impl Handle {
    fn live(&self) -> &dyn Live {
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
struct Slot {
    handle: Option<Handle>,
    borrowed: usize,
}

impl Slot {
    /// Whether somebody besides the registry has the handle.
    fn is_used(&self) -> bool {
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
    record: RwLock<DatasetRecord, rank::dataset::Record>,
    slot: Mutex<Slot, rank::dataset::Handle>,
    views: Mutex<HashMap<u64, Weak<View>>, rank::dataset::Views>,
}

impl Node {
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

    /// Its record as it is stored.
    pub(crate) fn record(&self) -> DatasetRecord {
        self.record.read().clone()
    }

    /// It is stored like this from now on.
    pub(crate) fn set_record(&self, record: DatasetRecord) {
        *self.record.write() = record;
    }

    /// Whether room is promised to it, or to files in it.
    pub(crate) fn has_promise(&self) -> bool {
        self.state.kind().is_volume() || self.state.usage().has_promise()
    }

    /// Whether somebody has it open.
    pub(crate) fn is_used(&self) -> bool {
        self.slot.lock().is_used()
    }

    /// Asks the live half, if it is open.
    pub(crate) fn with_live<T>(self: &Arc<Self>, ask: impl FnOnce(&dyn Live) -> T) -> Option<T> {
        let open = Borrowed::of(self)?;
        open.live().map(ask)
    }

    /// Content as of now, also what is not committed yet, bytes.
    pub(crate) fn referenced_bytes(self: &Arc<Self>) -> u64 {
        let live = self.with_live(|live| live.referenced_bytes());
        live.unwrap_or_else(|| self.state.counters().referenced_bytes())
    }

    /// The filesystem, opened if it was not. It counts as in use while the answer is kept.
    pub(crate) fn filesystem(&self) -> Result<Arc<Filesystem>, DatasetError> {
        let mut slot = self.slot.lock();
        if let Some(Handle::Filesystem(filesystem)) = &slot.handle {
            return Ok(filesystem.clone());
        }
        self.expect_kind(false)?;
        self.refuse_gone()?;
        let filesystem = Filesystem::open(self.state.clone())?;
        slot.handle = Some(Handle::Filesystem(filesystem.clone()));
        Ok(filesystem)
    }

    /// The volume, opened if it was not. It counts as in use while the answer is kept.
    pub(crate) fn volume(&self) -> Result<Arc<Volume>, DatasetError> {
        let mut slot = self.slot.lock();
        if let Some(Handle::Volume(volume)) = &slot.handle {
            return Ok(volume.clone());
        }
        self.expect_kind(true)?;
        self.refuse_gone()?;
        let volume = Volume::open(self.state.clone())?;
        slot.handle = Some(Handle::Volume(volume.clone()));
        Ok(volume)
    }

    /// Opens it, whatever it is.
    pub(crate) fn open(&self) -> Result<(), DatasetError> {
        match self.state.kind().is_volume() {
            true => self.volume().map(drop),
            false => self.filesystem().map(drop),
        }
    }

    /// Drops what nobody uses any more; afterwards it is opened again when asked for.
    pub(crate) fn close(&self) -> Result<(), DatasetError> {
        let mut slot = self.slot.lock();
        if slot.is_used() {
            return Err(DatasetError::Busy(self.name()));
        }
        if let Some(idle) = &slot.handle {
            let _commit = self.state.commit_lock();
            idle.live()
                .stand_still()?
                .pause()
                .freeze(self.state.current_checkpoint());
            idle.live().commit_frozen()?;
            idle.live().close();
        }
        slot.handle = None;
        Ok(())
    }

    /// It was destroyed: its views are `Stale` from now on, its handle is dropped, and nothing is promised to it any more.
    pub(crate) fn end(&self) {
        let views = self.views.lock();
        let existing = views.values().filter_map(Weak::upgrade);
        existing.for_each(|view| view.set_gone());
        drop(views);
        let dropped = self.slot.lock().handle.take();
        drop(dropped);
        self.state.usage().keep_reservation(0);
        self.state.usage().forget_files();
    }

    /// It as it was: a volume if one is wanted, else a filesystem.
    pub(crate) fn view(&self, wants_volume: bool, at: &At) -> Result<Arc<View>, DatasetError> {
        self.expect_kind(wants_volume)?;
        let checkpoint = self.resolve(at)?;
        let mut views = self.views.lock();
        if let Some(view) = views.get(&checkpoint).and_then(Weak::upgrade) {
            return Ok(view);
        }
        views.retain(|_, view| view.strong_count() > 0);
        // Asked again with the lock held: destroying a snapshot marks the views that it finds under this lock.
        if self.state.held().get(checkpoint).is_none() {
            return Err(DatasetError::NoSnapshot(format!("{}@@{checkpoint}", self.name())));
        }
        let view = Arc::new(View::new(self.state.clone(), checkpoint));
        views.insert(checkpoint, Arc::downgrade(&view));
        Ok(view)
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

    /// The held checkpoint that `at` means.
    fn resolve(&self, at: &At) -> Result<u64, DatasetError> {
        let held = self.state.held();
        let found = match at {
            At::Checkpoint(checkpoint) => held.get(*checkpoint).map(|_| *checkpoint),
            At::Time(time) => held.newest_at(*time),
            At::Snapshot(snapshot) => {
                let missing = || DatasetError::NoSnapshot(format!("{}@{snapshot}", self.name()));
                return held.by_name(snapshot).ok_or_else(missing);
            }
        };
        found.ok_or_else(|| {
            let nearest = match at {
                At::Checkpoint(checkpoint) => {
                    let nearest = [held.newest_until(*checkpoint), held.oldest_after(*checkpoint)];
                    let nearest: Vec<_> = nearest.into_iter().flatten().map(|n| n.to_string()).collect();
                    nearest.join(" and ")
                }
                _ => held.iter().next().map(|(n, _)| n.to_string()).unwrap_or_default(),
            };
            let nearest = if nearest.is_empty() {
                "none (take a snapshot, or set the property 'retention')".to_owned()
            } else {
                nearest
            };
            DatasetError::NotHeld {
                name: self.name(),
                at: at.to_string(),
                nearest,
            }
        })
    }

    fn expect_kind(&self, wants_volume: bool) -> Result<(), DatasetError> {
        let (is, wanted) = match wants_volume {
            true => ("filesystem", "volume"),
            false => ("volume", "filesystem"),
        };
        if self.state.kind().is_volume() == wants_volume {
            return Ok(());
        }
        Err(DatasetError::WrongKind {
            name: self.name(),
            is,
            wanted,
        })
    }

    fn refuse_gone(&self) -> Result<(), DatasetError> {
        match self.state.is_gone() {
            true => Err(DatasetError::NotFound(self.name())),
            false => Ok(()),
        }
    }

    fn name(&self) -> String {
        self.state.name().to_string()
    }
}
