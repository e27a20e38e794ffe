//! Making way: room on a tier for what somebody moves there by hand, or has pinned to it.
//!
//! Invariants: what is moved by hand fills a tier up to its high-water mark; beyond it only what is colder makes way, a part of the tier
//! at a time: what is read too rarely to come up again by itself, or clearly less than the hottest there is. While something
//! that is read often waits for room on the tier, nothing is moved there by hand above the mark up to which that comes up.
//! What was moved by hand does not make way for the rest of the same move. Where nothing else is colder, the move
//! ends, and says how much of it found room. Where nothing can make way (no slower tier has room, or it is not the time for that), it
//! goes on as long as there is any room at all.
//! What is pinned fills a tier as far as it goes. Where the store refuses more, whatever is not pinned there makes way, the coldest
//! first, however hot; what that leaves dead may have to be brought back first. Where nothing makes way any more, the pin is tried
//! again later.

use terrace_device::format_size;
use terrace_store::{CHUNK_BYTES_MAX, StoreError, TierUsage};

use super::{demotion_passes::clearly_colder, swap::EXCHANGED_PART, swap_room::Room};
use crate::{
    jobs::{Job, JobKind, JobState},
    mover::{Active, Inner, Mover, SECOND, in_windows, tier_name},
    tiers::{filled_bytes, may_rise, minute_of_day, room_below},
};

/// Whether a move by hand may go on.
pub(crate) enum Way {
    /// It may, and move so many bytes at once at most, about.
    Free(u64),
    /// Not now, and for what it waits.
    Waits(&'static str),
    /// What lies there is hotter.
    Full,
}

/// Of a tier, the parts that are moved down at once for what is pinned: the least, so that whole segments become free, and the most.
const PINNED_PARTS: (u64, u64) = (16, 8);
/// How long nothing is moved down for pins once there was nothing more.
const VAIN: u64 = 60 * SECOND;

/// For what a pin waits.
pub(crate) const AWAITED: &str = "waiting until what is not pinned has made way";

/// How it stands with room on a tier for what is pinned to it.
#[derive(Default)]
pub(crate) struct WayForPins {
    /// The demotion that makes some.
    job: Option<u64>,
    /// The store has refused more since.
    refused: bool,
    /// Something has made way: where the store refuses more, dead blocks have to be brought back first.
    made: bool,
    vain_until: u64,
}

impl Mover {
    /// Whether there is room on its tier for what this moves by hand; begins to make some.
    pub(crate) fn way_of(
        &self,
        inner: &mut Inner,
        job: &Job,
        for_pin: bool,
        now: u64,
    ) -> Result<Way, StoreError> {
        let tiers = self.usage(inner);
        let at = usize::from(job.target);
        let (Some(tier), Some(policy)) = (tiers.get(at), inner.policies.get(at)) else {
            return Ok(Way::Free(u64::MAX));
        };
        let Some(below) = self.makes_way_to(inner, &tiers, job.target, now) else {
            return Ok(Way::Free(u64::MAX));
        };
        if for_pin {
            return self.way_of_pinned(inner, job, tier, below);
        }
        let demotion = inner.demotion_of(job.target);
        if let Some(awaited_bytes) = self.awaited_bytes(inner, job.target, now)
            && !may_rise(tier, Some(policy), awaited_bytes)
        {
            return Ok(Way::Waits("waiting until what is read more often has come up"));
        }
        // Above the mark it would be what sinks next.
        let most =
            ((policy.high_water * tier.size_bytes as f64) as u64).saturating_sub(CHUNK_BYTES_MAX as u64);
        let filled = filled_bytes(tier);
        if filled < most {
            inner.made_way.remove(&job.target);
            return Ok(Way::Free(most - filled));
        }
        if demotion.is_some() {
            return Ok(Way::Waits("waiting until what is colder has made way"));
        }
        // One that nobody remembers any more was long ago: it says nothing of what lies there now.
        let before = inner.made_way.remove(&job.target);
        let before = before.and_then(|id| inner.jobs.get(&id));
        if before.is_some_and(|before| before.moved == 0) {
            return Ok(Way::Full);
        }
        let wanted = job.total_bytes.saturating_sub(job.done_bytes);
        let part = (tier.size_bytes / EXCHANGED_PART).max(1);
        let total_bytes = (filled - most)
            .saturating_add(wanted.min(part))
            .min(tier.live_bytes);
        let reason = format!(
            "tier '{}' is {} % full; what was asked for by hand has no room: moving what is colder down to '{}'",
            tier.name,
            filled * 100 / tier.size_bytes.max(1),
            tier_name(inner, below)
        );
        let mut demotion = self.new_job(JobKind::Demote, reason, total_bytes, job.target, below);
        self.find_hottest(inner);
        demotion.room = Some(Room {
            colder: self.warmth_that_makes_way(inner, below),
            gives_way: None,
        });
        let id = self.add(inner, demotion, None)?;
        inner.made_way.insert(job.target, id);
        Ok(Way::Waits("waiting until what is colder has made way"))
    }

