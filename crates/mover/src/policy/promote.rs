//! Promotion: what is read often moves up.
//!
//! Invariants: a round looks at [`CANDIDATES_MAX`] regions at most, the hottest first; when all of them lie where they
//! should, the next round goes on below them, so that a large fast tier does not hide what is a little less hot; nothing
//! is moved up into a tier above its high-water mark, so that promotion never causes the demotion that undoes it at once. After a
//! burst of random writes, and after a start, small chunks are left to [`hot_chunks`](crate::policy::hot_chunks), which moves those of all
//! regions in the order in which they lie: what landed below since the burst was too much is there side by side.
//! Where reads go to single blocks, a region is as hot as what of it lies below, and leaves such blocks some room.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use terrace_cache::LONG_BLOCKS;
use terrace_dataset::read_region;
use terrace_store::{StoreError, tier_bit};
use terrace_sync::MutexGuard;

use super::{
    hot_chunks::reads_wanted,
    manual_overrides::ByHand,
    recently_hot::Grace,
    swap::{Exchange, Place},
};
use crate::{
    extent::{Chosen, Found, Moving},
    io::REGION_READS,
    jobs::{JobKind, JobState},
    mover::{Guard, Inner, Mover, SECOND, in_window},
    relayout::Hot,
    tiers::{filled_bytes, may_rise, minute_of_day},
};

const CANDIDATES_MAX: usize = 1024;
/// Regions looked at in one step; beside users it ends with the first of which something is to be moved.
const STEP_REGIONS: usize = 8;
const REGION_BYTES: u64 = 1 << 20;
/// One part in so many of the fastest tier, below its low-water mark, is left to single blocks.
const BLOCKS_PART: u64 = 8;

/// Hot regions that may lie too low, hottest first.
#[derive(Default)]
pub(crate) struct Candidates {
    regions: VecDeque<(u32, u64, u32, f32)>,
    /// The job that shows the work of this round, once there is some.
    job: Option<u64>,
    /// The coldest of this round, if there are more.
    last: Option<Rank>,
    /// This round looks at what is colder than this only.
    below: Option<Rank>,
    /// So many looks in a row brought nothing up.
    pub(crate) in_vain: u32,
}

/// Reads (positive floats order as their bits), dataset, body, region.
type Rank = (u32, u32, u64, u32);

impl Candidates {
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    pub(crate) fn job(&self) -> Option<u64> {
        self.job
    }

    /// Reads of the region that comes next.
    pub(crate) fn next_reads(&self) -> Option<f32> {
        self.regions.front().map(|(_, _, _, reads)| *reads)
    }

    /// Room was made for these: they come next.
    pub(crate) fn admit(&mut self, regions: Vec<(Place, f32)>) {
        if !regions.is_empty() {
            self.in_vain = 0;
        }
        for ((dataset, body, region), reads) in regions.into_iter().rev() {
            self.regions.push_front((dataset, body, region, reads));
        }
    }

