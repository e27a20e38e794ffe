//! Hot chunks: single chunks that are read often move up, wherever their regions lie. What is scattered in small blocks
//! makes all regions about as warm as each other, and none of them fits. Of long chunks single blocks do (`split_hot_blocks.rs`).
//!
//! Invariants: what moves here obeys all that promotion of regions does (pins, marks, windows, rates, resting tiers, the
//! courtesy to users), and shows as a job of its own; a round is bounded by what the sketch of `ChunkHeat` holds. Room is
//! made only of what was read clearly less often of late, and only once enough was read to know; until then, after a
//! start too, all that lies on the fast tiers stays there. The sketch is not kept across a restart.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use terrace_cache::{HotChunk, reads_of_piece};
use terrace_store::{BLOCK_BYTES, Space, StoreError, tier_bit};
use terrace_sync::MutexGuard;

use super::promote::may_rise_now;
use crate::{
    extent::{Moving, request_of, slice_of},
    io::is_dense,
    jobs::{JobKind, JobState},
    mover::{Guard, Inner, Mover, POLICY_INTERVAL, SECOND, STEP_BYTES, rising_piece_bytes},
    relayout::{Hot, HotPieces},
    tiers::{TierPolicy, filled_bytes, may_rise, minute_of_day},
};

/// Between two looks at what is wanted.
const LOOK_INTERVAL: u64 = SECOND;
/// The same while blocks come up at their first read.
const LOOK_INTERVAL_SINGLE: u64 = SECOND / 4;
/// Reads from which a chunk is moved up, whatever is set: once is not again, and more are not told apart well.
const READS: (u32, u32) = (2, 12);
/// Of the fastest tier, what may come up without regard for users after a burst of writes, at most, and how much each
/// request must bring for it.
const GRANTED_PART: u64 = 8;
const GRANTED_BYTES_MAX: u64 = 64 << 20;
const GRANTED_REQUEST_BYTES: u64 = 64 << 10;

/// What is on its way up.
#[derive(Default)]
pub(crate) struct HotChunks {
    /// By the tier where they shall lie, in order of place.
    chunks: BTreeMap<u8, Vec<Moving>>,
    /// Single blocks of long ones.
    pub(crate) pieces: HotPieces,
    next_look: u64,
    job: Option<u64>,
    /// What is on its way comes up by requests that bring much.
    is_dense: bool,
    /// So much may come up without regard for users.
    granted_bytes: u64,
}

impl HotChunks {
    pub(crate) fn job(&self) -> Option<u64> {
        self.job
    }

    pub(crate) fn clear(&mut self) {
        *self = Self {
            next_look: self.next_look,
            granted_bytes: self.granted_bytes,
            ..Self::default()
        };
    }

    /// Nothing of what was read, or landed below, is known any more.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// What landed below when the fastest tier, of so many bytes, had no room for a burst of writes lies there side by side: a few
    /// large reads bring it up, and users would read it one by one from there until they are made.
    pub(crate) fn grant(&mut self, tier_bytes: u64) {
        self.granted_bytes = (tier_bytes / GRANTED_PART).min(GRANTED_BYTES_MAX);
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.granted_bytes > 0
    }

    /// So much came up in one request.
    fn use_grant(&mut self, bytes: u64) {
        self.granted_bytes = match bytes >= GRANTED_REQUEST_BYTES {
            true => self.granted_bytes.saturating_sub(bytes),
            false => 0,
        };
    }

    /// Somebody ended the job: what is read meanwhile is looked at with the tiers.
    pub(crate) fn cancel(&mut self, now: u64) {
        self.clear();
        self.next_look = now + POLICY_INTERVAL;
    }

    /// These are to move to this tier as well: there is room for them, or it was made.
    pub(crate) fn admit(&mut self, target: u8, mut chunks: Vec<Moving>) {
        if chunks.is_empty() {
            return;
        }
        chunks.extend(self.chunks.remove(&target).unwrap_or_default());
        chunks.sort_unstable_by_key(Moving::place);
        chunks.dedup();
        self.is_dense = is_dense(&chunks);
        self.chunks.insert(target, chunks);
    }

    /// The same of chunks, and of blocks of chunks.
    pub(crate) fn admit_hot(&mut self, target: u8, hot: Vec<Hot>) {
        let mut chunks = Vec::new();
        for hot in hot {
            match hot {
                Hot::Chunk(moving) => chunks.push(moving),
                Hot::Piece(piece) => self.pieces.admit(target, piece),
            }
        }
        self.admit(target, chunks);
    }