    /// The tier that content of this one may make way to now.
    fn makes_way_to(&self, inner: &Inner, tiers: &[TierUsage], target: u8, now: u64) -> Option<u8> {
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        let resting = self.resting_from(inner);
        let opens = |below: &u8| *below < resting && in_windows(&inner.policies, target, *below, minute);
        let below = room_below(tiers, &inner.policies, target).filter(opens)?;
        let left_alone = inner.left_alone.get(&target).is_some_and(|until| now < *until);
        // Somebody may have paused it.
        let paused = inner
            .demotion_of(target)
            .is_some_and(|state| state != JobState::Running);
        (!left_alone && !paused).then_some(below)
    }

    /// The same as `way_of` for what is pinned: nothing makes way before it is known that something has to.
    fn way_of_pinned(
        &self,
        inner: &mut Inner,
        job: &Job,
        tier: &TierUsage,
        below: u8,
    ) -> Result<Way, StoreError> {
        let now = self.environment.clock.monotonic_nanoseconds();
        let demoted = inner.demotion_of(job.target).is_some();
        let way = inner.ways_for_pins.entry(job.target).or_default();
        if !way.refused {
            return Ok(Way::Free(u64::MAX));
        }
        if demoted {
            return Ok(Way::Waits(AWAITED));
        }
        let before = way.job.take().and_then(|id| inner.jobs.get(&id));
        if let Some(before) = before {
            *way = match before.moved {
                0 => WayForPins {
                    vain_until: now + VAIN,
                    ..WayForPins::default()
                },
                _ => WayForPins {
                    made: true,
                    ..WayForPins::default()
                },
            };
            return Ok(Way::Free(u64::MAX));
        }
        let (least, most) = PINNED_PARTS;
        let wanted = job.total_bytes.saturating_sub(job.done_bytes);
        let wanted = wanted.clamp(tier.size_bytes / least, tier.size_bytes / most);
        let reason = format!(
            "tier '{}' is {} % full; what is pinned to it has no room: moving what is not, the coldest first, down to '{}'",
            tier.name,
            filled_bytes(tier) * 100 / tier.size_bytes.max(1),
            tier_name(inner, below)
        );
        let total_bytes = wanted.min(tier.live_bytes);
        let mut demotion = self.new_job(JobKind::Demote, reason, total_bytes, job.target, below);
        demotion.room = Some(Room {
            colder: f32::INFINITY,
            gives_way: None,
        });
        let id = self.add(inner, demotion, None)?;
        inner.ways_for_pins.entry(job.target).or_default().job = Some(id);
        Ok(Way::Waits(AWAITED))
    }

    /// The store has refused more on a tier for what is pinned to it: whether something there is to make way now.
    pub(crate) fn asks_for_way(&self, inner: &mut Inner, target: u8, now: u64) -> bool {
        let tiers = self.usage(inner);
        if self.makes_way_to(inner, &tiers, target, now).is_none() {
            return false;
        }
        let way = inner.ways_for_pins.entry(target).or_default();
        way.refused = now >= way.vain_until;
        way.refused
    }

