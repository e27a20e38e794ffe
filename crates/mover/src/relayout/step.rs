//! A step of a relayout: the next few regions of a round ([`Relayouts`](crate::relayout::queue::Relayouts)) are laid out anew. What is worth it says
//! `terrace_dataset::Layout`, how it is done `relayout/step.rs`.
//!
//! Invariants: content stays on its tier, and a tier that rests is left alone; a pool or a tier without room ends the round, and what was
//! not looked at is looked at again; users are given way, but not by early regions while they write: what gives back a third of what it writes
//! costs less than a compaction, and what sinks for it is read from below; nor, on fast devices, for longer than it worked, by what they read in order.

use std::{cell::RefCell, collections::BTreeMap, sync::atomic::Ordering};

use terrace_dataset::{Cut, Fragment, FsError, Layout, REGION_BYTES, Relaid, WHOLE_PART};
use terrace_store::{StoreError, tier_bit};
use terrace_sync::MutexGuard;

use super::queue::{Because, Resting, is_tight};
use crate::{
    extent::Found,
    jobs::{JobKind, JobState},
    mover::{Guard, Inner, Mover, in_window, piece_bytes, tier_name},
    tiers::minute_of_day,
};

/// Regions that a step looks at: alone, beside users who are given way, and of early ones, whose records change in one commit.
const STEP_REGIONS: usize = 4;
const STEP_REGIONS_WATCHED: usize = 1;
const STEP_REGIONS_EARLY: usize = 16;
/// Content of a region that is written at once: alone, and beside users, who wait for the reads of it.
const WRITE_BYTES: u64 = REGION_BYTES;
const WRITE_BYTES_WATCHED: u64 = 128 << 10;
/// Of a tier with a slower one below, one part in this many is left free, as by all that the mover brings; and by what
/// gives more room back than it takes.
const LAST_PART: u64 = 16;
const LAST_PART_EARLY: u64 = 32;

/// Of the pool, the part of what is free that a step takes at most.
const FREE_PART: u64 = 32;

/// What a look at a region showed.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    /// It is worth it, but not now.
    later: bool,
    /// What is free of its tier is left to those who write.
    full: bool,
    /// It is worth it once its tier is tight.
    if_tight: bool,
}