    /// Bytes on their way to a tier.
    pub(crate) fn bytes_for(&self, tier: u8) -> u64 {
        let chunks = self.chunks.get(&tier).into_iter().flatten();
        chunks.map(Moving::bytes).sum::<u64>() + self.pieces.bytes_for(tier)
    }

    /// Where the next of them go: chunks come first.
    fn next_target(&self) -> Option<u8> {
        let next = self.chunks.keys().next().copied();
        next.or_else(|| self.pieces.next_target())
    }

    fn left_bytes(&self) -> u64 {
        self.chunks.values().flatten().map(Moving::bytes).sum::<u64>() + self.pieces.bytes()
    }
}

/// From how many reads of late on a chunk on this tier is moved up.
pub(crate) fn reads_wanted(policy: &TierPolicy) -> Option<u8> {
    (policy.promote_after > 0).then(|| policy.promote_after.clamp(READS.0, READS.1) as u8)
}

/// Up to how many reads of late a chunk makes way for one that has this many: by more than chance, and less than what
/// would bring it up again.
pub(crate) fn reads_that_give_way(reads: u8) -> u8 {
    let apart = (f32::from(reads).sqrt() - 2.0).max(0.0).powi(2);
    (apart as u8).min(READS.0 as u8 - 1)
}

/// Chunks, and blocks, for which there is a place on all tiers but the slowest, about.
pub(crate) fn places(space: &Space) -> (u64, u64) {
    let faster = space.tiers.len().saturating_sub(1);
    let bytes: u64 = space.tiers.iter().take(faster).map(|tier| tier.size_bytes).sum();
    let mean = space.chunk_stored_bytes.checked_div(space.chunks).unwrap_or(0);
    let block = BLOCK_BYTES as u64;
    (bytes / mean.max(block), bytes / block)
}

impl Mover {
    /// Says from how many reads on chunks are wanted, and blocks of long ones: at each look at the tiers, or at what is wanted.
    pub(crate) fn want_chunks(&self, inner: &Inner) {
        let below = usize::from(self.resting_from(inner)).saturating_sub(1);
        let tiers = inner.policies.iter().skip(1).take(below);
        let least = tiers.filter_map(reads_wanted).min();
        let least = least.unwrap_or(0);
        let heat = &self.environment.chunk_heat;
        let of_piece = match heat.goes_to_single_blocks() && self.has_room_for_pieces(inner) {
            true => least.min(1),
            false => reads_of_piece(least),
        };
        heat.set_least(least, of_piece);
    }

    /// Whether blocks come up at their first read: the fastest tier is not near its marks, so that nothing has to make way for them.
    fn has_room_for_pieces(&self, inner: &Inner) -> bool {
        let tiers = self.environment.store.space().tiers;
        let (Some(tier), Some(policy)) = (tiers.first(), inner.policies.first()) else {
            return false;
        };
        let filled = filled_bytes(tier) + inner.hot_chunks.bytes_for(0);
        (filled as f64) < policy.near_water() * tier.size_bytes as f64 && self.may_cut()
    }

