//! Freezing: the brief moment in which everything dirty is set aside as the state that the next commit makes.
//!
//! Invariants: the gate is held exclusively, so no operation is half done; no I/O, no record is read; the work is
//! proportional to the dirty objects, not to their content, and these are bounded (`memory/metadata.rs`). What is frozen stays readable until it is committed,
//! and stays frozen if the commit fails: the next commit tries it again, a new freeze waits for that.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use terrace_store::{BLOCK_BYTES, Flow, Sequence};

use crate::{
    live::{LiveDataset, ahead_memory_bytes},
    objects::{Change, Layer, Object, State, XattrChange},
    posix::FsError,
    quota::Charge,
    records::{InodeRecord, Promised},
};

/// Bytes written in sequence that make a stream.
pub(crate) const STREAM_BYTES: u64 = 4 << 20;

/// What kind of writes an object has seen last.
pub(crate) fn flow(state: &State) -> Flow {
    if state.writes.run_bytes() >= STREAM_BYTES {
        Flow::Sequential
    } else {
        Flow::Random
    }
}

/// One object as it was at a freeze.
pub(crate) struct FrozenObject {
    pub(crate) object: Arc<Object>,
    pub(crate) inode: InodeRecord,
    pub(crate) inode_dirty: bool,
    pub(crate) freed: bool,
    pub(crate) data: Option<Arc<Layer>>,
    pub(crate) entries: Vec<Change>,
    pub(crate) xattrs: Vec<XattrChange>,
    pub(crate) flow: Flow,
    /// See [`State::preallocated_over`].
    pub(crate) preallocated_over: bool,
}

/// Everything that was dirty at a freeze.
pub(crate) struct Frozen {
    pub(crate) checkpoint: u64,
    pub(crate) objects: Vec<FrozenObject>,
    /// See [`LiveDataset::riders`].
    pub(crate) riders: Vec<(Vec<u8>, Vec<u8>)>,
    /// Room taken for it, bytes.
    pub(crate) room_bytes: u64,
    /// As far as that was written ahead.
    pub(crate) ahead_bytes: u64,
    /// What it counts as dirty, bytes.
    pub(crate) dirty_bytes: u64,
    /// See [`LiveDataset::shared`]; let go when the live blocks count it.
    pub(crate) shared: Option<Charge>,
    /// Content that the counters count until it is committed that it is gone, bytes.
    pub(crate) let_go_bytes: u64,
    /// See [`LiveDataset::promised`].
    pub(crate) promised: Promised,
}

impl LiveDataset {
    /// Sets everything dirty aside. The gate is held exclusively, and nothing is frozen already.
    pub(crate) fn freeze(&self, checkpoint: u64) -> Frozen {
        let list = std::mem::take(&mut *self.dirty.lock());
        let (mut room_bytes, mut dirty_bytes) = self.freeze_metadata();
        let mut ahead_bytes = 0;
        let let_go_bytes = self.pending_frees.frozen();
        self.ahead.clear();
        let shared = self.shared.lock().take();
        let mut objects = Vec::with_capacity(list.len());
        for object in list {
            let mut state = object.state.lock();
            state.listed = false;
            if !state.is_dirty() {
                continue;
            }
            state.in_flight = true;
            let data = (!state.data.is_empty()).then(|| Arc::new(std::mem::take(&mut state.data)));
            if let Some(layer) = &data {
                let (dirty, ahead) = (layer.dirty_blocks(), layer.ahead_blocks());
                room_bytes += (dirty + ahead) * BLOCK_BYTES as u64;
                ahead_bytes += ahead * BLOCK_BYTES as u64;
                dirty_bytes += dirty * BLOCK_BYTES as u64 + ahead_memory_bytes(layer);
            }
            state.frozen = data.clone();
            let entries = state
                .entries
                .as_mut()
                .map(|entries| std::mem::take(&mut entries.log));
            let xattrs = state
                .xattrs
                .as_mut()
                .map(|xattrs| std::mem::take(&mut xattrs.log));
            let flow = flow(&state);
            let inode_dirty = std::mem::take(&mut state.inode_dirty) || data.is_some();
            let inode = state.inode.clone();
            let freed = state.freed;
            let preallocated_over = std::mem::take(&mut state.preallocated_over);
            drop(state);
            objects.push(FrozenObject {
                object,
                inode,
                inode_dirty,
                freed,
                data,
                entries: entries.unwrap_or_default(),
                xattrs: xattrs.unwrap_or_default(),
                flow,
                preallocated_over,
            });
        }
        Frozen {
            let_go_bytes,
            promised: std::mem::take(&mut *self.promised.lock()),
            checkpoint,
            objects,
            riders: std::mem::take(&mut *self.riders.lock()),
            room_bytes,
            ahead_bytes,
            dirty_bytes,
            shared,
        }
    }

    /// Builds and commits what is frozen. The commit lock is held.
    pub(crate) fn commit_pending(&self) -> Result<Sequence, FsError> {
        let Some(frozen) = self.pending.lock().take() else {
            return Ok(self.dataset.store().newest());
        };
        if self.dataset.is_gone() {
            // Its records are being deleted: what is dirty goes with them.
            return Ok(self.dataset.store().newest());
        }
        if self.building.swap(true, Relaxed) {
            // A panic took what was frozen with it: nothing may be reported as safe any more.
            return Err(FsError::io(
                "an earlier commit was interrupted by a fault; stop and start the pool",
            ));
        }
        let environment = self.dataset.environment();
        let (began, dirty_bytes) = (environment.clock.monotonic_nanoseconds(), frozen.dirty_bytes);
        let result = self.build_and_commit(&frozen);
        self.building.store(false, Relaxed);
        match result {
            Ok((sequence, outcome)) => {
                self.committed(frozen, outcome);
                let took = environment.clock.monotonic_nanoseconds() - began;
                environment.budget.committed(dirty_bytes, took);
                Ok(sequence)
            }
            Err(error) => {
                *self.pending.lock() = Some(frozen);
                Err(error)
            }
        }
    }
}
