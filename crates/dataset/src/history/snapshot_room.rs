//! `SnapshotRoom`: what a snapshot of datasets with promises has to set aside.
//!
//! A snapshot has all blocks in common with a volume: whatever is written over from then on takes room beside it. So the reservation
//! no longer counts any of them, and as much as it counted before must be set aside, or the snapshot is refused (as ZFS does with
//! `refreservation`).

use std::sync::Arc;

use terrace_store::Reservation;

use crate::{live::Environment, registry::Node, settings::DatasetError};

/// See the module.
pub(super) struct SnapshotRoom<'a> {
    environment: &'a Environment,
    snapshot: &'a str,
    room: Reservation,
}

impl<'a> SnapshotRoom<'a> {
    /// As much as what these datasets have dirty may make of it.
    pub(super) fn set_aside(
        environment: &'a Environment,
        nodes: &[Arc<Node>],
        snapshot: &'a str,
    ) -> Result<Self, DatasetError> {
        let (bytes, first) = needs(nodes, true);
        let room = match (environment.set_aside(bytes), first) {
            (Err(DatasetError::NoRoom { .. }), Some(node)) => {
                return Err(refusal(environment, &node, snapshot, bytes));
            }
            (result, _) => result?,
        };
        Ok(Self {
            environment,
            snapshot,
            room,
        })
    }

    /// The same once everything is committed and nothing can change: what came in between is taken as well. The commit locks
    /// of the datasets are held.
    pub(super) fn complete(&mut self, nodes: &[Arc<Node>]) -> Result<(), DatasetError> {
        let (bytes, first) = needs(nodes, false);
        let lacking = bytes.saturating_sub(self.room.bytes());
        let Some(node) = first.filter(|_| lacking > 0) else {
            return Ok(());
        };
        let store = &self.environment.store;
        if store.available_bytes() < lacking {
            return Err(refusal(self.environment, &node, self.snapshot, bytes));
        }
        self.room.join(store.reserve_always(lacking));
        Ok(())
    }
}

/// What a snapshot of these datasets has to set aside, by the first of them for which it has to.
fn needs(nodes: &[Arc<Node>], with_dirty: bool) -> (u64, Option<Arc<Node>>) {
    let (mut bytes, mut first) = (0u64, None);
    for node in nodes.iter().filter(|node| node.has_promise()) {
        let dirty = || node.with_live(|live| live.dirty_bytes());
        let more = with_dirty.then(dirty).flatten().unwrap_or(0);
        let needs = node.state.usage().snapshot_bytes(more);
        if needs > 0 {
            bytes = bytes.saturating_add(needs);
            first.get_or_insert_with(|| node.clone());
        }
    }
    (bytes, first)
}

fn refusal(environment: &Environment, node: &Node, snapshot: &str, wanted_bytes: u64) -> DatasetError {
    let volume = node.state.name();
    if !node.state.kind().is_volume() {
        return DatasetError::NoRoomForPreallocated {
            snapshot: format!("{volume}@{snapshot}"),
            dataset: volume.to_string(),
            wanted_bytes,
            available_bytes: environment.store.available_bytes(),
        };
    }
    DatasetError::NoRoomForSnapshot {
        snapshot: format!("{volume}@{snapshot}"),
        volume: volume.to_string(),
        reserved_bytes: node.state.usage().reservation_bytes(),
        wanted_bytes,
        available_bytes: environment.store.available_bytes(),
    }
}