    /// Moves some of what is wanted; returns 0, or for how long to wait.
    pub(crate) fn hot_chunks_step(&self, inner: &mut Guard<'_>, now: u64) -> Result<u64, StoreError> {
        let shown = inner.hot_chunks.job.and_then(|id| inner.jobs.get(&id));
        match shown.map(|active| active.job.state) {
            Some(JobState::Paused) => return Ok(u64::MAX),
            Some(state) if state.is_over() => {
                inner.hot_chunks.cancel(now);
            }
            _ => {}
        }
        let looks = inner.hot_chunks.chunks.is_empty() && inner.hot_chunks.pieces.is_empty();
        if looks && now < inner.hot_chunks.next_look {
            return Ok(inner.hot_chunks.next_look - now);
        }
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        let is_open = self.open_tiers(inner, minute);
        if !may_rise_now(&is_open) {
            return Ok(60 * SECOND);
        }
        let target = inner.hot_chunks.next_target().unwrap_or(0);
        let tiers = tier_bit(target) | inner.rising_from;
        // Blocks of long chunks are in RAM already.
        let dense = inner.hot_chunks.is_dense || inner.hot_chunks.chunks.is_empty();
        let pause = match inner.hot_chunks.is_granted() && !looks {
            true => inner.rates.wait(tiers, now),
            false => self.pause_in_haste(inner, looks || dense, tiers, now),
        };
        if pause > 0 {
            return Ok(pause);
        }
        if looks {
            inner.hot_chunks.next_look = now + self.look_interval();
            self.want_chunks(inner);
            self.take_wanted(inner, &is_open, now)?;
            let target = inner.hot_chunks.next_target().unwrap_or(0);
            let pause = inner.rates.wait(tier_bit(target) | inner.rising_from, now);
            if pause > 0 {
                return Ok(pause);
            }
        }
        let Some((target, mut rest)) = inner.hot_chunks.chunks.pop_first() else {
            let raised = self.raise_pieces(inner, &is_open, now)?;
            self.count_hot_chunks(inner, raised.unwrap_or(0), now)?;
            return Ok(match raised {
                Some(_) => 0,
                None => self.look_interval(),
            });
        };
        rest.retain(|moving| is_open.get(usize::from(moving.tier())) == Some(&true));
        // Others have written since.
        let has_room = self.usage(inner).get(usize::from(target)).is_some_and(|tier| {
            let policy = inner.policies.get(usize::from(target));
            rest.first()
                .is_some_and(|next| may_rise(tier, policy, next.bytes()))
        });
        let mut moved = 0;
        if has_room {
            self.show_hot_chunks(inner, target)?;
            let gentle = self.is_gentle(inner, inner.hot_chunks.is_dense, now);
            let most_bytes = rising_piece_bytes(inner, target);
            let batch = match gentle {
                true => request_of(&mut rest, most_bytes),
                false => slice_of(&mut rest, most_bytes),
            };
            match self.rewrite(inner, target, &batch, gentle) {
                Ok(done) => {
                    moved = done.bytes;
                    if done.tiers != 0 {
                        inner.rising_from = done.tiers;
                    }
                }
                Err(StoreError::NoSpace) => rest.clear(),
                Err(error) => return Err(error),
            }
            inner.hot_chunks.use_grant(moved);
        } else {
            rest.clear();
        }
        if !rest.is_empty() {
            inner.hot_chunks.chunks.insert(target, rest);
        }
        self.count_hot_chunks(inner, moved, now)?;
        Ok(0)
    }

    /// Who lets it take small steps wants to see much of it. What was read once stays in RAM for a short time only.
    fn look_interval(&self) -> u64 {
        match self.step_bytes.load(Relaxed) < STEP_BYTES {
            true => 1,
            false if self.environment.chunk_heat.least_of_piece() == 1 => LOOK_INTERVAL_SINGLE,
            false => LOOK_INTERVAL,
        }
    }

    /// Looks where what is wanted lies, and chooses what may move: the most read first, as far as there is room.
    fn take_wanted(&self, inner: &mut Guard<'_>, is_open: &[bool], now: u64) -> Result<(), StoreError> {
        let heat = &self.environment.chunk_heat;
        let wanted = heat.take_wanted();
        let store = self.environment.store.as_ref();
        let found = MutexGuard::unlocked(inner, || {
            let places = wanted.into_iter().map(|hot| Ok((hot, store.chunk_info(hot.id)?)));
            places.collect::<Result<Vec<_>, StoreError>>()
        })?;
        let tiers = self.usage(inner);
        let (resting, may_cut) = (self.resting_from(inner), self.may_cut());
        let mut planned = vec![0; tiers.len()];
        if let Some(fastest) = planned.first_mut() {
            *fastest = inner.exchange.kept_bytes(now);
        }
        for (hot, info) in found {
            let Some(info) = info.filter(|info| usize::from(info.tier) < tiers.len()) else {
                continue;
            };
            let moving = Moving::of(hot.id, &info);
            if info.tier == 0 {
                heat.rose(hot.id);
                continue;
            }
            let least = inner.policies.get(usize::from(info.tier)).and_then(reads_wanted);
            let opens = is_open.get(usize::from(info.tier)) == Some(&true);
            let may = info.tier < resting && opens && self.may_move_up(inner, &hot);
            let Some(least) = least.filter(|_| may) else {
                continue;
            };
            let Some(rising) = self.as_hot(&hot, moving, least, may_cut) else {
                continue;
            };
            let target = (0..usize::from(info.tier)).find(|at| {
                let policy = inner.policies.get(*at);
                may_rise(&tiers[*at], policy, planned[*at] + rising.bytes())
            });
            let pinned = self.pin_of(inner, hot.dataset, hot.body);
            if pinned.is_none() && target != Some(0) && inner.exchange.seeks(now) {
                inner.exchange.want_chunk(rising);
            }
            let Some(target) = target.filter(|at| is_open.get(*at) == Some(&true)) else {
                continue;
            };
            if pinned.is_some_and(|pin| pin != tiers[target].name) {
                continue;
            }
            planned[target] += rising.bytes();
            let hot_chunks = &mut inner.hot_chunks;
            match rising {
                Hot::Chunk(moving) => hot_chunks.chunks.entry(target as u8).or_default().push(moving),
                Hot::Piece(piece) => hot_chunks.pieces.admit(target as u8, piece),
            }
        }
        // Neighbours are read together.
        for chunks in inner.hot_chunks.chunks.values_mut() {
            chunks.sort_unstable_by_key(Moving::place);
        }
        inner.hot_chunks.is_dense = inner.hot_chunks.chunks.values().all(|chunks| is_dense(chunks));
        Ok(())
    }

