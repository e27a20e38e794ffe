//! Compaction: live chunks move out of segments that hold little else but garbage, so that these can be written to again.
//!
//! Invariants: chunks stay on their tier unless it has no segment left at all; a tier is compacted when garbage is more than a
//! quarter of it, or when free segments get short, and only where a few of the emptiest segments together give at least one
//! back, which bounds how much is written for it (greedy cleaning of a log-structured store: Rosenblum and Ousterhout 1992).

use std::sync::Arc;

use terrace_meta::Tree;
use terrace_pool::{Pool, SegmentId};
use terrace_store::{CHUNK_BYTES_MAX, ChunkId, Placement, RewriteOutcome, StoreError, tier_bit};

use super::{release::Reclaimer, relocation::Relocator, sweep::Sweep, turn::Maintenance};
use crate::{
    Handles,
    durability::Journal,
    ledger::Ledger,
    space::{SpaceView, unused_bytes},
};

/// Among how many of the emptiest segments compaction looks for one to be won.
const COMPACT_SEGMENTS: usize = 16;
/// What one step of compaction moves, about, and of what is moved by number so many chunks at most.
const COMPACT_BYTES: u64 = 1 << 20;
const COMPACT_CHUNKS: usize = 256;
/// Emptied segments that wait for the same flush at most, which also brings the slower copy of the log up to date: so many,
/// or more if they are small.
const RELEASED_TOGETHER: u64 = 4;
const RELEASED_BYTES: u64 = 32 << 20;

/// A segment that is being emptied.
#[derive(Debug)]
pub(crate) enum Emptying {
    /// As its headers tell.
    Swept(Sweep),
    /// As the table of all chunks tells: what is left to move.
    Listed(SegmentId, Vec<ChunkId>),
}

impl Emptying {
    fn segment(&self) -> SegmentId {
        match self {
            Self::Swept(sweep) => sweep.segment(),
            Self::Listed(segment, _) => *segment,
        }
    }

    fn is_done(&self, segment_bytes: usize) -> bool {
        match self {
            Self::Swept(sweep) => sweep.is_done(segment_bytes),
            Self::Listed(_, ids) => ids.is_empty(),
        }
    }
}

/// Empties segments that hold little else but garbage.
pub(crate) struct Compactor {
    pub(super) pool: Arc<Pool>,
    pub(super) tree: Arc<Tree>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) space: Arc<SpaceView>,
    pub(super) journal: Arc<Journal>,
    pub(super) relocator: Arc<Relocator>,
    pub(super) reclaimer: Arc<Reclaimer>,
}

