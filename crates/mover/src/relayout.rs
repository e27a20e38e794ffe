//! Relayout: regions that commits left in many pieces, or in chunks that are mostly dead, are written anew as whole chunks in
//! order once they rest. What is worth it says `terrace_dataset::Layout`, how it is done `dataset/src/relayout.rs`.
//!
//! Invariants: a region is looked at only after no commit has changed it for [`REST`], so that what is being overwritten
//! at random is left alone, and only because a commit or a move to another tier noticed it, never by a look through the pool; content stays on its
//! tier, and a tier that rests is left alone; a round shows as a job only when it found something; a pool without room
//! ends it.
//!
//! Where a tier is so full that something would have to sink for what should rise, that is too long: dead blocks would keep
//! hot content below. There a region is looked at once after [`REST_SHORT`], and written anew if that gives room back. Where
//! content is about to sink since hardly a segment is free ([`urgent`](crate::urgent)), it is not left to rest at all, and users are not
//! given way: what gives back a third of what it writes costs less than a compaction, and what sinks is read from there.

use std::{cell::Cell, collections::VecDeque, sync::atomic::Ordering};

use parking_lot::MutexGuard;
use terrace_dataset::{Fragment, FsError, Layout, REGION_BYTES, Relaid};
use terrace_store::{StoreError, TierUsage};

use crate::{
    exchange::EXCHANGED_PART,
    job::{JobKind, JobState},
    marks::may_rise,
    mover::{Guard, Inner, Mover, SECOND, in_window, tier_name},
    plan::Found,
    policy::{TierPolicy, minute_of_day},
};

/// How long no commit has changed a region before it is written anew.
const REST: u64 = 300 * SECOND;
/// The same where its tier is short of room: some commits, so that what is written over all the time is left alone.
const REST_SHORT: u64 = 15 * SECOND;
/// Regions of a round.
const ROUND_REGIONS: usize = 1024;
/// Regions that a step looks at: alone, and beside users.
const STEP_REGIONS: usize = 4;
const STEP_REGIONS_WATCHED: usize = 1;
/// Content that is written at once: alone, and beside users, who wait for the reads of it.
const WRITE_BYTES: u64 = REGION_BYTES;
const WRITE_BYTES_WATCHED: u64 = 128 << 10;
/// Of a tier with a slower one below, one part in this many is left free, as by all that the mover brings; and by what
/// gives more room back than it takes.
const LAST_PART: u64 = 16;
const LAST_PART_EARLY: u64 = 32;

/// A region of a round.
#[derive(Debug, Clone, Copy)]
struct Resting {
    fragment: Fragment,
    /// It has not rested long: since when, nanoseconds.
    early: Option<u64>,
}

/// The regions of this round.
#[derive(Default)]
pub(crate) struct Relayouts {
    regions: VecDeque<Resting>,
    /// The first of them was written in part.
    begun: bool,
    /// The job that shows the work of this round, once there is some.
    job: Option<u64>,
    /// The tier that was written last.
    tier: u8,
    dead_bytes: u64,
}

impl Relayouts {
    pub(crate) fn is_idle(&self) -> bool {
        self.regions.is_empty()
    }

