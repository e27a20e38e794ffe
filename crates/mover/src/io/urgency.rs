//! Urgency: a tier on which hardly a segment is free, and which is above its mark by what lives there.
//!
//! Invariants: what lands there would go to a slower tier any moment, and be read from there later, which costs users more than a
//! demotion that does not rest beside them; so it is looked for each second, and worked on without rests while users write
//! (but no faster than the tier's rate allows) until one of the two does not hold any more; dead blocks in chunks are looked for as often
//! ([`relayout_round`](crate::relayout::queue)). Only what is clearly colder than the hottest there is goes so:
//! of a large tree that is being written, the first part would else make way for the last. While users read from the tier that
//! it goes to, it leaves them half of the time. A tier that holds what is written is left to that.

use terrace_store::{StoreError, TierUsage};

use crate::{
    jobs::{Job, JobKind},
    mover::{Inner, Mover, SECOND},
    policy::{clearly_colder, heat_of_pass},
    tiers::{filled_bytes, room_below},
};

/// Of a tier, the part that is free at most when it is urgent, beyond what new content leaves free.
const FREE_PART: u64 = 16;
/// Of a slower tier, the part that is free where what is cold sinks below the mark.
const SPARE_PART: u64 = 8;
/// Of what is free there, the part that waits in RAM to land when users write much.
const WRITTEN_PART: u64 = 8;

impl Mover {
    /// Whether content should leave this tier soon.
    pub(crate) fn is_urgent(&self, inner: &Inner, source: u8) -> bool {
        let space = self.environment.store.space();
        let at = usize::from(source);
        let (Some(tier), Some(policy)) = (space.tiers.get(at), inner.policies.get(at)) else {
            return false;
        };
        let free = tier.size_bytes.saturating_sub(tier.used_bytes);
        let filled = filled_bytes(tier).saturating_sub(space.pending_free_bytes);
        let mark = match self.may_have_cold(inner, source) && has_segments_below(&space.tiers, at) {
            // What is cold makes way for what is written also where the rest is garbage that is not worth a compaction.
            true => policy.low_water,
            false => policy.high_water,
        };
        policy.hold.is_none()
            && free <= tier.floor_bytes + tier.size_bytes / FREE_PART
            && filled as f64 > mark * tier.size_bytes as f64
            && room_below(&space.tiers, &inner.policies, source).is_some()
    }

    /// Whether any tier is.
    pub(crate) fn is_any_urgent(&self, inner: &Inner) -> bool {
        (0..inner.policies.len() as u8).any(|source| self.is_urgent(inner, source))
    }

    /// For how long a job rests beside users. Where it is pressing and they write, not at all while nobody reads from the tier
    /// that it goes to, else as long as it worked, and as a reader there needs: what lands there meanwhile would be read from
    /// there, too, so that giving way to readers for longer makes only more of them.
    pub(crate) fn rest_of(&self, inner: &Inner, job: &Job, now: u64) -> u64 {
        let rest = inner.courtesy.wait(now);
        if rest > 0 && self.makes_room_for_readers(inner, job, now) {
            return self.rest_in_haste(inner, now);
        }
        if rest == 0 || !self.is_pressing(inner, job) || !self.is_written_to(job.source) {
            return rest;
        }
        match self.environment.foreground.spacing(Some(job.target), now) {
            0 => 0,
            spacing => rest.min(inner.courtesy.wait_at_most(spacing, now)),
        }
    }

    /// Whether a demotion does much at a time also beside users: those who write have no room, or some read below what has none above.
    pub(crate) fn presses_on(&self, inner: &Inner, job: &Job, now: u64) -> bool {
        self.makes_room_for_readers(inner, job, now)
            || self.is_pressing(inner, job) && self.is_written_to(job.source)
    }

    /// Whether what users have written, and nothing has landed of yet, is much beside the room for it.
    pub(crate) fn is_written_to(&self, tier: u8) -> bool {
        let tiers = self.environment.store.space().tiers;
        let free = tiers.get(usize::from(tier)).map_or(0, |tier| {
            tier.size_bytes
                .saturating_sub(tier.used_bytes.saturating_add(tier.floor_bytes))
        });
        self.environment.budget.dirty_bytes() > free / WRITTEN_PART
    }

    /// Whether a demotion is not to wait long.
    pub(crate) fn is_pressing(&self, inner: &Inner, job: &Job) -> bool {
        self.sinks_what_is_cold(inner, job) && self.is_urgent(inner, job.source)
    }

    /// Whether this pass of a demotion moves only what is clearly colder than the hottest there is: nobody misses it, and the room
    /// stays, where that of dead blocks has to be brought back again and again.
    pub(crate) fn sinks_what_is_cold(&self, inner: &Inner, job: &Job) -> bool {
        job.kind == JobKind::Demote
            && job.room.is_none()
            && inner.has_cold()
            && heat_of_pass(job).is_some_and(|limit| limit <= clearly_colder(inner.hottest))
    }

    /// Whether what is clearly colder than the hottest there is may lie on this tier.
    pub(crate) fn may_have_cold(&self, inner: &Inner, source: u8) -> bool {
        let now = self.environment.clock.monotonic_nanoseconds();
        inner.has_cold() && inner.without_cold.get(&source).is_none_or(|until| now >= *until)
    }

    /// Looks how hot the hottest region is.
    pub(crate) fn find_hottest(&self, inner: &mut Inner) {
        let mut hottest = 0.0f32;
        self.environment.heat.for_each(self.minutes(), |_, _, _, heat| {
            hottest = hottest.max(heat.reads + heat.writes)
        });
        inner.hottest = hottest;
    }

    /// Between two looks at the policies: begins a demotion where that is urgent, and brings dead blocks back where a tier is tight.
    pub(crate) fn look_for_urgency(&self, inner: &mut Inner, now: u64) -> Result<(), StoreError> {
        if now < inner.next_urgency {
            return Ok(());
        }
        inner.next_urgency = now + SECOND;
        if self.is_any_tight(inner) {
            self.find_hottest(inner);
        }
        let tiers = inner.policies.len().saturating_sub(1) as u8;
        self.find_early(inner, now)?;
        if self.is_any_urgent(inner) {
            let is_cold =
                |source: &u8| inner.demotion_of(*source).is_none() && self.is_urgent(inner, *source);
            if inner.has_cold() && (0..tiers).any(|source| is_cold(&source)) {
                self.look_at_tiers(inner, now)?;
            }
        }
        Ok(())
    }
}

/// Whether a slower tier has segments to spare: where all are full, moving about only uses up the last ones.
fn has_segments_below(tiers: &[TierUsage], source: usize) -> bool {
    let slower = tiers.iter().skip(source + 1);
    slower
        .into_iter()
        .any(|tier| tier.used_bytes.saturating_add(tier.size_bytes / SPARE_PART) <= tier.size_bytes)
}

impl Inner {
    /// Whether anything can be clearly colder than the hottest region.
    pub(crate) fn has_cold(&self) -> bool {
        clearly_colder(self.hottest) > clearly_colder(0.0)
    }
}
