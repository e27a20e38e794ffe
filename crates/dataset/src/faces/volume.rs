//! `Volume`: a dataset as a block device. One object with the same pages, regions and commits as a file.

use super::live_dataset::{HasLive, LiveDataset};
use crate::{
    commit::is_zero,
    live::DatasetState,
    objects::{Object, State},
    posix::{BlockStatus, FsError, ROOT, SeekTarget, pieces_of},
    quota::OfReserve,
    reading::BlockRead,
    records::{FILE_BYTES_MAX, FileKind, InodeRecord, Old, Time, VersionedBatch},
};
use std::sync::Arc;

use terrace_store::{BLOCK_BYTES, ChunkId, Sequence};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// A live volume. All methods may be called from any thread; offsets and lengths need no alignment.
pub struct Volume {
    pub(crate) live: LiveDataset,
    pub(crate) object: Arc<Object>,
}

impl Volume {
    /// Opens a dataset that exists.
    pub fn open(state: Arc<DatasetState>) -> Result<Arc<Self>, FsError> {
        let live = LiveDataset::new(state);
        let object = live.table.object(ROOT)?;
        if object.kind != FileKind::Volume {
            return Err(FsError::io("the dataset is not a volume"));
        }
        Ok(Arc::new(Self { live, object }))
    }

    /// Puts the records of an empty volume.
    pub fn format(
        batch: &mut VersionedBatch,
        size_bytes: u64,
        owner: (u32, u32),
        now: Time,
    ) -> Result<(), FsError> {
        if size_bytes > FILE_BYTES_MAX {
            return Err(FsError::FileTooBig);
        }
        let mut inode = InodeRecord::new(FileKind::Volume, 0o600, owner.0, owner.1, now);
        inode.links = 1;
        inode.size = size_bytes;
        inode.body = ROOT;
        batch.put_inode(ROOT, &inode, Old::Absent)?;
        batch.count_objects(1);
        Ok(())
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<DatasetState> {
        &self.live.dataset
    }

    /// Bytes.
    pub fn size_bytes(&self) -> u64 {
        self.object.state().inode.size
    }

    pub(crate) fn within(&self, offset: u64, length: u64) -> Result<(), FsError> {
        let end = offset.checked_add(length).ok_or(FsError::Invalid)?;
        if end > self.size_bytes() {
            Err(FsError::Invalid)
        } else {
            Ok(())
        }
    }

    /// Fills `buffer`; `Invalid` beyond the end.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        self.within(offset, buffer.len() as u64)?;
        let length = self.live.reader.read_object(&self.object, offset, buffer)?;
        if length == buffer.len() {
            Ok(())
        } else {
            Err(FsError::Invalid)
        }
    }