    /// Somebody moves this body by hand, or with 0 all of the dataset.
    pub(crate) fn forget(&mut self, dataset: u32, body: u64) {
        self.regions
            .retain(|region| region.0 != dataset || body != 0 && region.1 != body);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Whether anything may rise to the fastest tier: that is open, and a slower one.
pub(crate) fn may_rise_now(is_open: &[bool]) -> bool {
    is_open.first() == Some(&true) && is_open.iter().skip(1).any(|open| *open)
}

impl Mover {
    /// Collects the regions that are read often enough, unless the last round still runs.
    pub(crate) fn find_hot(&self, inner: &mut Inner) {
        // Tiers that rest are not read from.
        let below = usize::from(self.resting_from(inner)).saturating_sub(1);
        let thresholds = inner
            .policies
            .iter()
            .skip(1)
            .take(below)
            .map(|policy| policy.promote_after);
        let Some(least) = thresholds.filter(|after| *after > 0).min() else {
            return;
        };
        if !inner.candidates.is_empty() {
            return;
        }
        let below = inner.candidates.below;
        let mut more = false;
        let mut hottest = BinaryHeap::new();
        self.environment
            .heat
            .for_each(self.minutes(), |dataset, body, region, heat| {
                let rank: Rank = (heat.reads.to_bits(), dataset, body, region);
                if heat.reads >= least as f32 && below.is_none_or(|below| rank < below) {
                    hottest.push(Reverse(rank));
                    if hottest.len() > CANDIDATES_MAX {
                        hottest.pop();
                        more = true;
                    }
                }
            });
        let sorted = hottest.into_sorted_vec();
        inner.candidates.last = sorted.last().filter(|_| more).map(|Reverse(rank)| *rank);
        inner.candidates.below = None;
        inner.candidates.in_vain = 0;
        inner.candidates.regions = sorted
            .into_iter()
            .map(|Reverse((reads, dataset, body, region))| (dataset, body, region, f32::from_bits(reads)))
            .collect();
    }

    /// Looks at the next few candidates; returns 0, or for how long to wait.
    pub(crate) fn promote_step(&self, inner: &mut Guard<'_>, now: u64) -> Result<u64, StoreError> {
        let paused = inner.candidates.job.and_then(|id| inner.jobs.get(&id));
        match paused.map(|active| active.job.state) {
            Some(JobState::Paused) => return Ok(u64::MAX),
            Some(state) if state.is_over() => {
                inner.candidates.clear();
                return Ok(u64::MAX);
            }
            _ => {}
        }
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        let is_open = self.open_tiers(inner, minute);
        if !may_rise_now(&is_open) {
            return Ok(60 * SECOND);
        }
        let haste = self.promotes_in_haste(inner);
        let pause = self.pause_in_haste(inner, haste, tier_bit(0) | inner.rising_from, now);
        if pause > 0 {
            return Ok(pause);
        }
        let tiers = self.usage(inner);
        let (resting, minutes) = (self.resting_from(inner), self.minutes());
        let mut by_target: BTreeMap<u8, Chosen> = BTreeMap::new();
        // Room that was made for something is not for others.
        let mut planned = inner.exchange.kept_bytes(now) + inner.hot_chunks.bytes_for(0);
        let gentle = self.is_gentle(inner, haste, now);
        let upper = 0..(tiers.len() as u8).saturating_sub(1);
        let step_bytes = STEP_REGIONS as u64 * REGION_BYTES;
        let few = gentle || inner.rates.piece_bytes(u64::MAX) < step_bytes;
        let mut last = None;
        for _ in 0..STEP_REGIONS {
            if few && by_target.values().any(|chosen| chosen.bytes() > 0) {
                break;
            }
            let Some(candidate) = inner.candidates.regions.pop_front() else {
                break;
            };
            let (dataset, body, region, reads) = candidate;
            let place = (dataset, body, region);
            let kept = inner.exchange.is_here(place);
            planned -= kept.unwrap_or(0).min(planned);
            let most = kept.unwrap_or(REGION_BYTES);
            let target = (0..tiers.len())
                .find(|at| may_rise(&tiers[*at], inner.policies.get(*at), planned + most))
                .unwrap_or(tiers.len()) as u8;
            if kept.is_none() && upper.contains(&target) {
                let pause = inner.rates.wait(tier_bit(target), now);
                if pause > 0 {
                    inner.candidates.regions.push_front(candidate);
                    if by_target.is_empty() {
                        return Ok(pause);
                    }
                    break;
                }
            }
            last = Some(candidate);
            let pinned = self.pin_of(inner, dataset, body);
            // What lies beneath a pinned directory is not known yet.
            if inner.beneath.is_looking() && self.environment.pins.has_directories(dataset) {
                continue;
            }
            if self.is_moved_by_hand(inner, dataset, body) {
                continue;
            }
            let target_name = tiers.get(usize::from(target)).map(|tier| tier.name.as_str());
            if pinned.is_some() && pinned.as_deref() != target_name {
                continue;
            }
            if is_open.get(usize::from(target)) == Some(&false) {
                continue;
            }
            let store = self.environment.store.as_ref();
            let found = MutexGuard::unlocked(inner, || read_region(store, dataset, body, u64::from(region)))?;
            let Some(found) = found else {
                continue;
            };
            let found = Found {
                dataset,
                body,
                region: u64::from(region),
                record: found.record,
            };
            // Others may share these chunks and be cold: what is hot here must not be moved down for them.
            for run in found.record.runs() {
                inner.grace.note(run.chunk, minutes, reads);
            }
            let policies = inner.policies.clone();
            let hot_enough = |tier: u8, reads: f32| {
                let after = policies
                    .get(usize::from(tier))
                    .map_or(0, |policy| policy.promote_after);
                let opens = is_open.get(usize::from(tier)) == Some(&true);
                tier > target && tier < resting && opens && after > 0 && reads >= after as f32
            };
            if target > 0 && pinned.is_none() && inner.exchange.seeks(now) {
                let mut below = Chosen::default();
                MutexGuard::unlocked(inner, || {
                    below.add(store, &found.record, |tier| {
                        tier > 0 && tier < resting && is_open.get(usize::from(tier)) == Some(&true)
                    })
                })?;
                self.want_room(inner, place, reads, below);
            }
            let chunks = by_target.entry(target).or_default();
            let (before, count) = (chunks.bytes(), chunks.chunks().len());
            MutexGuard::unlocked(inner, || {
                chunks.add(store, &found.record, |tier| hot_enough(tier, reads))
            })?;
            if kept.is_none() {
                let added = chunks.split_off(count);
                let below = self.reads_below(reads, added.chunks());
                let is_hot = added
                    .chunks()
                    .iter()
                    .any(|moving| hot_enough(moving.tier(), below));
                if is_hot && below < REGION_READS {
                    if haste {
                        // Others first: for it readers need not give way.
                        inner.candidates.regions.push_back((dataset, body, region, below));
                        continue;
                    }
                    let long = added.chunks().iter().any(|moving| moving.blocks() >= LONG_BLOCKS);
                    if target == 0 && long && !self.is_left_by_blocks(inner, planned + added.bytes()) {
                        continue;
                    }
                }
                chunks.append(added, |moving| hot_enough(moving.tier(), below));
            }
            if kept.is_none() && self.only_used_rise(inner, target, planned) {
                let heat = &self.environment.chunk_heat;
                // What only a few blocks of a long chunk are read for comes up by itself (`split_hot_blocks.rs`).
                chunks.retain(|moving| {
                    let (id, blocks) = (moving.id(), moving.blocks());
                    heat.reads(id, blocks) > 0 && !heat.is_concentrated(id, blocks)
                });
            }
            let rising = chunks.bytes().saturating_sub(before);
            if kept.is_none() && target == 0 && inner.hot_chunks.is_granted() {
                inner.hot_chunks.admit(target, chunks.take_small());
            }
            if rising > 0 {
                self.note_moving(&found, now);
            }
            planned += rising;
        }
        let mut moved = 0;
        let found = by_target.into_iter().filter(|(_, chosen)| chosen.bytes() > 0);
        for (target, chosen) in found {
            self.show_promotion(inner, target)?;
            match self.rewrite(inner, target, chosen.chunks(), gentle) {
                Ok(done) => {
                    moved += done.bytes;
                    if done.tiers != 0 {
                        inner.rising_from = done.tiers;
                    }
                    // Its turn again: users come first, or its tier is to be written to slowly.
                    if !done.whole
                        && let Some(candidate) = last.take().filter(|_| few)
                    {
                        inner.candidates.regions.push_front(candidate);
                    }
                }
                Err(StoreError::NoSpace) => inner.candidates.regions.clear(),
                Err(error) => return Err(error),
            }
        }
        inner.candidates.in_vain = match moved {
            0 => inner.candidates.in_vain + 1,
            _ => 0,
        };
        self.count_promotion(inner, moved, now)?;
        Ok(0)
    }

    /// Of each tier, whether policies may move content off it and onto it now.
    pub(crate) fn open_tiers(&self, inner: &Inner, minute: u32) -> Vec<bool> {
        let tiers = 0..inner.policies.len() as u8;
        tiers
            .map(|tier| in_window(&inner.policies, tier, minute))
            .collect()
    }

    /// The heat was cleared: what was on its way up, or waited for room, for what is forgotten stays where it is.
    pub fn forget_hot(&self) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let rounds = [inner.candidates.job(), inner.hot_chunks.job()];
        inner.candidates.clear();
        inner.hot_chunks.forget();
        inner.exchange = Exchange::default();
        inner.grace = Grace::default();
        // How often it was read before somebody moved it down is forgotten as well.
        inner.by_hand = ByHand::default();
        for id in rounds.into_iter().flatten() {
            if let Some(active) = inner.jobs.get_mut(&id)
                && !active.job.state.is_over()
            {
                active.job.finish();
                self.keep(&mut inner, id)?;
            }
        }
        self.forget_ended(&mut inner)
    }

    /// What landed below in a burst of writes may come up at once.
    pub(crate) fn grant_return(&self, inner: &mut Inner) {
        let tiers = self.environment.store.space().tiers;
        inner
            .hot_chunks
            .grant(tiers.first().map_or(0, |tier| tier.size_bytes));
    }

    /// How often a region that was read so often was read for these chunks of it, which lie below: where reads go to single blocks it is hot because
    /// of a few, and what of them is up already asks for nothing. After a start the counts begin anew.
    fn reads_below(&self, reads: f32, below: &[Moving]) -> f32 {
        let heat = &self.environment.chunk_heat;
        if !heat.resolves() || !heat.goes_to_single_blocks() {
            return reads;
        }
        let counts = below
            .iter()
            .map(|moving| u32::from(heat.reads(moving.id(), moving.blocks())));
        reads.min(counts.sum::<u32>() as f32)
    }

    /// Whether the fastest tier has so much room for whole regions: where reads go to single blocks, these get the last of it.
    fn is_left_by_blocks(&self, inner: &Inner, bytes: u64) -> bool {
        let tiers = self.environment.store.space().tiers;
        let (Some(tier), Some(policy)) = (tiers.first(), inner.policies.first()) else {
            return true;
        };
        let most = policy.near_water() * tier.size_bytes as f64 - (tier.size_bytes / BLOCKS_PART) as f64;
        !self.environment.chunk_heat.goes_to_single_blocks() || ((filled_bytes(tier) + bytes) as f64) < most
    }

    /// This of a hot region lies below, and the fastest tier has no room.
    fn want_room(&self, inner: &mut Inner, place: Place, reads: f32, below: Chosen) {
        let heat = &self.environment.chunk_heat;
        let reads = self.reads_below(reads, below.chunks());
        if !heat.is_telling() {
            let least = inner.policies.iter().skip(1).map(|policy| policy.promote_after);
            let least = least.filter(|after| *after > 0).min();
            if below.bytes() > 0 && least.is_some_and(|least| reads >= least as f32) {
                inner.exchange.want_region(place, reads, below.bytes());
            }
            return;
        }
        // It is as hot as those of its chunks that lie there, also of those that RAM has at the moment.
        let wanted = inner.policies.iter().skip(1).filter_map(reads_wanted).min();
        for moving in below.chunks() {
            let (id, blocks) = (moving.id(), moving.blocks());
            let is_hot = wanted.is_some_and(|wanted| heat.reads(id, blocks) >= wanted);
            if is_hot && !heat.is_concentrated(id, blocks) {
                inner.exchange.want_chunk(Hot::Chunk(*moving));
            }
        }
    }

    pub(crate) fn pin_of(&self, inner: &Inner, dataset: u32, body: u64) -> Option<String> {
        if let Some(tier) = inner.pins.of_body(dataset, body) {
            return Some(tier.to_owned());
        }
        let beneath = self.environment.pins.tier_beneath(dataset, body);
        if let Some(policy) = beneath.and_then(|tier| inner.policies.get(usize::from(tier))) {
            return Some(policy.name.clone());
        }
        self.datasets
            .state_by_number(dataset)
            .and_then(|state| state.settings().pin.clone())
    }

    /// There is something to move: from now on the round is a job.
    fn show_promotion(&self, inner: &mut Inner, target: u8) -> Result<(), StoreError> {
        if inner.candidates.job.is_some() {
            return Ok(());
        }
        let name = inner
            .policies
            .get(usize::from(target))
            .map_or("", |policy| policy.name.as_str());
        let reason = format!("moving what is read often up to tier '{name}'");
        let job = self.new_job(JobKind::Promote, reason, 0, target, target);
        inner.candidates.job = Some(self.add(inner, job, None)?);
        Ok(())
    }

    fn count_promotion(&self, inner: &mut Inner, moved: u64, now: u64) -> Result<(), StoreError> {
        let left = inner.candidates.regions.len() as u64;
        let Some(id) = inner.candidates.job else {
            if left == 0
                && let Some(last) = inner.candidates.last.take()
            {
                // All of them lie well: what is less hot may not.
                inner.candidates.below = Some(last);
                inner.next_policy = inner.next_policy.min(now + SECOND);
            }
            if left == 0 {
                self.look_for_room(inner, now);
            }
            return Ok(());
        };
        if let Some(active) = inner.jobs.get_mut(&id) {
            active.job.done_bytes += moved;
            active.count(moved, now);
            active.job.total_bytes = active.job.done_bytes + left * REGION_BYTES;
            if left == 0 {
                active.job.finish();
                self.keep(inner, id)?;
                self.forget_ended(inner)?;
            }
        }
        if left == 0 {
            inner.candidates.clear();
            self.look_for_room(inner, now);
        }
        Ok(())
    }

    /// A round is over: what found no room need not wait for the next look at the tiers, nor what may wait for more.
    fn look_for_room(&self, inner: &mut Inner, now: u64) {
        // After a start little is known yet of what lies up: what others read meanwhile tells.
        if !self.environment.chunk_heat.is_informed() && !inner.exchange.takes_unused(now) {
            return;
        }
        let again = inner.exchange.looks_again();
        if let Some(at) = again.or_else(|| inner.exchange.is_due(now).then_some(now)) {
            // Not at once: what makes the room is a job, and jobs get their turn when there are no candidates.
            inner.next_policy = inner.next_policy.min(at.max(now + SECOND));
        }
    }
}
