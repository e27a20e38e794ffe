//! Packing: what is done for somebody who would be told that there is no room: live chunks are put together more closely than is
//! worth it otherwise.
//!
//! Compaction lets a segment be that is an eighth garbage, since more would be written for it than comes back. A pool can be
//! made of such segments, and what is promised to a reservation is counted in content, not in segments.
//!
//! Invariants: only sets of segments are taken that give at least one back, counting what the end of each new segment leaves
//! unused as long as the chunks are; so it ends, and in vain nothing is written.

use std::collections::BTreeMap;

use terrace_pool::SegmentId;
use terrace_store::StoreError;

use super::{
    compaction::{Compactor, Emptying},
    sweep::Sweep,
    turn::Maintenance,
};
use crate::space::unused_bytes;

/// Segments of which one must be won.
const PACKED: usize = 32;
/// Segments that are looked up under one lock of the ledger.
const GRAIN_AT_ONCE: usize = 1024;
/// Of a segment, the part that must be garbage for it to be looked at: with less of it more segments than that would be needed.
const GARBAGE_PART: i64 = 24;

/// How long the chunks of a segment are on average, bytes, by segment: found once, since it hardly changes.
pub(crate) type Grain = BTreeMap<SegmentId, i64>;

impl Compactor {
    /// Moves the chunks of some segments together, so that one segment at least comes back; `false` if there are no such.
    pub(crate) fn pack(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        for tier in 0..self.pool.tiers().len() as u8 {
            let Some(set) = self.set_to_pack(state, tier)? else {
                continue;
            };
            let mut moved = false;
            for segment in set {
                // One that is under way is finished by the way.
                if !self.compact_to_its_end(state)? {
                    return Ok(false);
                }
                state.compacting = Some(Emptying::Swept(Sweep::new(segment)));
                if !self.compact_to_its_end(state)? {
                    return Ok(false);
                }
                if state.stuck.contains(&segment) || state.without_room.contains(&segment) {
                    continue;
                }
                moved = true;
                if self.lives_in(segment) {
                    // Headers do not tell of what is left. To find out is work in proportion to the pool, and somebody waits: compaction
                    // does it at leisure.
                    state.grain.insert(segment, self.pool.segment_bytes().into());
                }
            }
            if moved {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends what is being compacted; `false` if the log has no more room for that.
    fn compact_to_its_end(&self, state: &mut Maintenance) -> Result<bool, StoreError> {
        while state.compacting.is_some() {
            if self.journal.is_log_at_its_end() {
                return Ok(false);
            }
            self.compact_step(state)?;
        }
        Ok(true)
    }

    /// Forgets the chunks of segments that are not in use, a page at a time: all writers wait for the ledger meanwhile.
    fn forget_grain(&self, state: &mut Maintenance) {
        let known: Vec<SegmentId> = state.grain.keys().copied().collect();
        for page in known.chunks(GRAIN_AT_ONCE) {
            let ledger = self.ledger.lock();
            let gone = page.iter().filter(|id| !ledger.segments.contains_key(id));
            gone.for_each(|id| _ = state.grain.remove(id));
        }
    }

    /// The emptiest segments of a tier that together give one back.
    fn set_to_pack(&self, state: &mut Maintenance, tier: u8) -> Result<Option<Vec<SegmentId>>, StoreError> {
        let segment_bytes = i64::from(self.pool.segment_bytes());
        let least_garbage = segment_bytes - segment_bytes / GARBAGE_PART;
        let devices = self.pool.devices().into_iter();
        let devices: Vec<u16> = devices
            .filter(|device| device.tier == tier)
            .map(|device| device.number)
            .collect();
        self.forget_grain(state);
        let mut last = None;
        let mut page = Vec::new().into_iter();
        let mut set = Vec::new();
        let (mut live, mut longest) = (0, 0);
        loop {
            let Some((bytes, id)) = page.next() else {
                // A page at a time: all writers wait for the ledger meanwhile.
                let may = |id: SegmentId| !state.stuck.contains(&id) && !state.without_room.contains(&id);
                page = self
                    .ledger
                    .lock()
                    .emptiest(&devices, last, PACKED, may)
                    .into_iter();
                match page.as_slice() {
                    [] => return Ok(None),
                    [.., end] => last = Some(*end),
                }
                continue;
            };
            if bytes > least_garbage {
                return Ok(None);
            }
            let grain = match state.grain.get(&id) {
                Some(grain) => *grain,
                None => {
                    let grain = match self.relocator.chunks_by_headers(id)? {
                        (chunks, true) => bytes / i64::try_from(chunks.len()).unwrap_or(i64::MAX).max(1),
                        (_, false) => segment_bytes,
                    };
                    state.grain.insert(id, grain);
                    grain
                }
            };
            // Long chunks leave the ends of segments unused wherever they are.
            if grain * GARBAGE_PART / 2 > segment_bytes {
                continue;
            }
            set.push(id);
            live += bytes;
            longest = grain.max(longest);
            let unused = unused_bytes(self.pool.segment_bytes(), longest.unsigned_abs());
            let usable = segment_bytes - unused as i64;
            if live <= (set.len() as i64 - 1) * usable {
                return Ok(Some(set));
            }
            if set.len() == PACKED {
                return Ok(None);
            }
        }
    }
}
