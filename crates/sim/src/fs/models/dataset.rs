//! `FilesystemState` and `VolumeState`: a dataset of the run: the states that it may be in, and what is
//! known of its snapshots.

use std::collections::BTreeMap;

use super::{
    blocks::BlocksModel,
    retention::{Retained, RetentionRule},
    tree::{TreeModel, UNKNOWN_OBJECT},
};
use crate::models::History;

/// A state of a tree; `exact` unless the operation that made it failed on the way, so that its times are not known.
#[derive(Debug, Clone)]
pub struct TreeState {
    /// The tree.
    pub tree: TreeModel,
    /// Whether times count.
    pub exact: bool,
}

impl TreeState {
    /// Whether a dump shows this state.
    pub fn is(&self, dump: &TreeModel) -> bool {
        if self.exact {
            return self.tree.without_unnamed() == *dump;
        }
        let mut tree = untimed(&self.tree);
        if tree.node(UNKNOWN_OBJECT).is_some() {
            // A creation that was interrupted: its number is the one that the model does not know.
            let unknown = dump
                .objects(|_| true)
                .into_iter()
                .find(|object| tree.node(*object).is_none());
            let Some(object) = unknown else { return false };
            tree.renumber(UNKNOWN_OBJECT, object);
        }
        tree == untimed(dump)
    }
}

fn untimed(tree: &TreeModel) -> TreeModel {
    let mut copy = tree.without_unnamed();
    for object in copy.objects(|_| true) {
        let _ = copy.change(object, |node| {
            node.modified = (0, 0);
            node.changed = (0, 0);
        });
    }
    copy
}

/// What is known of a snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotState {
    /// What it must show.
    pub tree: TreeModel,
    /// Whether times count.
    pub exact: bool,
    /// False when taking or destroying it was interrupted: it may be there or not.
    pub certain: bool,
    /// Somebody holds it.
    pub tagged: bool,
}

/// What is known of a snapshot of a volume.
#[derive(Debug, Clone)]
pub struct VolumeSnapshot {
    /// What it must show.
    pub data: BlocksModel,
    /// As for [`SnapshotState::certain`].
    pub certain: bool,
}

/// What durability the dataset has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// fsync makes durable.
    Barrier,
    /// Every operation is durable when it returns.
    Sync,
    /// fsync promises nothing.
    Timed,
    /// Nothing is promised until the pool is closed.
    Ram,
}

impl Promise {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Barrier, Self::Sync, Self::Timed, Self::Ram];

    /// The value of the property.
    pub fn word(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Sync => "sync",
            Self::Timed => "timed",
            Self::Ram => "ram",
        }
    }

    /// What a value of the property promises.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|promise| promise.word() == word)
    }

    /// Whether an fsync or a flush makes durable.
    pub fn covers_flush(self) -> bool {
        matches!(self, Self::Barrier | Self::Sync)
    }
}

/// A filesystem of the run.
pub struct FilesystemState {
    /// Its full name.
    pub name: String,
    /// What fsync promises.
    pub promise: Promise,
    /// Most content, bytes, if limited.
    pub quota_bytes: Option<u64>,
    /// Whether the quota is known: setting another one was not interrupted.
    pub quota_certain: bool,
    /// Room that may have been taken in advance before there was a quota, bytes.
    pub quota_slack_bytes: u64,
    /// The states it may be found in.
    pub history: History<TreeState>,
    /// Its snapshots.
    pub snapshots: BTreeMap<String, SnapshotState>,
    /// The rules of retention; `None` if setting them was interrupted.
    pub retention: Option<Vec<RetentionRule>>,
    /// Checkpoints that retention holds.
    pub retained: BTreeMap<u64, Retained>,
    /// Those let go of; a power cut may bring them back.
    pub released: BTreeMap<u64, Retained>,
    /// The state at a tick that failed, which may be held.
    pub unfinished: Option<TreeState>,
    /// It changed since a checkpoint was last held.
    pub changed: bool,
}

/// A volume of the run.
pub struct VolumeState {
    /// Its full name.
    pub name: String,
    /// What a flush promises.
    pub promise: Promise,
    /// The states it may be found in.
    pub history: History<BlocksModel>,
    /// Its snapshots.
    pub snapshots: BTreeMap<String, VolumeSnapshot>,
}