    pub(crate) fn job(&self) -> Option<u64> {
        self.job
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// What a look at a region came to.
struct Look {
    done: Result<Relaid, FsError>,
    /// It is worth it, but not now.
    later: bool,
    /// What is free of its tier is left to those who write.
    full: bool,
    /// It is worth it once its tier is short of room.
    if_short: bool,
}

impl Mover {
    /// Takes the regions that have come to rest, unless the last round still runs.
    pub(crate) fn find_fragments(&self, inner: &mut Inner, now: u64) {
        if !inner.relayouts.is_idle() {
            return;
        }
        let fragments = &self.environment.fragments;
        if let Some(before) = now.checked_sub(REST) {
            let found = fragments.take(before, ROUND_REGIONS).into_iter();
            let found = found.map(|fragment| Resting {
                fragment,
                early: None,
            });
            inner.relayouts.regions = found.collect();
        }
        let rest = match self.is_any_urgent(inner) {
            true => 0,
            false => REST_SHORT,
        };
        let tiers = self.environment.store.space().tiers;
        if let Some(before) = now.checked_sub(rest)
            && inner.relayouts.is_idle()
            && (0..tiers.len()).any(|tier| is_short(&tiers, &inner.policies, tier))
        {
            let found = fragments.take_early(before, ROUND_REGIONS).into_iter();
            let found = found.map(|(fragment, since)| Resting {
                fragment,
                early: Some(since),
            });
            inner.relayouts.regions = found.collect();
        }
    }

    /// This region is about to go to another tier: in pieces it would be read slowly there, and dead blocks go with it.
    pub(crate) fn note_moving(&self, found: &Found, now: u64) {
        let dataset = self.datasets.state_by_number(found.dataset);
        if dataset.is_some_and(|state| found.record.is_in_pieces(state.settings().chunk_bytes)) {
            let fragment = Fragment {
                dataset: found.dataset,
                body: found.body,
                region: found.region,
                // Of most objects; where it is not, the region is left as it is.
                object: found.body,
            };
            self.environment.fragments.note(fragment, now);
        }
    }

    /// Looks at the next few regions; returns 0, or for how long to wait.
    pub(crate) fn relayout_step(&self, inner: &mut Guard<'_>, now: u64) -> Result<u64, StoreError> {
        let shown = inner.relayouts.job.and_then(|id| inner.jobs.get(&id));
        match shown.map(|active| active.job.state) {
            Some(JobState::Paused) => return Ok(u64::MAX),
            Some(state) if state.is_over() => {
                inner.relayouts.clear();
                return Ok(u64::MAX);
            }
            _ => {}
        }
        let tier = inner.relayouts.tier;
        let early = inner
            .relayouts
            .regions
            .front()
            .is_some_and(|next| next.early.is_some());
        let urgent = early && self.is_any_urgent(inner);
        let pause = match urgent {
            true => self.pace_of(inner, tier, now),
            false => self.pause_for(inner, tier, now),
        };
        if pause > 0 {
            return Ok(pause);
        }
        let watched = !urgent && inner.courtesy.is_watched(now);
        let regions = if watched {
            STEP_REGIONS_WATCHED
        } else {
            STEP_REGIONS
        };
        let began = self.environment.clock.monotonic_nanoseconds();
        let (mut written, mut failed) = (0, None);
        for _ in 0..regions {
            let Some(resting) = inner.relayouts.regions.front().copied() else {
                break;
            };
            let fragment = resting.fragment;
            if !self.is_enabled() {
                break;
            }
            let most = if watched { WRITE_BYTES_WATCHED } else { WRITE_BYTES };
            let look = self.look_at_region(inner, &resting, most);
            let whole = match look.done {
                Ok(Relaid::Done {
                    tier,
                    written_bytes,
                    dead_bytes,
                    whole,
                }) => {
                    written += written_bytes;
                    inner.relayouts.tier = tier;
                    if !inner.relayouts.begun {
                        inner.relayouts.dead_bytes += dead_bytes;
                    }
                    whole
                }
                Ok(Relaid::Left) if look.full => {
                    failed = Some(FsError::NoSpace);
                    break;
                }
                Ok(Relaid::Left) if !inner.relayouts.begun && resting.early.is_some() => {
                    let (since, looked) = (resting.early.unwrap_or(now), !look.if_short);
                    self.environment.fragments.put_back(fragment, since, looked);
                    true
                }
                Ok(Relaid::Left) if !look.later => true,
                Ok(Relaid::Left | Relaid::Busy) => {
                    // It rests anew.
                    self.environment.fragments.note(fragment, now);
                    true
                }
                Err(FsError::Stale) => true,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            };
            inner.relayouts.begun = !whole;
            if whole {
                inner.relayouts.regions.pop_front();
            }
        }
        let (foreground, ended) = (
            &self.environment.foreground,
            self.environment.clock.monotonic_nanoseconds(),
        );
        inner.courtesy.worked(foreground, began, ended);
        let tier = inner.relayouts.tier;
        let limit = inner
            .policies
            .get(usize::from(tier))
            .map_or(0, |policy| policy.rate_limit);
        inner.paces.entry(tier).or_default().take(limit, written);
        if let Some(error) = &failed {
            // What there was no room for is looked at again when there may be some.
            let looked = *error != FsError::NoSpace;
            for resting in inner.relayouts.regions.drain(..) {
                let since = resting.early.unwrap_or(now);
                self.environment
                    .fragments
                    .put_back(resting.fragment, since, looked);
            }
            inner.relayouts.begun = false;
        }
        let failed = failed.filter(|error| *error != FsError::NoSpace);
        self.count_relayout(inner, written, failed, now)?;
        Ok(0)
    }

    fn look_at_region(&self, inner: &mut Guard<'_>, resting: &Resting, most: u64) -> Look {
        let resting_from = self.resting_from(inner);
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        let (policies, begun) = (inner.policies.clone(), inner.relayouts.begun);
        let generation = inner.generation;
        let tiers = self.environment.store.space().tiers;
        let (later, full, if_short) = (Cell::new(false), Cell::new(false), Cell::new(false));
        let last_part = match resting.early {
            Some(_) => LAST_PART_EARLY,
            None => LAST_PART,
        };
        let wanted = |layout: &Layout| {
            let at = usize::from(layout.tier);
            let may_be_short = at + 1 < tiers.len();
            let worth = match (begun, resting.early) {
                (true, _) => layout.is_gain(),
                (false, None) => layout.is_wasteful() || layout.is_scattered(),
                (false, Some(_)) => layout.is_wasteful() && is_short(&tiers, &policies, at),
            };
            let same_tiers = self.tiers_generation.load(Ordering::SeqCst) == generation;
            let may = same_tiers && layout.tier < resting_from && in_window(&policies, layout.tier, minute);
            // Of a tier that others are to overflow from, the last part is for what is written there.
            let tight = |tier: &TierUsage| tier.used_bytes > tier.size_bytes - tier.size_bytes / last_part;
            let no_room = may_be_short && tiers.get(at).is_some_and(tight);
            if_short.set(if_short.get() || may_be_short && layout.is_wasteful());
            later.set(later.get() || worth && !may);
            full.set(full.get() || worth && may && no_room);
            worth && may && !no_room
        };
        let done = MutexGuard::unlocked(inner, || {
            let _disturbed = self.environment.foreground.disturb();
            self.datasets.relayout(&resting.fragment, &wanted, most)
        });
        Look {
            done,
            later: later.get(),
            full: full.get(),
            if_short: if_short.get(),
        }
    }

    fn count_relayout(
        &self,
        inner: &mut Inner,
        written: u64,
        failed: Option<FsError>,
        now: u64,
    ) -> Result<(), StoreError> {
        let left = inner.relayouts.regions.len() as u64;
        let tier = inner.relayouts.tier;
        if inner.relayouts.job.is_none() && (written > 0 || failed.is_some()) {
            let job = self.new_job(JobKind::Relayout, String::new(), 0, tier, tier);
            inner.relayouts.job = Some(self.add(inner, job, None)?);
        }
        let name = tier_name(inner, tier).to_owned();
        let dead_bytes = inner.relayouts.dead_bytes;
        if let Some(id) = inner.relayouts.job
            && let Some(active) = inner.jobs.get_mut(&id)
        {
            active.job.done_bytes += written;
            active.count(written, now);
            active.job.total_bytes = active.job.done_bytes + left * REGION_BYTES;
            if !active.job.state.is_over() {
                active.job.reason = format!(
                    "laying out in order on tier '{name}' what was overwritten in part; {dead_bytes} dead bytes come back"
                );
                match failed {
                    Some(error) => active.job.fail(error.to_string()),
                    None if left == 0 => active.job.finish(),
                    None => {}
                }
            }
            if active.job.state.is_over() {
                self.keep(inner, id)?;
                self.forget_ended(inner)?;
            }
        }
        if left == 0 {
            inner.relayouts.clear();
        }
        Ok(())
    }
}

/// Whether content of this tier would have to sink for what should rise to it: as much as is exchanged at once.
fn is_short(tiers: &[TierUsage], policies: &[TierPolicy], tier: usize) -> bool {
    let usage = tiers.get(tier).filter(|_| tier + 1 < tiers.len());
    usage.is_some_and(|usage| !may_rise(usage, policies.get(tier), usage.size_bytes / EXCHANGED_PART))
}
