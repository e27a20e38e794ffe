//! `Relayouts`: which regions are looked at next to be laid out anew, and when.
//!
//! Invariants: a region is looked at only because a commit or a move to another tier noticed it, never by a look through the pool;
//! it is put in order only after no commit has changed it for [`REST`], so that what is being overwritten at random is left
//! alone; a round shows as a job only when it found something, and rounds that follow one another are one job.
//!
//! On a tier above another one that is filled to near its low-water mark, that is too long: dead blocks keep hot content below,
//! and what is being overwritten makes more of them than the tier can hold; and who waits until it is full has no room to
//! write in. There regions are looked at *early*, as soon as a commit left them and each once until the next commit, and what
//! is left of their chunks is cut so small that nothing dead is left behind (`Cut::Survivors`); they are put in order once they
//! rest. That goes before what rests, and before anything sinks (`batch.rs`). As long as looks win nothing they become more
//! and more rare.
//!
//! What somebody reads in order, over and over perhaps, is put in order *for readers*, as soon as commits have left it alone for
//! [`REST_FOR_READERS`]: each request to the device that this saves him he pays for now, not in five minutes. It goes before what
//! rests, and rests beside users no longer than it worked.

use std::collections::VecDeque;

use terrace_dataset::{Fragment, Fragments};
use terrace_store::{StoreError, TierUsage};

use crate::{
    jobs::JobState,
    mover::{Inner, Mover, SECOND},
    tiers::{TierPolicy, filled_bytes},
};

/// How long no commit has changed a region before it is put in order.
pub(crate) const REST: u64 = 300 * SECOND;
/// The same before it is put in order for readers.
const REST_FOR_READERS: u64 = SECOND;
/// Regions of a round, and of an early one: the sooner are those looked at that changed meanwhile.
const ROUND_REGIONS: usize = 1024;
const EARLY_REGIONS: usize = 128;
/// Regions for readers that wait for their turn at most.
const READERS_REGIONS: usize = 256;
/// Of those in one step, at most; how long a step is long, and short, nanoseconds; and how many times as long as one of a single
/// region that was long there is no haste.
const HASTE_REGIONS: usize = 8;
const HASTE_LONG: u64 = 100_000_000;
const HASTE_SHORT: u64 = 40_000_000;
const HASTE_RESTS: u64 = 20;
/// How far below its low-water mark a tier is tight, as a part of it.
const TIGHT_BELOW: f64 = 0.25;
/// Between two early rounds: while they bring something back, or there are none to be looked at, and at most.
const EARLY_INTERVAL: u64 = SECOND;
const EARLY_INTERVAL_MAX: u64 = 16 * SECOND;
/// How long what would sink waits for early rounds that bring something back, one after the other.
const SINKING_WAITS: u64 = 30 * SECOND;

/// Why a region is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Because {
    /// It has rested.
    Rests,
    /// Its tier is tight.
    Early,
    /// It is read in order.
    Read,
}

/// A region of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resting {
    pub(crate) fragment: Fragment,
    pub(crate) because: Because,
    /// Since when no commit has changed it, nanoseconds, if it has not rested long.
    pub(crate) since: Option<u64>,
    /// It was written in part.
    pub(crate) begun: bool,
}

/// How much is done at once for readers beside all users: steps are as short as users hardly notice, and where the least of them
/// is long (a disk that seeks, beside commits of those who write) there is no haste for a while.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadersHaste {
    regions: usize,
    not_before: u64,
}

impl Default for ReadersHaste {
    fn default() -> Self {
        Self {
            regions: 1,
            not_before: 0,
        }
    }
}

impl ReadersHaste {
    /// Whether there is haste now.
    pub(crate) fn may(&self, now: u64) -> bool {
        now >= self.not_before
    }

    /// Regions of the next step.
    pub(crate) fn regions(&self) -> usize {
        self.regions
    }

    /// A step took so long, and ended now.
    pub(crate) fn worked(&mut self, took: u64, now: u64) {
        if took > HASTE_LONG {
            if self.regions == 1 {
                self.not_before = now + took * HASTE_RESTS;
            }
            self.regions = (self.regions / 2).max(1);
        } else if took < HASTE_SHORT {
            self.regions = (self.regions * 2).min(HASTE_REGIONS);
        }
    }
}

/// The regions of this round.
pub(crate) struct Relayouts {
    pub(crate) regions: VecDeque<Resting>,
    /// The job that shows the work of this round, once there is some, and of those before that it followed.
    pub(crate) job: Option<u64>,
    /// How many were given up or are over: who let go of the lock sees by it whether its round still runs.
    pub(crate) ended: u64,
    /// The tier that was written last.
    pub(crate) tier: u8,
    pub(crate) dead_bytes: u64,
    pub(crate) haste: ReadersHaste,
    /// This early round brought something back.
    pub(crate) worked: bool,
    /// Since when early rounds do, one after the other.
    working: Option<u64>,
    /// The last look for early ones, and how long after it the next one is due.
    looked: Option<u64>,
    interval: u64,
}