    /// Does several reads, each as [`read`](Self::read).
    pub fn read_many(&self, reads: &mut [BlockRead<'_>]) {
        let inside = |read: &BlockRead<'_>| self.within(read.offset, read.buffer.len() as u64);
        if let [only] = reads {
            only.outcome = self.read(only.offset, only.buffer);
        } else if reads.iter().all(|read| inside(read).is_ok()) {
            self.live.reader.read_object_at_once(&self.object, reads);
        } else {
            for read in reads {
                read.outcome = self.read(read.offset, read.buffer);
            }
        }
    }

    /// Writes; `NoSpace` beyond the end or when the pool is full. Zeroes find room always, as they need none: who fills what is
    /// unused with them, to make an image small, can do so on a full pool.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        match self.write_content(offset, data) {
            Err(full @ (FsError::NoSpace | FsError::QuotaExceeded))
                if offset.is_multiple_of(BLOCK)
                    && (data.len() as u64).is_multiple_of(BLOCK)
                    && is_zero(data) =>
            {
                match self.discard(offset, data.len() as u64) {
                    Err(FsError::Invalid) => Err(full),
                    done => done,
                }
            }
            done => done,
        }
    }

    fn write_content(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        self.live.dataset.writable()?;
        let bytes = data.len() as u64;
        let _admitted = self.live.admission.admit(bytes)?;
        let through = self.live.through.store_through(&self.object, offset, data)?;
        if through.is_none() {
            let environment = self.live.dataset.environment();
            environment.budget.throttle(&*environment.clock, bytes);
        }
        {
            // Whole blocks change at one moment, under the state's lock: their writers need no other order. Whoever changes a
            // part of a block reads the rest first, and is alone meanwhile.
            let is_whole = offset.is_multiple_of(BLOCK) && (data.len() as u64).is_multiple_of(BLOCK);
            let (_beside, _alone) = match is_whole {
                true => (Some(self.object.lock_inode_shared()), None),
                false => (None, Some(self.object.lock_inode())),
            };
            self.within(offset, data.len() as u64)
                .map_err(|_| FsError::NoSpace)?;
            let now = self.live.dataset.now();
            let after = &mut |state: &mut State| state.inode.modified = now;
            match through {
                Some(through) => {
                    self.live
                        .through
                        .put_through(&self.object, offset, data, through, after)?;
                }
                None => {
                    self.live
                        .writer
                        .write_object(&self.object, offset, data, after)
                        .1?
                }
            }
        }
        self.live.commits.settle()
    }

    /// Makes the range read as zero and gives its room back.
    pub fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.live.dataset.writable()?;
        self.within(offset, length)?;
        self.live
            .writer
            .give_back(&self.object, offset, offset + length, &mut |from, to| {
                self.discard_piece(from, to - from)
            })?;
        self.live.commits.settle()
    }

    /// Makes a piece of a range read as zero.
    pub(crate) fn discard_piece(&self, offset: u64, length: u64) -> Result<(), FsError> {
        let _inode = self.object.lock_inode();
        self.within(offset, length)?;
        let now = self.live.dataset.now();
        self.live
            .writer
            .punch_object(&self.object, offset, length, false, &mut |state| {
                state.inode.modified = now
            })
    }

    /// Makes the range read as zero.
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.discard(offset, length)
    }

    /// Makes everything done so far durable (as far as `durability` wants a flush to).
    pub fn flush(&self) -> Result<(), FsError> {
        self.live.commits.sync()
    }

    /// Room that is held although nothing is dirty, bytes: none, while no call is on its way.
    pub fn leaked_room_bytes(&self) -> u64 {
        self.live.epoch.leaked_room_bytes()
    }

    /// Commit and flush whatever `durability` says (FUA, a clean stop).
    pub fn flush_always(&self) -> Result<(), FsError> {
        self.live.commits.flush()
    }

    /// Hands everything done so far to the store, without flushing.
    pub fn commit(&self) -> Result<Sequence, FsError> {
        self.live.commits.commit()
    }

    /// Changes the size; shrinking drops what is behind it.
    pub fn resize(&self, size_bytes: u64) -> Result<(), FsError> {
        self.resize_with(size_bytes, None)
    }

    /// The same; `record`, the dataset's own, goes into the same batch: after a crash both tell the old size, or both the
    /// new one.
    pub(crate) fn resize_with(
        &self,
        size_bytes: u64,
        mut record: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<(), FsError> {
        self.live.dataset.writable()?;
        let old_bytes = self.size_bytes();
        // What goes can be more than one commit takes: all but the first portion goes before the sizes change, and that one with them.
        let ends = self
            .live
            .writer
            .ends_on_the_way(&self.object, size_bytes, old_bytes)?;
        if let Some(end) = ends.last() {
            self.discard(*end, old_bytes - end)?;
        }
        self.live.admission.take_metadata_always(1, OfReserve::Removals)?;
        {
            let _inode = self.object.lock_inode();
            let now = self.live.dataset.now();
            self.live
                .writer
                .truncate_object(&self.object, size_bytes, &mut |state| {
                    state.inode.changed = now;
                    self.live.epoch.add_rider(record.take());
                })?;
        }
        self.live.commits.settle()
    }

    /// The next byte of data, or of a hole, at or behind `offset`; `NoData` if there is none.
    pub fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64, FsError> {
        self.live.extents.seek_object(&self.object, offset, target)
    }

    /// The chunks that a region (1 MiB) maps as of the newest commit.
    pub fn chunks_of(&self, region: u64) -> Result<Vec<ChunkId>, FsError> {
        self.live.extents.chunks(&self.object, region)
    }

    /// Data and holes of a range, at most `limit` pieces, from its start. Of a range with much data only the first part: so many
    /// regions are looked at for one answer; whatever is a hole costs nothing.
    pub fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockStatus>, FsError> {
        self.within(offset, length)?;
        pieces_of(
            offset,
            offset + length,
            limit,
            |from, to| self.live.extents.next_region(&self.object, from, to),
            |region| self.live.extents.mapped_blocks(&self.object, region),
        )
    }
}

impl HasLive for Volume {
    fn live(&self) -> &LiveDataset {
        &self.live
    }
}