    /// Whether something has made way on a tier for what is pinned to it, and what that leaves dead may still be brought back.
    pub(crate) fn waits_for_room_of_pins(&self, inner: &Inner, target: u8) -> bool {
        inner.ways_for_pins.get(&target).is_some_and(|way| way.made) && self.may_win_room(target)
    }

    /// Why a move by hand ended before all of it was moved.
    pub(crate) fn describe_hotter(&self, inner: &Inner, job: &Job) -> String {
        let target = tier_name(inner, job.target);
        let left_bytes = job.total_bytes.saturating_sub(job.done_bytes);
        format!(
            "{} of {} were moved; for more there is no room on tier '{target}' but that of what was moved there now, or is \
             read more often; {} ({left_bytes} bytes) stay where they were; 'terrace demote' of something that lies there makes room for them, or another device \
             there ('terrace pool add')",
            format_size(job.done_bytes),
            format_size(job.total_bytes),
            format_size(left_bytes),
        )
    }

    /// Up to how warm a region makes way for a move by hand, if it is to go to this tier: warmer ones would come up again.
    fn warmth_that_makes_way(&self, inner: &Inner, below: u8) -> f32 {
        let policy = inner.policies.get(usize::from(below));
        let rises = policy.map_or(0, |policy| policy.promote_after).saturating_sub(1);
        clearly_colder(inner.hottest).max(rises as f32)
    }

    /// What is to come up to this tier in haste, as far as it is known, bytes; `None`: nothing waits.
    fn awaited_bytes(&self, inner: &Inner, target: u8, now: u64) -> Option<u64> {
        let goes_on = |job: Option<u64>| {
            let active = job.and_then(|id| inner.jobs.get(&id));
            active.is_none_or(|active| active.job.state == JobState::Running)
        };
        let chunks = match goes_on(inner.hot_chunks.job()) {
            true => inner.hot_chunks.bytes_for(target),
            false => 0,
        };
        let regions = goes_on(inner.candidates.job()) && self.promotes_in_haste(inner);
        let waits = chunks > 0 || target == 0 && (regions || inner.exchange.is_at_work(now));
        waits.then(|| chunks.saturating_add(inner.exchange.kept_bytes(now)))
    }

    /// Whether somebody moves something to this tier by hand at the moment.
    fn moves_to(inner: &Inner, tier: u8) -> impl Iterator<Item = &Active> {
        let jobs = inner.jobs.values();
        jobs.filter(move |active| {
            let job = &active.job;
            let by_hand = job.kind == JobKind::Move && !job.for_pin && active.retry.is_none();
            by_hand && job.state == JobState::Running && job.target == tier
        })
    }

    /// Whether a demotion is not to move this, since somebody moves it there by hand: unless that makes room for what is hotter.
    pub(crate) fn is_brought(&self, inner: &Inner, demotion: &Job, dataset: u32, body: u64) -> bool {
        let for_hotter = demotion.room.is_some() && !self.makes_way_by_hand(inner, demotion.source);
        let mut moves = Self::moves_to(inner, demotion.source);
        !for_hotter
            && moves.any(|active| {
                let job = &active.job;
                let walked = active.subtree.as_ref();
                let beneath = walked.is_some_and(|all| all.holds(dataset, body));
                job.dataset == dataset && (job.body == 0 || job.body == body || beneath)
            })
    }

    /// Whether a demotion by the marks would move what is too hot to make way for what somebody moves there by hand.
    pub(crate) fn is_too_hot_beside_moves(&self, inner: &Inner, demotion: &Job, warmth: f32) -> bool {
        demotion.room.is_none()
            && warmth > self.warmth_that_makes_way(inner, demotion.target)
            && Self::moves_to(inner, demotion.source).next().is_some()
    }

    /// Whether room is being made on this tier for a move by hand.
    pub(crate) fn makes_way_by_hand(&self, inner: &Inner, tier: u8) -> bool {
        let made = inner.made_way.get(&tier).and_then(|id| inner.jobs.get(id));
        made.is_some_and(|active| !active.job.state.is_over())
    }
}