impl Default for Relayouts {
    fn default() -> Self {
        Self {
            regions: VecDeque::new(),
            job: None,
            ended: 0,
            tier: 0,
            dead_bytes: 0,
            haste: ReadersHaste::default(),
            worked: false,
            working: None,
            looked: None,
            interval: EARLY_INTERVAL,
        }
    }
}

impl Relayouts {
    pub(crate) fn is_idle(&self) -> bool {
        self.regions.is_empty()
    }

    pub(crate) fn job(&self) -> Option<u64> {
        self.job
    }

    /// Whether early regions are to be looked at.
    pub(crate) fn is_early(&self) -> bool {
        self.has(Because::Early)
    }

    fn has(&self, because: Because) -> bool {
        self.regions.iter().any(|next| next.because == because)
    }

    /// Why the regions that come next are looked at.
    pub(crate) fn next_because(&self) -> Option<Because> {
        self.regions.front().map(|next| next.because)
    }

    /// The round is over, or given up.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            ended: self.ended + 1,
            looked: self.looked,
            interval: self.interval,
            haste: self.haste,
            ..Self::default()
        };
    }

    /// Whether early rounds bring something back, or did a moment ago, and not for too long already.
    fn is_bringing_back(&self, now: u64) -> bool {
        let too_long = self.working.is_some_and(|since| now >= since + SINKING_WAITS);
        (self.is_early() || self.worked) && !too_long
    }

    /// Whether an early round is due now.
    fn is_early_due(&mut self, urgent: bool, now: u64) -> bool {
        if urgent || self.worked {
            self.interval = EARLY_INTERVAL;
        }
        let due = self.looked.is_none_or(|looked| now >= looked + self.interval);
        if due {
            self.working = self.working.or(Some(now)).filter(|_| self.worked);
            self.looked = Some(now);
            self.worked = false;
        }
        due
    }

    /// Some are looked at, which costs something: if that wins nothing, the next look is later.
    fn look_later(&mut self) {
        self.interval = (self.interval * 2).min(EARLY_INTERVAL_MAX);
    }

    /// There was no room for what would be won.
    pub(crate) fn look_soon(&mut self) {
        self.interval = EARLY_INTERVAL;
    }
}

impl Mover {
    /// Takes the regions that have come to rest, and before them those that cannot wait so long, unless the last round still
    /// runs.
    pub(crate) fn find_fragments(&self, inner: &mut Inner, now: u64) -> Result<(), StoreError> {
        self.find_early(inner, now)?;
        if !inner.relayouts.is_idle() || inner.relayouts.job.is_some() {
            return Ok(());
        }
        if let Some(before) = now.checked_sub(REST) {
            let found = self.environment.fragments.take(before, ROUND_REGIONS);
            let found = found.into_iter().map(|fragment| Resting {
                fragment,
                because: Because::Rests,
                since: None,
                begun: false,
            });
            inner.relayouts.regions = found.collect();
        }
        Ok(())
    }

    /// The early ones alone, where a tier is tight.
    pub(crate) fn find_early(&self, inner: &mut Inner, now: u64) -> Result<(), StoreError> {
        if self.relayout_state(inner) == Some(JobState::Paused) {
            return Ok(());
        }
        self.find_read(inner, now);
        if inner.relayouts.is_early() {
            return Ok(());
        }
        let fragments = &self.environment.fragments;
        let urgent = self.is_any_urgent(inner);
        let tight = self.is_any_tight(inner);
        let brought_back = inner.relayouts.worked;
        if tight && inner.relayouts.is_early_due(urgent, now) {
            if brought_back {
                // There is room again for what landed below meanwhile.
                self.find_hot(inner);
                self.grant_return(inner);
            }
            let early: Vec<_> = fragments.take_early(now, 0, EARLY_REGIONS);
            if !early.is_empty() {
                inner.relayouts.look_later();
                let regions = &mut inner.relayouts.regions;
                put_back(regions, fragments, now, |because| because == Because::Rests);
            }
            inner
                .relayouts
                .regions
                .extend(early.into_iter().map(|(fragment, since)| Resting {
                    fragment,
                    because: Because::Early,
                    since: Some(since),
                    begun: false,
                }));
        }
        // A job whose rounds followed one another has none any more.
        if inner.relayouts.is_idle() && (!tight || !inner.relayouts.worked) {
            self.end_relayouts(inner, None)?;
        }
        Ok(())
    }

    /// What is read in order comes before what rests, and before early ones unless users write: room is short then.
    fn find_read(&self, inner: &mut Inner, now: u64) {
        let fragments = &self.environment.fragments;
        let before = now.checked_sub(REST_FOR_READERS);
        let Some(before) = before.filter(|_| self.is_enabled()) else {
            return;
        };
        let tight = self.is_any_tight(inner);
        if inner.relayouts.has(Because::Read) || !fragments.is_any_read(before, tight) {
            return;
        }
        // Those may be read in order as well.
        put_back(&mut inner.relayouts.regions, fragments, now, |_| true);
        let read = fragments.take_read(before, READERS_REGIONS);
        let regions = &mut inner.relayouts.regions;
        for (fragment, since) in read.into_iter().rev() {
            regions.push_front(Resting {
                fragment,
                because: Because::Read,
                since: Some(since),
                begun: false,
            });
        }
    }

