//! What is committed is taken over: objects in RAM know what the records have now, room and memory come back.
//!
//! Invariant: a region's new record is in RAM before the layer that held its content goes.

use super::{
    build::{NAMES_AT_ONCE, Outcome},
    freeze::{Frozen, FrozenObject},
    group::CommitQueue,
};
use crate::{objects::Layer, records::Old};
use std::sync::Arc;

impl CommitQueue {
    /// Lets the objects in RAM know that what was frozen is in the store.
    pub(super) fn committed(&self, frozen: Frozen, outcome: Outcome) {
        for (key, region) in outcome.regions {
            self.table.put_region(key, Arc::new(region));
        }
        if outcome.orphans {
            self.dataset.orphans_freed();
        }
        let environment = self.dataset.environment();
        let now = environment.clock.monotonic_nanoseconds();
        for (fragment, part) in outcome.fragments {
            environment.fragments.note(fragment, part, now);
        }
        let mut preallocated = outcome.preallocated;
        for (at, (object, blocks)) in frozen.objects.into_iter().zip(outcome.blocks).enumerate() {
            if let Some(preallocated) = preallocated.remove(&at) {
                object.object.state().recorded_preallocated = preallocated;
            }
            self.object_committed(object, blocks, frozen.checkpoint);
        }
        // What could not be forgotten before it was committed.
        environment.caches.relieve_all();
        self.epoch.rooms().spend(frozen.room_bytes, frozen.ahead_bytes);
        self.epoch.rooms().trim();
        // What the commit counts needs no promise any more.
        self.dataset.usage().give_back();
        drop(frozen.shared);
        self.epoch.pending_frees().counted(frozen.gone_bytes);
        self.epoch.sub_dirty(frozen.dirty_bytes);
    }

    fn object_committed(&self, frozen: FrozenObject, blocks: Option<u64>, checkpoint: u64) {
        let object = frozen.object;
        let mut changes: Vec<_> = frozen.entries;
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        let mut from = 0;
        while from < changes.len() {
            // A stable sort: the last of each group is the newest. The lock is given up now and then.
            let mut state = object.state();
            let Some(entries) = &mut state.entries else { break };
            for _ in 0..NAMES_AT_ONCE {
                let Some((key, _)) = changes.get(from) else { break };
                let count = changes[from..]
                    .iter()
                    .take_while(|(other, _)| other == key)
                    .count();
                entries.committed(key, count as u32, changes[from + count - 1].1, checkpoint);
                from += count;
            }
        }
        let mut state = object.state();
        if let Some(xattrs) = &mut state.xattrs {
            for change in &frozen.xattrs {
                xattrs.committed(change, checkpoint);
            }
        }
        state.in_flight = false;
        let layer = state.frozen.take();
        if frozen.freed {
            state.recorded = Old::Absent;
            drop(state);
            self.table.forget(object.number);
        } else {
            if let Some(blocks) = blocks {
                state.inode.blocks = blocks;
            }
            if frozen.inode_dirty {
                state.recorded = Old::Born(checkpoint);
                state.recorded_size = frozen.inode.size;
                state.recorded_body = frozen.inode.body;
                state.orphan_recorded = frozen.inode.links == 0;
            }
            drop(state);
        }
        drop(frozen.data);
        if let Some(layer) = layer {
            Layer::recycle(layer, self.epoch.buffers());
        }
    }
}
