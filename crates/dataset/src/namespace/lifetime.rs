//! `Lifetimes`: how long objects live: as long as something names them or holds them.
//!
//! Invariant: with the last link and no hold an object is freed in the passage of the gate in which it loses them.

use crate::{
    commit::FREED_AT_ONCE_BYTES,
    live::{DatasetState, DirtyEpoch, METADATA_BYTES, ObjectTable},
    objects::{Object, State},
    posix::{Attributes, Context, FsError},
    records::{FileKind, Old, OrphanRecord, keys},
    writing::Admission,
};
use std::sync::Arc;
use terrace_store::BLOCK_BYTES;

/// See the module.
pub(crate) struct Lifetimes {
    dataset: Arc<DatasetState>,
    table: Arc<ObjectTable>,
    epoch: Arc<DirtyEpoch>,
    admission: Arc<Admission>,
}

impl Lifetimes {
    pub(crate) fn new(
        dataset: &Arc<DatasetState>,
        table: &Arc<ObjectTable>,
        epoch: &Arc<DirtyEpoch>,
        admission: &Arc<Admission>,
    ) -> Arc<Self> {
        Arc::new(Self {
            dataset: dataset.clone(),
            table: table.clone(),
            epoch: epoch.clone(),
            admission: admission.clone(),
        })
    }

    /// Nothing names or holds the object any more: drops its content from RAM; the next commit deletes its records,
    /// or queues them for the sweep. The gate and the state are held.
    pub(crate) fn free(&self, object: &Arc<Object>, state: &mut State) {
        if state.freed {
            return;
        }
        state.freed = true;
        self.epoch
            .pending_frees()
            .add_uncounted(state.inode.blocks * BLOCK_BYTES as u64);
        if state.recorded_size <= FREED_AT_ONCE_BYTES {
            self.epoch
                .pending_frees()
                .add_content(state.inode.blocks * BLOCK_BYTES as u64);
        }
        let layer = std::mem::take(&mut state.data);
        self.epoch.dropped(layer.dirty_blocks());
        self.epoch.dropped_ahead(&layer);
        layer.drop_into(self.epoch.buffers());
        if state.recorded == Old::Absent && !state.in_flight {
            self.table.forget(object.number);
            state.inode_dirty = false;
        } else {
            self.epoch.mark_inode(object, state);
        }
        self.dataset
            .environment()
            .heat
            .forget(self.dataset.number(), state.inode.body);
    }

    /// Whether no past state has this object: one that had it would be held by the newest as well.
    pub(crate) fn is_young(&self, object: &Object) -> bool {
        let Some(held) = self.dataset.held().newest_before(u64::MAX) else {
            return true;
        };
        // A change since then leaves the record as it was before in the history.
        let key = keys::inode(self.dataset.number(), object.number);
        matches!(self.dataset.records().get_as_of(&key, held), Ok(None))
    }

    /// Keeps the object alive without a name.
    pub(crate) fn hold(&self, number: u64) -> Result<(), FsError> {
        let object = self.table.object(number)?;
        let mut state = object.state();
        if state.freed {
            return Err(FsError::Stale);
        }
        state.opens += 1;
        Ok(())
    }

    /// Undoes one `hold`.
    pub(crate) fn release(&self, number: u64) {
        let Some(object) = self.table.in_memory(number) else {
            return;
        };
        let _gate = self.epoch.enter();
        let mut state = object.state();
        state.opens = state.opens.saturating_sub(1);
        if state.opens == 0 && state.inode.links == 0 && !state.freed {
            self.epoch.charge_release(&mut state);
            self.free(&object, &mut state);
        }
    }

    /// Frees what was unlinked but open when the dataset was last used.
    pub(crate) fn free_orphans(&self) -> Result<(), FsError> {
        let (from, to) = keys::dataset_range(keys::TABLE_ORPHAN, self.dataset.number());
        for found in self.dataset.records().each(from, to, 256) {
            let (key, value) = found?;
            if OrphanRecord::decode(&value)? != OrphanRecord::Open {
                continue;
            }
            let object = match self.table.object(keys::parse_orphan(&key)?.1) {
                Ok(object) => object,
                Err(FsError::Stale) => continue,
                Err(error) => return Err(error),
            };
            let _admitted = self.admission.admit_metadata_always(METADATA_BYTES)?;
            let _gate = self.epoch.enter();
            let mut state = object.state();
            if state.inode.links == 0 && state.opens == 0 && !state.freed {
                state.orphan_recorded = true;
                self.epoch.charge_release(&mut state);
                self.free(&object, &mut state);
            }
        }
        Ok(())
    }

    /// Counts a link down. The gate is held, the name is gone.
    pub(crate) fn unlink(
        &self,
        context: &Context,
        victim: &Arc<Object>,
        now: crate::records::Time,
    ) -> Attributes {
        let mut state = victim.state();
        state.inode.links = if victim.kind == FileKind::Directory {
            0
        } else {
            state.inode.links.saturating_sub(1)
        };
        state.inode.changed = now;
        self.epoch.mark_inode(victim, &mut state);
        let attributes = state.attributes(victim.number);
        if attributes.links == 0 {
            if context.trusted {
                state.opens += 1;
            }
            if state.opens > 0 {
                self.epoch.owe_release(&mut state);
            } else {
                self.free(victim, &mut state);
            }
        }
        attributes
    }
}