    /// Whether dead blocks are being brought back where room is short, or were a moment ago: what would sink for them can
    /// wait, but not for ever.
    pub(crate) fn is_bringing_back(&self, inner: &Inner, now: u64) -> bool {
        inner.relayouts.is_bringing_back(now) && self.relayout_state(inner) != Some(JobState::Paused)
    }

    pub(crate) fn relayout_state(&self, inner: &Inner) -> Option<JobState> {
        let job = inner.relayouts.job.and_then(|id| inner.jobs.get(&id));
        job.map(|active| active.job.state)
    }

    /// Whether any tier is tight.
    pub(crate) fn is_any_tight(&self, inner: &Inner) -> bool {
        let tiers = self.environment.store.space().tiers;
        (0..tiers.len()).any(|tier| is_tight(&tiers, &inner.policies, tier))
    }
}

/// Gives back what was not begun of these kinds: it goes on resting.
fn put_back(
    regions: &mut VecDeque<Resting>,
    fragments: &Fragments,
    now: u64,
    kinds: impl Fn(Because) -> bool,
) {
    regions.retain(|resting| {
        let stays = resting.begun || !kinds(resting.because);
        if !stays {
            let since = resting.since.unwrap_or(now.saturating_sub(REST));
            fragments.put_back(resting.fragment, since, false);
        }
        stays
    });
}

/// Whether dead blocks of this tier keep content below, or will: there is a slower one, and it is filled to near its low-water mark.
pub(crate) fn is_tight(tiers: &[TierUsage], policies: &[TierPolicy], tier: usize) -> bool {
    let usage = tiers.get(tier).filter(|_| tier + 1 < tiers.len());
    let low = policies.get(tier).map_or(1.0, |policy| policy.low_water);
    usage.is_some_and(|usage| filled_bytes(usage) as f64 > (low - TIGHT_BELOW) * usage.size_bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_nothing_is_found_the_more_rarely_it_is_looked_for() {
        let mut relayouts = Relayouts::default();
        let looks = |relayouts: &mut Relayouts, from: u64, to: u64| {
            let mut due = Vec::new();
            for second in from..to {
                if relayouts.is_early_due(false, second * SECOND) {
                    relayouts.look_later();
                    due.push(second);
                }
            }
            due
        };
        assert_eq!(looks(&mut relayouts, 100, 160), [100, 102, 106, 114, 130, 146]);
        // A round that was given up brought nothing back.
        relayouts.worked = true;
        relayouts.clear();
        assert_eq!(looks(&mut relayouts, 160, 170), [162]);
        relayouts.worked = true;
        assert_eq!(looks(&mut relayouts, 170, 180), [170, 172, 176]);
        assert!(relayouts.is_early_due(true, 180 * SECOND));
        assert!(!relayouts.is_early_due(true, 180 * SECOND));
        assert!(relayouts.is_early_due(true, 181 * SECOND));
        relayouts.look_later();
        relayouts.look_soon();
        assert!(relayouts.is_early_due(false, 182 * SECOND), "there was no room");
        // Where there is none to be looked at it costs nothing.
        let mut idle = Relayouts::default();
        assert!((0..9).all(|second| idle.is_early_due(false, second * SECOND)));
    }

    #[test]
    fn where_a_step_for_readers_takes_long_there_is_no_haste_for_a_while() {
        let mut haste = ReadersHaste::default();
        let step = |haste: &mut ReadersHaste, milliseconds: u64| {
            haste.worked(milliseconds * 1_000_000, SECOND);
            haste.regions()
        };
        assert_eq!(
            [1, 20, 39, 39, 39].map(|took| step(&mut haste, took)),
            [2, 4, 8, 8, 8]
        );
        assert_eq!(
            [60, 150, 60, 150, 150].map(|took| step(&mut haste, took)),
            [8, 4, 4, 2, 1]
        );
        assert!(haste.may(SECOND));
        assert_eq!(step(&mut haste, 500), 1);
        assert!(!haste.may(10 * SECOND) && haste.may(11 * SECOND));
    }

    #[test]
    fn what_would_sink_does_not_wait_for_ever() {
        let mut relayouts = Relayouts::default();
        assert!(!relayouts.is_bringing_back(0));
        for second in 100..130 {
            relayouts.worked = true;
            assert!(relayouts.is_bringing_back(second * SECOND), "{second}");
            assert!(relayouts.is_early_due(false, second * SECOND));
        }
        relayouts.worked = true;
        assert!(!relayouts.is_bringing_back(130 * SECOND));
        // A round that brings nothing back begins anew.
        assert!(relayouts.is_early_due(false, 130 * SECOND) && relayouts.is_early_due(false, 140 * SECOND));
        relayouts.worked = true;
        assert!(relayouts.is_bringing_back(141 * SECOND));
    }
}