    /// What lies beneath a pinned directory must be known, and nobody move it by hand.
    fn may_move_up(&self, inner: &Inner, hot: &HotChunk) -> bool {
        let known = !inner.beneath.is_looking() || !self.environment.pins.has_directories(hot.dataset);
        known && !self.is_moved_by_hand(inner, hot.dataset, hot.body)
    }

    /// Whether of a hot region only what is known to be used moves up to this tier: where its room is contested, what was
    /// moved down because nobody reads it would else come up again with its neighbours.
    pub(crate) fn only_used_rise(&self, inner: &Inner, tier: u8, planned_bytes: u64) -> bool {
        if !self.environment.chunk_heat.is_informed() {
            return false;
        }
        let at = usize::from(tier);
        let tiers = self.environment.store.space().tiers;
        let near = inner.policies.get(at).map_or(0.0, TierPolicy::near_water);
        tiers
            .get(at)
            .is_some_and(|tier| (filled_bytes(tier) + planned_bytes) as f64 >= near * tier.size_bytes as f64)
    }

    pub(crate) fn show_hot_chunks(&self, inner: &mut Inner, target: u8) -> Result<(), StoreError> {
        if inner.hot_chunks.job.is_some() {
            return Ok(());
        }
        let name = crate::mover::tier_name(inner, target);
        let reason = format!("moving single chunks that are read often up to tier '{name}'");
        let job = self.new_job(JobKind::Promote, reason, 0, target, target);
        inner.hot_chunks.job = Some(self.add(inner, job, None)?);
        Ok(())
    }

    /// The job ends when a look finds nothing more.
    fn count_hot_chunks(&self, inner: &mut Inner, moved: u64, now: u64) -> Result<(), StoreError> {
        let left = inner.hot_chunks.left_bytes();
        let Some(id) = inner.hot_chunks.job else {
            return Ok(());
        };
        let over = moved == 0 && left == 0;
        if let Some(active) = inner.jobs.get_mut(&id) {
            active.job.done_bytes += moved;
            active.count(moved, now);
            active.job.total_bytes = active.job.done_bytes + left;
            if over {
                active.job.finish();
                self.keep(inner, id)?;
                self.forget_ended(inner)?;
            }
        }
        if over {
            inner.hot_chunks.job = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_up_without_regard_for_users_is_little_and_comes_in_large_reads() {
        let mut chunks = HotChunks::default();
        assert!(!chunks.is_granted());
        chunks.grant(8 << 20);
        chunks.use_grant(512 << 10);
        chunks.clear();
        assert!(chunks.is_granted());
        chunks.use_grant(512 << 10);
        assert!(!chunks.is_granted(), "an eighth");
        chunks.grant(8 << 20);
        chunks.use_grant(60 << 10);
        assert!(!chunks.is_granted(), "one by one it is no hurry");
        chunks.grant(1 << 40);
        assert_eq!(chunks.granted_bytes, GRANTED_BYTES_MAX);
    }

    #[test]
    fn who_gives_way_was_read_clearly_less_often() {
        for reads in 0..=15 {
            let colder = reads_that_give_way(reads);
            assert!(
                u32::from(colder) < READS.0 && colder * 2 <= reads,
                "{reads}: {colder}"
            );
        }
        assert_eq!((reads_that_give_way(3), reads_that_give_way(15)), (0, 1));
    }
}
