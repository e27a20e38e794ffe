//! `ObjectTable`: what is kept decoded of a live dataset: objects, region records, names of directories.
//!
//! Invariants: what is dirty or in use stays; what was loaded from a record takes a place only if nothing newer came there
//! meanwhile (`ClockMap`); the shards' locks are held briefly, and never while the store is asked.

use std::sync::Arc;

use super::{dataset_state::DatasetState, shared_blocks::Shared};
use crate::{
    objects::{Cached, ClockMap, NameCount, Names, Object},
    posix::FsError,
    records::{FileKind, InodeRecord, RegionRecord, Run},
};

/// Part of the share of caches that the names of one dataset take before a directory is no longer read as a whole.
const NAMES_PART: u64 = 4;
/// About what a region record takes in RAM besides its runs.
const REGION_RECORD_BYTES: usize = 96;

/// A region record in RAM; `None`: all holes.
pub(crate) struct CachedRegion {
    pub(crate) birth: u64,
    pub(crate) record: Option<RegionRecord>,
    /// Of a volume that is held, as far as it is known.
    pub(crate) shared: Option<Shared>,
}

impl Cached for CachedRegion {
    fn memory_bytes(&self) -> u64 {
        let runs = self.record.as_ref().map_or(0, |record| record.runs().len());
        (REGION_RECORD_BYTES + runs * size_of::<Run>()) as u64
    }

    fn evictable(&self) -> bool {
        true
    }
}

/// See the module.
pub(crate) struct ObjectTable {
    dataset: Arc<DatasetState>,
    objects: Arc<ClockMap<Object>>,
    regions: Arc<ClockMap<CachedRegion>>,
    names: Arc<Names>,
}

impl ObjectTable {
    pub(crate) fn new(dataset: &Arc<DatasetState>) -> Arc<Self> {
        let caches = &dataset.environment().caches;
        let objects = ClockMap::new(caches);
        Arc::new(Self {
            dataset: dataset.clone(),
            names: Names::of(&objects, caches),
            objects,
            regions: ClockMap::new(caches),
        })
    }

    /// What the names of this dataset's directories take.
    pub(crate) fn name_count(&self) -> &Arc<NameCount> {
        &self.names.count
    }

    /// The object, if it is in RAM.
    pub(crate) fn in_memory(&self, number: u64) -> Option<Arc<Object>> {
        self.objects.get((number, 0)).ok()
    }

    /// Puts an object that was made.
    pub(crate) fn insert(&self, object: Arc<Object>) {
        self.objects.insert((object.number, 0), object);
    }

    /// Drops an object that is gone.
    pub(crate) fn forget(&self, number: u64) {
        self.objects.remove((number, 0));
    }

    /// Puts the record of a region as it was just committed.
    pub(crate) fn put_region(&self, place: (u64, u64), region: Arc<CachedRegion>) {
        self.regions.insert(place, region);
    }

    /// A name in `directory` was followed to an object.
    pub(crate) fn note_found(&self, object: u64, directory: u64) {
        if self
            .dataset
            .environment()
            .pins
            .has_directories(self.dataset.number())
            && let Ok(object) = self.object(object)
        {
            object.state().found_in = directory;
        }
    }

    /// What the names of all directories take before one more is no longer read as a whole, bytes.
    pub(crate) fn names_limit(&self) -> u64 {
        self.dataset.environment().caches.limit_bytes() / NAMES_PART
    }

    /// The object, from RAM or from its record; `Stale` if there is none.
    pub(crate) fn object(&self, number: u64) -> Result<Arc<Object>, FsError> {
        loop {
            let version = match self.objects.get((number, 0)) {
                Ok(object) => return Ok(object),
                Err(version) => version,
            };
            let (birth, inode) = self.read_inode(number)?.ok_or(FsError::Stale)?;
            let object = Object::loaded(number, inode, birth, &self.names.count);
            if let Some(object) = self.objects.insert_loaded((number, 0), version, object) {
                return Ok(object);
            }
        }
    }

    fn read_inode(&self, number: u64) -> Result<Option<(u64, InodeRecord)>, FsError> {
        if self.dataset.is_gone() {
            return Err(FsError::Stale);
        }
        Ok(self.dataset.records().inode(number)?)
    }

    /// The newest committed region record.
    pub(crate) fn region(&self, body: u64, region: u64) -> Result<Arc<CachedRegion>, FsError> {
        loop {
            let version = match self.regions.get((body, region)) {
                Ok(cached) => return Ok(cached),
                Err(version) => version,
            };
            let (birth, record) = match self.dataset.records().region(body, region)? {
                Some(found) => (found.birth, Some(found.record)),
                None => (0, None),
            };
            let cached = CachedRegion {
                birth,
                record,
                shared: None,
            };
            if let Some(cached) = self
                .regions
                .insert_loaded((body, region), version, Arc::new(cached))
            {
                return Ok(cached);
            }
        }
    }

    /// The directory; `NotDirectory` if the object is something else.
    pub(crate) fn directory(&self, number: u64) -> Result<Arc<Object>, FsError> {
        let object = self.object(number)?;
        if object.kind == FileKind::Directory {
            Ok(object)
        } else {
            Err(FsError::NotDirectory)
        }
    }

    pub(crate) fn parent_of(&self, directory: &Arc<Object>) -> u64 {
        match directory.state().inode.parent {
            0 => directory.number,
            parent => parent,
        }
    }
}