impl Compactor {
    /// Of these parts.
    pub(crate) fn new(
        handles: &Handles,
        space: &Arc<SpaceView>,
        journal: &Arc<Journal>,
        relocator: &Arc<Relocator>,
        reclaimer: &Arc<Reclaimer>,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            tree: handles.tree.clone(),
            ledger: handles.ledger.clone(),
            space: space.clone(),
            journal: journal.clone(),
            relocator: relocator.clone(),
            reclaimer: reclaimer.clone(),
        }
    }

    /// Moves what is live out of the emptiest segment, when that is worth it; `false` when it is not.
    pub(super) fn compact_step(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        self.compact(state, false)
    }

    /// The same at leisure: no faster than the rate of its tier, as long as nobody waits for the room.
    pub(super) fn compact_throttled(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        if self.space.is_urgent() {
            return self.compact_step(state);
        }
        let tier = |segment: &SegmentId| self.pool.tier_of(segment.device).unwrap_or(0);
        let begun = state
            .compacting
            .as_ref()
            .map(|emptying| tier(&emptying.segment()));
        if begun.is_some_and(|tier| !self.space.rates().is_open(tier)) {
            return Ok(false);
        }
        self.compact(state, true)
    }

    fn compact(&self, state: &mut Maintenance, at_its_rate: bool) -> Result<bool, StoreError> {
        if state.compacting.is_none() {
            if self.look_step(state) {
                return Ok(true);
            }
            let Some(segment) = self.choose_for_compaction(state, at_its_rate) else {
                return Ok(false);
            };
            state.compacting = Some(Emptying::Swept(Sweep::new(segment)));
        }
        let Some(mut emptying) = state.compacting.take() else {
            return Ok(false);
        };
        let segment = emptying.segment();
        let tier = self.pool.tier_of(segment.device).unwrap_or(0);
        let most_bytes = COMPACT_BYTES.min(self.space.piece_bytes(tier) as u64);
        let most_bytes = match at_its_rate {
            true => most_bytes.min(self.space.rates().piece_bytes(tier_bit(tier))),
            false => most_bytes,
        };
        self.space.rest_beside_users(tier);
        let mut within = |strict| {
            let placement = Placement::Tier { tier, strict };
            self.empty_some(&mut emptying, placement, most_bytes)
        };
        // It stays on its tier, above the mark of that too: where it goes else is for the mover to say.
        let mut outcome = within(true);
        if let Err(StoreError::NoSpace) = outcome
            && (self.reclaimer.give_up_empty()? | self.reclaimer.wait_for_release(state)?)
        {
            outcome = within(true);
        }
        if let Err(StoreError::NoSpace) = outcome {
            tracing::debug!(%segment, tier, "compaction finds no room on its tier");
            outcome = within(false);
        }
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(StoreError::NoSpace) => {
                state.without_room.insert(segment);
                return Ok(true);
            }
            // What tells of its chunks cannot be read: the other segments are compacted all the same.
            Err(
                StoreError::DamagedMetadata(cause)
                | StoreError::UnreadableMetadata(cause)
                | StoreError::Device(cause),
            ) => {
                tracing::error!(%segment, %cause, "a segment cannot be compacted");
                state.stuck.insert(segment);
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        match at_its_rate {
            true => self.space.rates().take(&outcome.tier_bytes),
            false => self.space.rates().take_in_need(&outcome.tier_bytes),
        }
        if !outcome.failed.is_empty() {
            state.stuck.insert(segment);
        }
        if !emptying.is_done(self.pool.segment_bytes() as usize) {
            state.compacting = Some(emptying);
        } else if self.lives_in(segment) {
            match emptying {
                Emptying::Swept(sweep) if !sweep.left_some() => self.begin_looking(state, segment),
                _ => _ = state.stuck.insert(segment),
            }
        }
        Ok(true)
    }

    /// Moves some of what is left, about so many bytes.
    fn empty_some(
        &self,
        emptying: &mut Emptying,
        placement: Placement,
        most_bytes: u64,
    ) -> Result<RewriteOutcome, StoreError> {
        match emptying {
            Emptying::Swept(sweep) => self.relocator.sweep_step(sweep, placement, most_bytes as usize),
            Emptying::Listed(segment, ids) => {
                let at_once = self.chunks_of_step(*segment, ids.len(), most_bytes as i64);
                let left = ids.len().saturating_sub(at_once.min(COMPACT_CHUNKS));
                let outcome = self
                    .relocator
                    .move_chunks(&ids[left..], placement, Some(*segment))?;
                ids.truncate(left);
                Ok(outcome)
            }
        }
    }

    /// Whether committed chunks lie in a segment that was not given back meanwhile, and taken for something else.
    pub(super) fn lives_in(&self, segment: SegmentId) -> bool {
        let ledger = self.ledger.lock();
        let state = ledger.segments.get(&segment);
        state.is_some_and(|state| state.live > 0 && !state.open && !state.freeing)
    }

    /// How many of so many chunks of a segment are moved at once, to come to about so many bytes.
    fn chunks_of_step(&self, segment: SegmentId, left: usize, most_bytes: i64) -> usize {
        let live = self
            .ledger
            .lock()
            .segments
            .get(&segment)
            .map_or(0, |state| state.live);
        let each = (live / left.max(1) as i64).max(1);
        usize::try_from(most_bytes / each).map_or(1, |chunks| chunks.max(1))
    }

    /// The emptiest segment of the fastest tier where garbage is more than a quarter or room is short, and where moving
    /// the live chunks of the emptiest few gives at least one segment back (or they would only be moved about for ever).
    fn choose_for_compaction(&self, state: &mut Maintenance, at_its_rate: bool) -> Option<SegmentId> {
        let short = self.space.is_compaction_due();
        // Disks that sleep are woken only for room that is needed.
        let resting = match short {
            true => u8::MAX,
            false => self.space.resting_from(),
        };
        let rooms = self.space.tier_rooms();
        let mut devices: Vec<Vec<u16>> = vec![Vec::new(); rooms.len()];
        let in_use: Vec<u16> = self.ledger.lock().devices().map(|(device, _)| device).collect();
        for device in in_use {
            let tier = self.pool.tier_of(device).map(usize::from);
            if let Some(here) = tier.and_then(|tier| devices.get_mut(tier)) {
                here.push(device);
            }
        }
        let looked_at = devices.iter().zip(&rooms).take(usize::from(resting));
        looked_at.enumerate().find_map(|(tier, (devices, room))| {
            if at_its_rate && !self.space.rates().is_open(tier as u8) {
                return None;
            }
            let few = match (short, room.is_short()) {
                (true, _) => COMPACT_SEGMENTS,
                // Before what lands goes to a slower tier, whatever room that has.
                (_, true) => COMPACT_SEGMENTS / 2,
                _ => 0,
            };
            self.emptiest_worth_it(state, devices, few)
        })
    }

    /// The emptiest segment of these devices; `few`: among how many of the emptiest one must be won, 0 if there is no need and
    /// a quarter of all must be garbage.
    fn emptiest_worth_it(&self, state: &Maintenance, devices: &[u16], few: usize) -> Option<SegmentId> {
        let segment_bytes = i64::from(self.pool.segment_bytes());
        let left_out = || state.stuck.union(&state.without_room);
        let may = |id: SegmentId| !state.stuck.contains(&id) && !state.without_room.contains(&id);
        let (mut total, mut live) = (0, 0);
        let emptiest = {
            // All writers wait for the ledger: it is looked at a few of them.
            let ledger = self.ledger.lock();
            for (segments, bytes) in devices.iter().map(|device| ledger.settled_on(*device)) {
                total += segments * segment_bytes;
                live += bytes;
            }
            for id in left_out().filter(|id| devices.contains(&id.device)) {
                if let Some(bytes) = ledger.settled_bytes(*id) {
                    total -= segment_bytes;
                    live -= bytes;
                }
            }
            ledger.emptiest(devices, None, if few == 0 { COMPACT_SEGMENTS } else { few }, may)
        };
        if emptiest.is_empty() || few == 0 && total - live <= total / 4 {
            return None;
        }
        // The end of a segment stays unused when the next chunk does not fit.
        let usable = segment_bytes - unused_bytes(self.pool.segment_bytes(), CHUNK_BYTES_MAX as u64) as i64;
        let mut sum = 0;
        let gives = emptiest.iter().enumerate().any(|(count, (live, _))| {
            sum += live;
            sum <= count as i64 * usable
        });
        emptiest.first().filter(|_| gives).map(|(_, id)| *id)
    }

    /// Compacts where garbage is to be brought back before other work; one flush then serves several segments, as far as
    /// there is room for the next.
    pub(super) fn compact_pressed(
        &self,
        state: &mut Maintenance,
        free: Option<u64>,
    ) -> Result<bool, StoreError> {
        let Some(free) = free else { return Ok(false) };
        let waiting = self.ledger.lock().freeing.len() as u64;
        let together = RELEASED_TOGETHER.max(RELEASED_BYTES / u64::from(self.pool.segment_bytes()));
        Ok(waiting < together.min(free) && self.compact_step(state)?)
    }

    /// Does a piece of what brings garbage back where that is short; `free` as of
    /// [`free_where_pressed`](Self::free_where_pressed).
    pub(crate) fn bring_back(&self, state: &mut Maintenance, free: Option<u64>) -> Result<bool, StoreError> {
        // It makes records, and the log has to be shortened first.
        if self.journal.is_log_at_its_end() {
            return Ok(false);
        }
        Ok(self.reclaimer.reclaim_step(state)?
            || self.reclaimer.give_up_empty()?
            || self.compact_pressed(state, free)?
            || self.reclaimer.wait_for_release(state)?)
    }
}
