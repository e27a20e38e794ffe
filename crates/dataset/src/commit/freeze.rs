//! Freezing: the brief moment in which everything dirty is set aside as the state that the next commit makes.
//!
//! Invariants: the gate is held exclusively, so no operation is half done; no I/O, no record is read; the work is
//! proportional to the dirty objects, not to their content, and these are bounded (`live/metadata.rs`). What is frozen stays readable until it is committed,
//! and stays frozen if the commit fails: the next commit tries it again, a new freeze waits for that.

use std::sync::Arc;

use terrace_store::{BLOCK_BYTES, Flow};

use crate::{
    live::{Riders, Stopped, ahead_memory_bytes},
    objects::{Change, Layer, Object, State, XattrChange},
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
    /// Records of the dataset itself.
    pub(crate) riders: Riders,
    /// Room taken for it, bytes.
    pub(crate) room_bytes: u64,
    /// As far as that was written ahead.
    pub(crate) ahead_bytes: u64,
    /// What it counts as dirty, bytes.
    pub(crate) dirty_bytes: u64,
    /// For content that was mapped once more; let go when the live blocks count it.
    pub(crate) shared: Option<Charge>,
    /// Content that the counters count until it is committed that it is gone, bytes.
    pub(crate) gone_bytes: u64,
    /// What was preallocated.
    pub(crate) promised: Promised,
}

impl Frozen {
    /// Sets everything dirty aside. Nothing is frozen already.
    pub(super) fn freeze(stopped: &Stopped<'_>, checkpoint: u64) -> Self {
        let taken = stopped.take();
        let (mut room_bytes, mut dirty_bytes) = (taken.metadata_room_bytes, taken.metadata_bytes);
        let mut ahead_bytes = 0;
        let mut objects = Vec::with_capacity(taken.objects.len());
        for object in taken.objects {
            let mut state = object.state();
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
            let xattrs = state.xattrs.as_mut().map(|xattrs| xattrs.take_changes());
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
        Self {
            gone_bytes: taken.gone_bytes,
            promised: taken.promised,
            checkpoint,
            objects,
            riders: taken.riders,
            room_bytes,
            ahead_bytes,
            dirty_bytes,
            shared: taken.shared,
        }
    }
}