impl Mover {
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
            self.environment.fragments.note(fragment, WHOLE_PART, now);
        }
    }

    /// Lays the next few regions out; returns 0, or for how long to wait.
    pub(crate) fn relayout_step(&self, inner: &mut Guard<'_>, now: u64) -> Result<u64, StoreError> {
        match self.relayout_state(inner) {
            Some(JobState::Paused) => return Ok(u64::MAX),
            Some(state) if state.is_over() => {
                inner.relayouts.clear();
                return Ok(u64::MAX);
            }
            _ => {}
        }
        let because = inner.relayouts.next_because().unwrap_or(Because::Rests);
        let (early, tier) = (because == Because::Early, inner.relayouts.tier);
        let hurries = early && self.is_written_to(tier);
        // Where many pieces are read in no time, who reads in order gains more than anybody loses.
        let for_readers = because == Because::Read && inner.relayouts.haste.may(now);
        let pause = match hurries {
            true => inner.rates.wait(tier_bit(tier), now),
            false if for_readers => match self.rest_in_haste(inner, now) {
                0 => inner.rates.wait(tier_bit(tier), now),
                rest => rest,
            },
            // What it brings back is room for what they read.
            false => {
                let haste = early && inner.exchange.is_wanting();
                self.pause_in_haste(inner, haste, tier_bit(tier), now)
            }
        };
        if pause > 0 {
            return Ok(pause);
        }
        let (regions, most) = match !hurries && inner.courtesy.is_watched(now) {
            // In parts it would take longer: who reads it waits for all of its pieces.
            _ if for_readers => (inner.relayouts.haste.regions(), WRITE_BYTES),
            true => (STEP_REGIONS_WATCHED, WRITE_BYTES_WATCHED),
            false if early => (STEP_REGIONS_EARLY, WRITE_BYTES),
            false => (STEP_REGIONS, WRITE_BYTES),
        };
        let (regions, most) = match piece_bytes(inner, tier) {
            most_now if most_now < regions as u64 * most => {
                let most = most.min(most_now.max(WRITE_BYTES_WATCHED));
                ((most_now / most).max(1) as usize, most)
            }
            _ => (regions, most),
        };
        // Room is taken for all of them before any gives some back: users are to find enough beside that.
        let free = self.environment.store.space().free_bytes();
        let regions = regions.min((free / FREE_PART / REGION_BYTES).max(1) as usize);
        let alike = inner.relayouts.regions.iter();
        let alike = alike.take_while(|next| next.because == because);
        let count = alike.take(regions).count();
        let batch: Vec<Resting> = inner.relayouts.regions.drain(..count).collect();
        let ended_before = inner.relayouts.ended;
        let began = self.environment.clock.monotonic_nanoseconds();
        let looked = self.look_at_regions(inner, &batch, because, most);
        let ended = self.environment.clock.monotonic_nanoseconds();
        inner.courtesy.worked(&self.environment.foreground, began, ended);
        if for_readers {
            inner.relayouts.haste.worked(ended.saturating_sub(began), ended);
        }
        let (written, mut failed) = self.note_results(inner, batch, looked, now);
        if inner.relayouts.ended != ended_before {
            // Somebody gave the round up meanwhile: what is left of this step goes with it.
            inner.relayouts.clear();
            return Ok(0);
        }
        if failed.is_some() {
            for resting in inner.relayouts.regions.drain(..) {
                let since = resting.since.unwrap_or(now);
                self.environment
                    .fragments
                    .put_back(resting.fragment, since, false);
            }
        }
        if failed == Some(FsError::NoSpace) {
            inner.relayouts.look_soon();
            failed = None;
        }
        self.count_relayout(inner, because, written, failed, now)?;
        Ok(0)
    }

    /// Lays these regions out as far as it is worth it.
    fn look_at_regions(
        &self,
        inner: &mut Guard<'_>,
        batch: &[Resting],
        because: Because,
        most: u64,
    ) -> Vec<(Result<Relaid, FsError>, Look)> {
        let resting_from = self.resting_from(inner);
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        let (policies, generation) = (inner.policies.clone(), inner.generation);
        let tiers = self.environment.store.space().tiers;
        let (last_part, cut) = match because {
            Because::Early => (LAST_PART_EARLY, Cut::Survivors),
            Because::Rests | Because::Read => (LAST_PART, Cut::InOrder),
        };
        let begun = |fragment: &Fragment| {
            let mut batch = batch.iter();
            batch.any(|resting| resting.begun && resting.fragment == *fragment)
        };
        let looks = RefCell::new(BTreeMap::<Fragment, Look>::new());
        let taken = RefCell::new(vec![0; tiers.len()]);
        let wanted = |fragment: &Fragment, layout: &Layout| {
            let at = usize::from(layout.tier);
            let worth = match because {
                _ if begun(fragment) => layout.is_gain(),
                Because::Rests => layout.is_wasteful() || layout.is_scattered(),
                Because::Early => layout.is_wasteful() && is_tight(&tiers, &policies, at),
                Because::Read => layout.is_wasteful() || layout.is_slow_in_order(),
            };
            let same_tiers = self.tiers_generation.load(Ordering::SeqCst) == generation;
            let may = (because == Because::Early || self.is_enabled())
                && same_tiers
                && layout.tier < resting_from
                && in_window(&policies, layout.tier, minute);
            let has_slower = at + 1 < tiers.len();
            // Of a tier that others are to overflow from, the last part is for what is written there.
            let mut taken = taken.borrow_mut();
            let no_room = tiers.get(at).filter(|_| has_slower).is_some_and(|tier| {
                tier.used_bytes + taken[at] > tier.size_bytes - tier.size_bytes / last_part
            });
            let mut looks = looks.borrow_mut();
            let look = looks.entry(*fragment).or_default();
            look.if_tight |= has_slower && layout.is_wasteful();
            look.later |= worth && !may;
            look.full |= worth && may && no_room;
            let wanted = worth && may && !no_room;
            if let Some(taken) = taken.get_mut(at).filter(|_| wanted) {
                *taken += layout.stored_after_bytes;
            }
            wanted
        };
        let fragments: Vec<Fragment> = batch.iter().map(|resting| resting.fragment).collect();
        let done = MutexGuard::unlocked(inner, || {
            let _disturbed = self.environment.foreground.disturb();
            self.datasets.relayout(&fragments, cut, &wanted, most)
        });
        let looks = looks.into_inner();
        let look_of = |fragment| looks.get(fragment).copied().unwrap_or_default();
        let looked = done.into_iter().zip(&fragments);
        looked.map(|(done, fragment)| (done, look_of(fragment))).collect()
    }

    /// What becomes of the regions after that: those that were laid out in part come next. Returns the bytes written, and
    /// the first error.
    fn note_results(
        &self,
        inner: &mut Inner,
        batch: Vec<Resting>,
        looked: Vec<(Result<Relaid, FsError>, Look)>,
        now: u64,
    ) -> (u64, Option<FsError>) {
        let fragments = &self.environment.fragments;
        let (mut written, mut failed, mut unfinished) = (0, None, Vec::new());
        for (resting, (done, look)) in batch.into_iter().zip(looked) {
            let fragment = resting.fragment;
            let since = resting.since.unwrap_or(now);
            let (early, read) = (
                resting.because == Because::Early,
                resting.because == Because::Read,
            );
            match done {
                Ok(Relaid::Done {
                    tier,
                    written_bytes,
                    dead_bytes,
                    whole,
                }) => {
                    written += written_bytes;
                    inner.rates.take(&BTreeMap::from([(tier, written_bytes)]));
                    inner.relayouts.tier = tier;
                    inner.relayouts.worked |= early;
                    if !resting.begun {
                        inner.relayouts.dead_bytes += dead_bytes;
                    }
                    match whole {
                        false => unfinished.push(Resting {
                            begun: true,
                            ..resting
                        }),
                        // It is to be put in order once it rests.
                        true if early => fragments.put_back(fragment, since, true),
                        true => {}
                    }
                }
                // Others of this step took the room that there was.
                Ok(Relaid::Left) if look.full && written > 0 => unfinished.push(resting),
                Err(FsError::NoSpace) if written > 0 => unfinished.push(resting),
                Ok(Relaid::Left) if look.full => {
                    fragments.put_back(fragment, since, false);
                    failed = failed.or(Some(FsError::NoSpace));
                }
                Ok(Relaid::Left) if read => fragments.put_back_for_readers(fragment, since, !look.later),
                Ok(Relaid::Busy) if read => fragments.put_back_for_readers(fragment, since, false),
                Ok(Relaid::Left) if early => {
                    let again = look.later || look.if_tight && !resting.begun;
                    fragments.put_back(fragment, since, !again);
                }
                Ok(Relaid::Left) if !look.later => {}
                // A commit was in the way.
                Ok(Relaid::Busy) if early => fragments.put_back(fragment, since, false),
                // It rests anew.
                Ok(Relaid::Left | Relaid::Busy) => fragments.note(fragment, WHOLE_PART, now),
                Err(FsError::Stale) => {}
                Err(error) => {
                    // What there was no room for is looked at again when there may be some.
                    let looked = error != FsError::NoSpace;
                    match read {
                        true => fragments.put_back_for_readers(fragment, since, looked),
                        false => fragments.put_back(fragment, since, looked),
                    }
                    failed = failed.or(Some(error));
                }
            }
        }
        for resting in unfinished.into_iter().rev() {
            inner.relayouts.regions.push_front(resting);
        }
        (written, failed)
    }

    fn count_relayout(
        &self,
        inner: &mut Inner,
        because: Because,
        written: u64,
        failed: Option<FsError>,
        now: u64,
    ) -> Result<(), StoreError> {
        let left = inner.relayouts.regions.len() as u64;
        let tier = inner.relayouts.tier;
        let what = match because {
            Because::Early => "writing anew what is left",
            Because::Rests => "laying out in order",
            Because::Read => "laying out in order, for those who read it so,",
        };
        let name = tier_name(inner, tier).to_owned();
        let dead_bytes = inner.relayouts.dead_bytes;
        let reason = format!(
            "{what} on tier '{name}' of what was overwritten in part; {dead_bytes} dead bytes come back"
        );
        if inner.relayouts.job.is_none() && (written > 0 || failed.is_some()) {
            let job = self.new_job(JobKind::Relayout, reason.clone(), 0, tier, tier);
            inner.relayouts.job = Some(self.add(inner, job, None)?);
        }
        let job = inner.relayouts.job.and_then(|id| inner.jobs.get_mut(&id));
        if let Some(active) = job {
            active.job.done_bytes += written;
            active.count(written, now);
            active.job.total_bytes = active.job.done_bytes + left * REGION_BYTES;
            if !active.job.state.is_over() {
                active.job.reason = reason;
            }
        }
        // The next round, early or for readers, may follow at once, and goes on with the job: who pauses it holds all of them.
        match left == 0 && because == Because::Rests || failed.is_some() {
            true => self.end_relayouts(inner, failed),
            false => Ok(()),
        }
    }

    /// Ends the round and its job.
    pub(crate) fn end_relayouts(&self, inner: &mut Inner, failed: Option<FsError>) -> Result<(), StoreError> {
        let job = inner.relayouts.job;
        inner.relayouts.clear();
        if let Some(id) = job
            && let Some(active) = inner.jobs.get_mut(&id)
        {
            match failed {
                _ if active.job.state.is_over() => {}
                Some(error) => active.job.fail(error.to_string()),
                None => active.job.finish(),
            }
            self.keep(inner, id)?;
            self.forget_ended(inner)?;
        }
        Ok(())
    }
}
