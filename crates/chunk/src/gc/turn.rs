//! `Maintenance`: what one step of background work carries on to the next; whoever holds it has the turn.

use std::{collections::BTreeSet, time::Duration};

use terrace_pool::SegmentId;
use terrace_sync::{MutexGuard, rank};

use super::{compaction::Emptying, packing::Grain, reclaim::Reclaim, release::Released};
use crate::durability::Checkpoint;

/// The last turn that brought nothing back.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct InVain {
    /// Its number, from 1.
    pub(super) turn: u64,
    /// The newest batch at its end.
    pub(super) newest: u64,
}

/// How long a step waits for another thread that works here.
pub(crate) const TURN_WAIT: Duration = Duration::from_millis(20);

/// What a step carries on from the one before.
#[derive(Default)]
pub(crate) struct Maintenance {
    pub(crate) checkpoint: Checkpoint,
    /// Where the look for dead chunks stands.
    pub(super) reclaim: Reclaim,
    /// The segment that is being compacted.
    pub(super) compacting: Option<Emptying>,
    /// One whose headers do not tell all that lies there: it is being found.
    pub(super) looking: Option<crate::gc::find_by_table::Looking>,
    /// Steps until metadata segments are looked at again.
    pub(super) metadata_rest: u32,
    /// Steps until metadata without a second copy is looked for again.
    pub(crate) mirror_rest: u32,
    /// Where room is short: whether room comes next, or metadata.
    pub(super) room_next: bool,
    /// Segments that could not be emptied (damaged chunks).
    pub(super) stuck: BTreeSet<SegmentId>,
    /// Segments that cannot be emptied until there is room again.
    pub(super) without_room: BTreeSet<SegmentId>,
    /// See [`crate::gc::packing`].
    pub(super) grain: Grain,
    /// The last turn of work for room that brought nothing back.
    pub(super) in_vain: InVain,
    /// What is still to be done for segments that were given up.
    pub(super) released: Released,
}

impl Maintenance {
    /// Whether a turn that began after so many others brought nothing back, and nothing was committed since.
    pub(crate) fn was_in_vain(&self, after: u64, newest: u64) -> bool {
        self.in_vain.turn > after && self.in_vain.newest == newest
    }

    /// This turn brought nothing back, up to the batch `newest`.
    pub(crate) fn note_in_vain(&mut self, turn: u64, newest: u64) {
        self.in_vain = InVain { turn, newest };
    }

    /// Begins a turn of work for somebody who needs room: what was given up before is tried again.
    pub(crate) fn begin_turn(&mut self) {
        self.stuck.clear();
        self.without_room.clear();
        self.metadata_rest = 0;
    }
}

/// Who holds it has the turn.
pub(crate) type Turn<'a> = MutexGuard<'a, Maintenance, rank::chunk::Turn>;
