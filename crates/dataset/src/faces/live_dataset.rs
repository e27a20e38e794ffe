//! `LiveDataset`: the parts of a live dataset, wired: each owns its state, and holds only what lies below it.
//!
//! Locks, in this order: inode locks (by object number), the gate ([`DirtyEpoch`]), one object's state, and the leaves in each part. A
//! commit takes the dataset's commit lock before the gate, and no inode lock.

use super::live_trait::{Live, Paused, StandingStill};
use crate::{
    commit::{ChunkWriter, CommitQueue},
    live::{DatasetState, DirtyEpoch, Fragment, ObjectTable, StoodStill, Stopped},
    namespace::{Directories, ExtendedAttributes, Lifetimes, Namespace},
    posix::FsError,
    reading::{ContentReader, Extents},
    relayout::{Accepts, Cut, HotPiece, Relaid, Relayouter, Relayouts},
    writing::{Admission, ContentWriter, WriteAhead, WriteThrough},
};
use std::sync::Arc;
use terrace_store::Sequence;

/// See the module.
pub(crate) struct LiveDataset {
    pub(super) dataset: Arc<DatasetState>,
    pub(super) table: Arc<ObjectTable>,
    pub(super) epoch: Arc<DirtyEpoch>,
    pub(super) commits: Arc<CommitQueue>,
    pub(super) extents: Arc<Extents>,
    pub(super) reader: Arc<ContentReader>,
    pub(super) ahead: Arc<WriteAhead>,
    pub(super) admission: Arc<Admission>,
    pub(super) writer: Arc<ContentWriter>,
    pub(super) through: Arc<WriteThrough>,
    pub(super) directories: Arc<Directories>,
    pub(super) xattrs: Arc<ExtendedAttributes>,
    pub(super) lifetimes: Arc<Lifetimes>,
    pub(super) namespace: Arc<Namespace>,
    pub(super) relayouter: Arc<Relayouter>,
    relayouts: Arc<Relayouts>,
}

impl LiveDataset {
    pub(crate) fn new(dataset: Arc<DatasetState>) -> Self {
        let relayouts = Arc::<Relayouts>::default();
        let table = ObjectTable::new(&dataset);
        let epoch = DirtyEpoch::new(&dataset);
        let chunks = ChunkWriter::new(&dataset, &table);
        let commits = CommitQueue::new(&dataset, &table, &epoch, &chunks);
        let extents = Extents::new(&dataset, &table);
        let reader = ContentReader::new(&dataset, &table, &extents);
        let ahead = WriteAhead::new(&dataset, &epoch, &chunks);
        let admission = Admission::new(&dataset, &epoch, &commits, &ahead);
        let writer = ContentWriter::new(
            &dataset, &table, &epoch, &admission, &ahead, &reader, &extents, &relayouts,
        );
        let through = WriteThrough::new(&dataset, &epoch, &chunks, &admission, &ahead, &extents);
        let directories = Directories::new(&dataset, &table);
        let xattrs = ExtendedAttributes::new(&dataset, &table, &epoch, &commits, &admission);
        let lifetimes = Lifetimes::new(&dataset, &table, &epoch, &admission);
        let namespace = Namespace::new(
            &dataset,
            &table,
            &epoch,
            &commits,
            &admission,
            &writer,
            &directories,
            &xattrs,
            &lifetimes,
        );
        let relayouter = Relayouter::new(&dataset, &table, &epoch, &commits, &relayouts);
        Self {
            dataset,
            table,
            epoch,
            commits,
            extents,
            reader,
            ahead,
            admission,
            writer,
            through,
            directories,
            xattrs,
            lifetimes,
            namespace,
            relayouter,
            relayouts,
        }
    }
}

struct Still<'a> {
    live: &'a LiveDataset,
    still: StoodStill<'a>,
}

impl<'a> StandingStill<'a> for Still<'a> {
    fn pause(self: Box<Self>) -> Box<dyn Paused + 'a> {
        Box::new(Standstill {
            commits: &self.live.commits,
            stopped: self.live.epoch.stop(),
            _still: self.still,
        })
    }
}

struct Standstill<'a> {
    commits: &'a CommitQueue,
    stopped: Stopped<'a>,
    _still: StoodStill<'a>,
}

impl Paused for Standstill<'_> {
    fn freeze(self: Box<Self>, checkpoint: u64) {
        self.commits.freeze(&self.stopped, checkpoint);
    }
}

/// A face of a live dataset.
pub(crate) trait HasLive: Send + Sync {
    fn live(&self) -> &LiveDataset;
}

impl<T: HasLive> Live for T {
    fn stand_still(&self) -> Result<Box<dyn StandingStill<'_> + '_>, FsError> {
        let live = self.live();
        let still = live.epoch.stand_still()?;
        Ok(Box::new(Still { live, still }))
    }

    fn write_ahead(&self) -> bool {
        self.live().ahead.write_ahead_step()
    }

    fn commit_frozen(&self) -> Result<Sequence, FsError> {
        self.live().commits.commit_frozen()
    }

    fn dirty_bytes(&self) -> u64 {
        self.live().epoch.dirty_bytes()
    }

    fn unfrozen_metadata_bytes(&self) -> u64 {
        self.live().epoch.unfrozen_metadata_bytes()
    }

    fn referenced_bytes(&self) -> u64 {
        self.live().epoch.referenced_bytes()
    }

    fn relayout(
        &self,
        fragments: &[Fragment],
        cut: Cut,
        wanted: Accepts<'_>,
        most_bytes: u64,
    ) -> Vec<Result<Relaid, FsError>> {
        self.live().relayouter.lay_out(fragments, cut, wanted, most_bytes)
    }

    fn raise(&self, pieces: &[HotPiece], tier: u8) -> Result<u64, FsError> {
        self.live().relayouter.raise_pieces(pieces, tier)
    }

    fn close(&self) {
        self.live().relayouts.close();
    }
}
