//! Urgency: a tier on which hardly a segment is free, and which is above its mark by what lives there.
//!
//! Invariants: what lands there would go to a slower tier any moment, and be read from there later, which costs users more than a
//! demotion that does not rest beside them; so it is looked for each second, and worked on without rests (but no faster than the
//! tier's rate allows) until one of the two does not hold any more; dead blocks in chunks are looked for as often
//! ([`relayout_round`](crate::relayout_round)). Only what is clearly colder than the hottest there is goes so:
//! of a large tree that is being written, the first part would else make way for the last. While users read from the tier that
//! it goes to, they are given way as ever. A tier that holds what is written is left to that.

use terrace_store::StoreError;

use crate::{
    job::{Job, JobKind},
    marks::{filled_bytes, room_below},
    mover::{Inner, Mover, SECOND},
    passes::{clearly_colder, heat_of_pass},
};

/// Of a tier, the part that is free at most when it is urgent.
const FREE_PART: u64 = 16;

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
        policy.hold.is_none()
            && free <= tier.size_bytes / FREE_PART
            && filled as f64 > policy.high_water * tier.size_bytes as f64
            && room_below(&space.tiers, &inner.policies, source).is_some()
    }

    /// Whether any tier is.
    pub(crate) fn is_any_urgent(&self, inner: &Inner) -> bool {
        (0..inner.policies.len() as u8).any(|source| self.is_urgent(inner, source))
    }

    /// Whether a demotion is to go on without rests.
    pub(crate) fn is_pressing(&self, inner: &Inner, job: &Job, now: u64) -> bool {
        job.kind == JobKind::Demote
            && job.room.is_none()
            && self.environment.foreground.spacing(Some(job.target), now) == 0
            && heat_of_pass(job).is_some_and(|limit| limit <= clearly_colder(inner.hottest))
            && self.is_urgent(inner, job.source)
    }

    /// Between two looks at the policies: begins a demotion where that is urgent, and brings dead blocks back where a tier is tight.
    pub(crate) fn look_for_urgency(&self, inner: &mut Inner, now: u64) -> Result<(), StoreError> {
        if now < inner.next_urgency {
            return Ok(());
        }
        inner.next_urgency = now + SECOND;
        let tiers = inner.policies.len().saturating_sub(1) as u8;
        self.find_early(inner, now)?;
        if self.is_any_urgent(inner) {
            let mut hottest = 0.0f32;
            let heat = &self.environment.heat;
            heat.for_each(self.minutes(), |_, _, _, heat| {
                hottest = hottest.max(heat.reads + heat.writes)
            });
            inner.hottest = hottest;
            let is_cold =
                |source: &u8| inner.demotion_of(*source).is_none() && self.is_urgent(inner, *source);
            if clearly_colder(hottest) > clearly_colder(0.0) && (0..tiers).any(|source| is_cold(&source)) {
                self.look_at_tiers(inner, now)?;
            }
        }
        Ok(())
    }
}
