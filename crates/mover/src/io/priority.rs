//! Haste: work that users wait for, beside these users.
//!
//! What is read often and lies below is read from there, one small request after the other, until it comes up. Where a few large
//! requests bring it up, and where room is made for it, giving way to those very readers makes only more of them: a device that
//! serves 150 requests a second was asked for 758 blocks in 5 s while what held them, 15 MiB, waited for 30 requests.
//!
//! Invariants: it is in haste only while users read from a tier below the fastest, and only with what brings much for each request;
//! it rests as long as it worked, and as a reader there needs: users keep half of the device.

use crate::{
    extent::Moving,
    jobs::Job,
    mover::{Active, Inner, Mover},
};

/// Reads of a region, decayed, from which bringing it up saves far more requests than it takes.
pub(crate) const REGION_READS: f32 = 16.0;
/// After so many looks in a row that brought nothing up it goes on at leisure: they cost the processor's time.
const IN_VAIN: u32 = 4;
/// What a request must bring of single chunks, about.
const REQUEST_BYTES: u64 = 64 << 10;

impl Mover {
    /// Whether users read from a slower tier at the moment.
    pub(crate) fn is_read_below(&self, inner: &Inner, now: u64) -> bool {
        let foreground = &self.environment.foreground;
        (1..inner.policies.len() as u8).any(|tier| foreground.spacing(Some(tier), now) > 0)
    }

    /// For how long work rests that these readers wait for.
    pub(crate) fn rest_in_haste(&self, inner: &Inner, now: u64) -> u64 {
        let spacing = self.environment.foreground.spacing(None, now);
        inner
            .courtesy
            .wait(now)
            .min(inner.courtesy.wait_at_most(spacing, now))
    }

    /// The same of work between tiers (bits) that have rates of their own; without haste, as long as it rests beside any user.
    pub(crate) fn pause_in_haste(&self, inner: &Inner, haste: bool, tiers: u64, now: u64) -> u64 {
        if !haste || !self.is_read_below(inner, now) {
            return self.pause_for(inner, tiers, now);
        }
        match self.rest_in_haste(inner, now) {
            0 => inner.rates.wait(tiers, now),
            rest => rest,
        }
    }

    /// Whether work that gives way to users, unless it is in haste, does little at a time.
    pub(crate) fn is_gentle(&self, inner: &Inner, haste: bool, now: u64) -> bool {
        inner.courtesy.is_watched(now) && !(haste && self.is_read_below(inner, now))
    }

    /// Whether regions come up in haste: the next one was read so often that it is worth it, and of those before some came up.
    pub(crate) fn promotes_in_haste(&self, inner: &Inner) -> bool {
        let next = inner.candidates.next_reads();
        inner.candidates.in_vain < IN_VAIN && next.is_some_and(|reads| reads >= REGION_READS)
    }

    /// Whether a demotion makes room for what they read.
    pub(crate) fn makes_room_for_readers(&self, inner: &Inner, job: &Job, now: u64) -> bool {
        let room = job.room.is_some() && !self.makes_way_by_hand(inner, job.source);
        (room || self.sinks_what_is_cold(inner, job)) && self.is_read_below(inner, now)
    }

    /// Tiers that a demotion is making room on for those who write, as bits.
    pub fn sinking_tiers(&self) -> u64 {
        self.sinking_of(&self.inner.lock())
    }

    /// The same of whoever holds the lock. What waits for its window, or is tried again later, makes no room now.
    pub(crate) fn sinking_of(&self, inner: &Inner) -> u64 {
        let jobs = inner.jobs.values().filter(|active| self.may_go_on(active));
        let pressing = jobs.filter(|active| self.is_pressing(inner, &active.job));
        pressing.fold(0, |tiers, active| tiers | 1 << active.job.source.min(63))
    }

    /// Demotions of what is cold that come before other work, as users write where it lies, or something hot waits for room there.
    pub(crate) fn sinking_first(&self, inner: &Inner) -> Vec<u64> {
        let jobs = inner.jobs.iter().filter(|(_, active)| self.may_go_on(active));
        let first = jobs.filter(|(_, active)| {
            self.sinks_what_is_cold(inner, &active.job)
                && (inner.exchange.is_wanting() || self.is_written_to(active.job.source))
        });
        first.map(|(id, _)| *id).collect()
    }

    fn may_go_on(&self, active: &Active) -> bool {
        self.may_run(active) && active.retry.is_none() && active.waiting.is_none()
    }

    /// Somebody waits for room to write to a tier that compaction cannot give: the next step looks whether anything there is
    /// to sink for it.
    pub fn look_for_room_at_once(&self) {
        let mut inner = self.inner.lock();
        // What sinks already is enough of an answer.
        if self.sinking_of(&inner) == 0 {
            inner.next_urgency = 0;
        }
    }
}

/// Whether these, in order of place, come up by requests that bring much.
pub(crate) fn is_dense(chunks: &[Moving]) -> bool {
    let mut requests = 0u64;
    let mut last = None;
    for moving in chunks {
        let request = moving.request();
        if last != Some(request) {
            requests += 1;
            last = Some(request);
        }
    }
    let bytes: u64 = chunks.iter().map(Moving::bytes).sum();
    bytes >= requests * REQUEST_BYTES && requests > 0
}
