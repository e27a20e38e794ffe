//! Demotions: which tiers need one, and what each is to make room for.
//!
//! Invariants: a tier above its high-water mark is brought below its low-water mark, the coldest first; a fast tier that is
//! merely too full for something hotter gives as much room as that needs ([`Exchange`](crate::policy::swap::Exchange)); there is
//! one demotion of a tier at a time, and none after a failure for a while.

use terrace_store::{StoreError, TierUsage};

use super::{
    hot_chunks::{self, reads_wanted},
    swap::Wish,
};
use crate::{
    jobs::JobKind,
    mover::{Inner, Mover, tier_name},
    tiers::{filled_bytes, holds, in_the_way, room, room_below},
};

/// By which part of it the most metadata of late is forgotten at each look at the tiers.
const METADATA_DECAY: u64 = 32;
/// More than a wish needs: a little metadata comes and goes.
const SLACK_BYTES: u64 = 64 << 10;

impl Mover {
    /// Starts a demotion for each tier above its high-water mark.
    pub(crate) fn look_at_tiers(&self, inner: &mut Inner, now: u64) -> Result<(), StoreError> {
        for most in &mut inner.metadata_bytes {
            *most -= *most / METADATA_DECAY;
        }
        self.find_hottest(inner);
        let tiers = self.usage(inner);
        let space = self.environment.store.space();
        let (chunks, blocks) = hot_chunks::places(&space);
        self.environment.chunk_heat.set_places(chunks, blocks);
        inner.pins.find_bodies(self.environment.store.as_ref())?;
        inner.pins.forget_gone(self.environment.store.as_ref())?;
        let answered = self.environment.chunk_heat.answered();
        inner.exchange.judge(answered, now);
        if inner.exchange.job().is_some_and(|id| self.is_over(inner, id)) {
            inner.exchange.give_up();
        }
        for (source, tier) in tiers.iter().enumerate() {
            let Some(policy) = inner.policies.get(source).cloned() else {
                continue;
            };
            let source = source as u8;
            // Some of what is being freed may lie here: nothing sinks for that.
            let filled = filled_bytes(tier).saturating_sub(space.pending_free_bytes);
            let above = match policy.hold {
                Some(level) => !holds(tier, level),
                None => filled as f64 > policy.high_water * tier.size_bytes as f64,
            };
            let full = above || self.may_have_cold(inner, source) && self.is_urgent(inner, source);
            if inner.demotion_of(source).is_some()
                || inner.left_alone.get(&source).is_some_and(|until| now < *until)
                || !full && source > 0
                || source >= self.resting_from(inner)
            {
                continue;
            }
            // What is not live comes back by compaction; only live content has to move.
            let low = (policy.low_water * tier.size_bytes as f64) as u64;
            let Some(target) = room_below(&tiers, &inner.policies, source) else {
                continue;
            };
            let wish = match full {
                true => None,
                // There may be room for it in a moment.
                false if self.is_bringing_back(inner, now) => continue,
                false => self.wish(inner, tier, now),
            };
            let wanted_bytes = match &wish {
                Some(wish) => in_the_way(tier, Some(&policy), wish.bytes + SLACK_BYTES),
                None if full => filled.saturating_sub(low),
                None => continue,
            };
            let total_bytes = wanted_bytes.min(tier.live_bytes);
            if total_bytes == 0 {
                continue;
            }
            let percent = filled * 100 / tier.size_bytes.max(1);
            let below = tier_name(inner, target);
            let reason = match &wish {
                Some(_) => format!(
                    "tier '{}' is {percent} % full; something hotter has no room: moving what is colder down to '{below}'",
                    tier.name
                ),
                None if !above => format!(
                    "tier '{}' has hardly any room left for what is written; moving what is cold down to '{below}'",
                    tier.name
                ),
                None => format!(
                    "tier '{}' is {percent} % full; moving the coldest down to '{below}' until {:.0} %",
                    tier.name,
                    policy.low_water * 100.0
                ),
            };
            let mut job = self.new_job(JobKind::Demote, reason, total_bytes, source, target);
            job.room = wish.as_ref().map(|wish| wish.room);
            let id = self.add(inner, job, None)?;
            match above || wish.is_some() {
                true => inner.only_cold.remove(&source),
                false => inner.only_cold.insert(source),
            };
            if let Some(wish) = wish {
                inner.exchange.begin(id, wish.bytes, total_bytes);
            }
        }
        Ok(())
    }

    /// Room that is to be made on the fastest tier, if any.
    fn wish(&self, inner: &mut Inner, tier: &TierUsage, now: u64) -> Option<Wish> {
        let least = inner.policies.iter().skip(1).filter_map(reads_wanted).min()?;
        let heat = &self.environment.chunk_heat;
        inner.exchange.wish(heat, least, tier.size_bytes, now)
    }

    fn is_over(&self, inner: &Inner, id: u64) -> bool {
        inner
            .jobs
            .get(&id)
            .is_none_or(|active| active.job.state.is_over())
    }

    /// A job has ended: if it made room, what it was made for comes up.
    pub(crate) fn room_was_made(&self, inner: &mut Inner, id: u64, now: u64) {
        let Some(active) = inner.jobs.get(&id) else {
            return;
        };
        // A job that has ended counts as whole, also if it moved nothing; here that is told apart.
        let unused = inner.exchange.is_for_unused(id);
        let moved_bytes = match unused {
            true => active.moved,
            false => active.job.done_bytes,
        };
        let answered = self.environment.chunk_heat.answered();
        // What is used, and clearly colder, is sought next.
        if inner.exchange.ended(id, moved_bytes, answered, now) || unused {
            // What else waits need not wait for the next look as well.
            inner.next_policy = now;
        }
    }

    /// What room was made for comes up as soon as the room is there.
    pub(crate) fn fill_room(&self, inner: &mut Inner, now: u64) {
        if !inner.exchange.may_come(now) {
            return;
        }
        let tiers = self.usage(inner);
        if let Some(fastest) = tiers.first() {
            let room_bytes = room(fastest, inner.policies.first());
            let (chunks, regions) = inner.exchange.come(room_bytes, now);
            inner.hot_chunks.admit_hot(0, chunks);
            inner.candidates.admit(regions);
        }
    }
}
