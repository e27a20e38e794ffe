//! A step of a demotion or a move: which chunks of the next records go, and the moving itself.
//!
//! Invariants: content is only ever moved by `Store::rewrite`; no lock is held while devices work; a page of records that
//! was not done as a whole is looked at again, and what was moved is not moved twice; `migration=off` and a change of the
//! tiers act between two slices.

use std::{cell::Cell, collections::HashSet, sync::atomic::Ordering};

use terrace_dataset::{chunks_of_region, keys, read_region};
use terrace_store::{BLOCK_BYTES, ChunkId, Placement, Store, StoreError, TierUsage, tier_bit};
use terrace_sync::MutexGuard;

use super::reader::{self, Chosen, Moving};
use crate::{
    jobs::{AWAITS_WINDOW, Job, JobKind, Left, Work, is_for_pin},
    mover::{
        BENEATH, Guard, Inner, Mover, POLICY_INTERVAL, SECOND, STEP_RECORDS, in_windows, piece_bytes,
        tier_name,
    },
    pins::Subtree,
    policy::{PASSES, Way, heat_of_pass, next_pass, stays, warmth},
    tiers::{filled_bytes, may_rise, minute_of_day},
};

/// Beside users a step looks for no more than this, and moves what one read brings: what a device does at once before it makes
/// others wait cannot be known.
const STEP_BYTES_WATCHED: u64 = 512 << 10;
/// And at so few records of what somebody moves by hand.
const STEP_RECORDS_WATCHED: usize = 8;
/// After how long a move by hand asks again for what something else was moving.
const BUSY_PAUSE: u64 = SECOND / 100;
/// And after how long it looks again whether there is room for it.
const WAY_PAUSE: u64 = SECOND / 4;

/// What a rewrite came to.
#[derive(Default)]
pub(crate) struct Rewritten {
    /// Stored bytes moved.
    pub(crate) bytes: u64,
    /// All were tried: not when migration was switched off in between, and not when users are about and something was
    /// moved that took its time.
    pub(crate) whole: bool,
    /// Content that stays where a pin of other content says that has it too, bytes.
    pub(crate) kept_bytes: u64,
    /// The tiers that they left or came to, as bits.
    pub(crate) tiers: u64,
    /// Chunks that something else was moving.
    pub(crate) busy: u64,
    /// Chunks that could not be read.
    pub(crate) failed: Vec<ChunkId>,
}

impl Rewritten {
    /// What was rewritten next.
    fn add(&mut self, next: Self) {
        self.bytes += next.bytes;
        self.whole = next.whole;
        self.kept_bytes += next.kept_bytes;
        self.tiers |= next.tiers;
        self.busy += next.busy;
        self.failed.extend(next.failed);
    }
}

/// Counts what of these regions could not be read, or is not there at all; what a commit replaced meanwhile is neither.
fn note_unread(
    store: &dyn Store,
    regions: &[reader::Found],
    failed: &[ChunkId],
    left: &mut Left,
) -> Result<(), StoreError> {
    for found in regions {
        let place = (found.dataset, found.body, found.region);
        let Some(seen) = read_region(store, found.dataset, found.body, found.region)? else {
            continue;
        };
        let (record, infos) = chunks_of_region(store, place, seen.record)?;
        for run in record.runs() {
            let bytes = u64::from(run.count) * BLOCK_BYTES as u64;
            match infos.get(&run.chunk) {
                Some(Some(info)) if failed.contains(&run.chunk) => left.unreadable(info.tier, bytes),
                Some(None) => left.lost(bytes),
                _ => {}
            }
        }
    }
    Ok(())
}

impl Mover {
    /// One step of a demotion or a move.
    pub(crate) fn migrate(
        &self,
        inner: &mut Guard<'_>,
        work: &mut Work,
        now: u64,
    ) -> Result<u64, StoreError> {
        let by_hand = work.job.kind == JobKind::Move;
        let beneath = work.job.is_of_directories();
        let has_directories = self.environment.pins.has_directories(work.job.dataset);
        if by_hand && (beneath || has_directories) && inner.beneath.is_looking() {
            work.waiting = Some("waiting until it is known what lies beneath");
            return Ok(POLICY_INTERVAL);
        }
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        if !by_hand && !in_windows(&inner.policies, work.job.source, work.job.target, minute) {
            work.waiting = Some(AWAITS_WINDOW);
            return Ok(60 * SECOND);
        }
        if !by_hand && work.job.target >= self.resting_from(inner) {
            work.waiting = Some("waiting, since a faster tier holds what is written");
            return Ok(POLICY_INTERVAL);
        }
        let sinks = work.job.kind == JobKind::Demote;
        let waits = |job| !self.is_urgent(inner, work.job.source) && !self.sinks_what_is_cold(inner, job);
        if sinks && self.is_bringing_back(inner, now) && waits(&work.job) {
            work.waiting = Some("waiting until dead blocks are back");
            return Ok(SECOND / 10);
        }
        let tiers = tier_bit(work.job.source) | tier_bit(work.job.target);
        let rest = self.rest_of(inner, &work.job, now);
        let pause = match rest {
            // Of what is moved by hand it is not known yet where it lies: where the last did, mostly.
            0 => inner.rates.wait(work.tiers | tiers, now),
            rest => rest,
        };
        if pause > 0 {
            return Ok(pause);
        }
        let store = self.environment.store.as_ref();
        if (beneath || work.job.is_directory) && !self.walk_beneath(inner, work)? {
            return Ok(0);
        }
        let subtree = work.subtree.as_ref();
        let for_pin = is_for_pin(inner, &self.datasets, &work.job);
        let asked = self
            .environment
            .now()
            .seconds
            .saturating_sub(work.job.started.seconds);
        if by_hand && !for_pin && inner.shared.is_awaited(asked) && !inner.beneath.is_looking() {
            work.waiting = Some("waiting until it is known what pinned content has in common with others");
            return Ok(SECOND / 100);
        }
        let mut room_bytes = u64::MAX;
        if by_hand {
            match self.way_of(inner, &work.job, for_pin, now)? {
                Way::Free(most) => room_bytes = most,
                Way::Waits(why) => {
                    work.waiting = Some(why);
                    return Ok(WAY_PAUSE);
                }
                Way::Full => {
                    let cause = self.describe_hotter(inner, &work.job);
                    work.job.fail(cause);
                    return Ok(0);
                }
            }
        }
        if work.job.kind == JobKind::Demote && self.is_enough(inner, &work.job) {
            work.job.finish();
            return Ok(0);
        }
        let job = &mut work.job;
        if by_hand && job.pass == 0 && job.cursor.is_empty() {
            // Anew, if it is tried again.
            job.done_bytes = 0;
            job.left = Left::default();
        }
        if by_hand {
            // Not to go back at once: what is hot is found again.
            inner.candidates.forget(job.dataset, job.body);
        }
        // A page that users cut short is looked at again, and counts when all of it is done.
        let records = match inner.courtesy.is_watched(now) {
            true => STEP_RECORDS_WATCHED,
            false => STEP_RECORDS,
        };
        let page = MutexGuard::unlocked(inner, || match job.kind {
            JobKind::Demote => reader::next_of_pool(store, &job.cursor, STEP_RECORDS),
            _ if let Some(subtree) = subtree => subtree.next_page(store, &job.cursor, records),
            _ => reader::next_of_dataset(store, job.dataset, job.body, &job.cursor, records),
        })?;
        let mut chunks = Chosen::default();
        let mut looked_at = 0;
        // Small requests to a device that counts them make it last the longer.
        let gentle = inner.courtesy.is_watched(now) && !self.presses_on(inner, job, now);
        let step_bytes = self.step_bytes_at(gentle).min(piece_bytes(inner, job.target));
        let mut step_bytes = step_bytes.min(room_bytes);
        if job.room.is_some() {
            // No more than was asked for: what is moved down may be as warm as what comes up in its place.
            step_bytes = step_bytes.min(job.total_bytes.saturating_sub(job.done_bytes).max(1));
        }
        let mut stopped = None;
        let (mut tried, mut is_missing, mut pinned_bytes) = (0, false, 0);
        for found in &page.found {
            if subtree.is_some() {
                inner.candidates.forget(found.dataset, found.body);
            }
            if chunks.bytes() >= step_bytes {
                stopped = Some(keys::region(found.dataset, found.body, found.region));
                break;
            }
            let content_bytes = u64::from(found.record.mapped_blocks()) * BLOCK_BYTES as u64;
            looked_at += content_bytes;
            tried += 1;
            let wanted = match by_hand {
                // A pin wins, also over what somebody asks for.
                true => {
                    let pin = self.pin_of(inner, found.dataset, found.body);
                    let elsewhere = pin
                        .as_deref()
                        .is_some_and(|pin| pin != tier_name(inner, job.target));
                    if elsewhere && !beneath {
                        pinned_bytes += content_bytes;
                    }
                    !elsewhere && (pin.is_some() || !beneath)
                }
                false => self.is_cold(inner, job, found),
            };
            if wanted {
                self.note_moving(found, now);
                let (source, target) = (job.source, job.target);
                let sinks = Cell::new(false);
                is_missing |= MutexGuard::unlocked(inner, || {
                    chunks.add(store, &found.record, |tier| {
                        sinks.set(sinks.get() || tier < target);
                        match by_hand {
                            true => tier != target,
                            false => tier == source,
                        }
                    })
                })?;
                if by_hand && !for_pin && sinks.get() {
                    self.forget_heat(inner, found);
                }
            }
        }
        if job.kind == JobKind::Demote {
            chunks.retain(|moving| !stays(job, &self.environment.chunk_heat, moving));
            if usize::from(job.pass) + 1 < PASSES {
                let (limit, minutes) = (heat_of_pass(job).unwrap_or(0.0), self.minutes());
                chunks.retain(|moving| !inner.grace.is_hotter(moving.id(), minutes, limit));
            }
        }
        if job.room.is_some() {
            chunks.cut(job.total_bytes.saturating_sub(job.done_bytes));
        }
        let in_history =
            job.kind == JobKind::Demote && !matches!(job.cursor.first(), Some(&keys::TABLE_REGION));
        // What stays where it is, as it cannot be read or a pin keeps it, takes no room: the next has that.
        let mut done = Rewritten::default();
        let is_cut = loop {
            let rest = chunks.cut(room_bytes.max(1));
            done.add(self.rewrite(inner, job.target, chunks.chunks(), gentle)?);
            chunks = rest;
            if chunks.is_empty() || done.bytes > 0 || done.busy > 0 || !done.whole {
                break !chunks.is_empty();
            }
        };
        let moved = done.bytes;
        work.moved = moved;
        if done.tiers != 0 {
            work.tiers = done.tiers;
        }
        if !done.whole {
            // Switched off in the middle, or users come first: the same page again when it goes on.
            job.done_bytes = job.done_bytes.saturating_add(if by_hand { 0 } else { moved });
            return Ok(0);
        }
        if by_hand && done.busy > 0 {
            // Compaction has some of them in hand and leaves them on their tier: the same page again.
            return Ok(BUSY_PAUSE);
        }
        if is_cut {
            // No more fits: the same page again, if room is made.
            return Ok(0);
        }
        if by_hand {
            job.left.pinned(pinned_bytes.saturating_add(done.kept_bytes));
            if is_missing || !done.failed.is_empty() {
                let left = &mut job.left;
                let tried = &page.found[..tried];
                MutexGuard::unlocked(inner, || note_unread(store, tried, &done.failed, left))?;
            }
        }
        // A page cut short is looked at again from its start; what was moved is not moved twice.
        match stopped {
            Some(next) if !in_history => job.cursor = next,
            Some(_) if moved > 0 => {}
            _ => match page.next {
                Some(next) => job.cursor = next,
                None => {
                    job.cursor = Vec::new();
                    job.pass = match job.kind {
                        JobKind::Demote => next_pass(job, &self.environment.heat, self.minutes()),
                        _ => job.pass + 1,
                    };
                }
            },
        }
        job.done_bytes = job
            .done_bytes
            .saturating_add(if by_hand { looked_at } else { moved });
        let over = match job.kind {
            JobKind::Demote => job.done_bytes >= job.total_bytes || heat_of_pass(job).is_none(),
            _ => job.pass > 0,
        };
        if over {
            work.unread = self.end_move(inner, job, for_pin);
            // When it is tried again, other files may lie beneath.
            work.subtree = None;
        }
        Ok(0)
    }

    /// A demotion or a move has looked at all that it was to move. Returns why it is to be tried again, if it is: as long as a
    /// pin holds, what could not be read may be readable once a device is back, or was restored.
    fn end_move(&self, inner: &Inner, job: &mut Job, for_pin: bool) -> Option<String> {
        let name = |tier: u8| tier_name(inner, tier).to_owned();
        let moved_bytes = job.done_bytes;
        let Some(cause) = job.left.failure(moved_bytes, &name(job.target), name) else {
            job.reason.push_str(&job.left.describe_pinned());
            job.finish();
            return None;
        };
        job.total_bytes = job.done_bytes;
        job.done_bytes = job.done_bytes.saturating_sub(job.left.unread_bytes());
        if for_pin {
            (job.pass, job.cursor) = (0, Vec::new());
            return Some(cause);
        }
        job.fail(cause);
        None
    }

    /// Looks for what lies beneath the directory of a job, or the directories; whether all of it is known.
    fn walk_beneath(&self, inner: &mut Guard<'_>, work: &mut Work) -> Result<bool, StoreError> {
        let job = &mut work.job;
        if work.subtree.as_ref().is_some_and(Subtree::is_known) {
            return Ok(true);
        }
        let subtree = work.subtree.get_or_insert_with(|| self.subtree_of(inner, job));
        if !subtree.is_known() {
            work.waiting = Some("looking for what lies beneath");
            let store = self.environment.store.as_ref();
            MutexGuard::unlocked(inner, || subtree.step(store))?;
        }
        if subtree.is_known() {
            job.total_bytes = subtree.bytes().max(job.done_bytes);
            subtree
                .bodies()
                .for_each(|body| inner.by_hand.release(job.dataset, body));
        }
        Ok(false)
    }

    /// What a job of a directory, or of all that are pinned to its tier, is to look for.
    fn subtree_of(&self, inner: &Inner, job: &Job) -> Subtree {
        if job.body == BENEATH {
            // The look has found it. What has a pin of its own has a move of its own.
            let mut bodies = self.environment.pins.bodies_beneath(job.dataset, job.target);
            bodies.retain(|body| inner.pins.of_body(job.dataset, *body).is_none());
            return Subtree::of(
                job.dataset,
                bodies,
                inner.beneath.bytes_of(job.dataset, job.target),
            );
        }
        let passed_over = match job.for_pin {
            true => inner.pins.elsewhere(job.dataset, tier_name(inner, job.target)),
            // Somebody who moves it by hand is told what stays for its pin.
            false => HashSet::new(),
        };
        Subtree::new(job.dataset, job.body, passed_over)
    }

    /// Whether what a demotion by the marks would move next is hot enough to come up again, and there is room for that: only
    /// what is cold goes down to the low-water mark, or the two would change places without end. A tier that holds goes
    /// down in one batch.
    fn is_enough(&self, inner: &mut Inner, job: &Job) -> bool {
        let tiers = self.usage(inner);
        let policy = inner.policies.get(usize::from(job.source));
        let pending = self.environment.store.space().pending_free_bytes;
        let is_low = |tier: &TierUsage| {
            let low = policy.map_or(1.0, |policy| policy.low_water) * tier.size_bytes as f64;
            filled_bytes(tier).saturating_sub(pending) as f64 <= low
        };
        let comes_up = inner
            .policies
            .get(usize::from(job.target))
            .map(|policy| policy.promote_after)
            .filter(|after| *after > 0);
        job.room.is_none()
            && policy.is_some_and(|policy| policy.hold.is_none())
            && tiers.get(usize::from(job.source)).is_some_and(|tier| {
                let is_hot =
                    comes_up.is_some_and(|reads| heat_of_pass(job).is_some_and(|limit| limit > reads as f32));
                let only_cold = inner.only_cold.contains(&job.source);
                let too_hot =
                    heat_of_pass(job).is_some_and(|limit| self.is_too_hot_beside_moves(inner, job, limit));
                is_low(tier)
                    || too_hot
                    || is_hot && may_rise(tier, policy, 0)
                    || only_cold && !self.sinks_what_is_cold(inner, job)
            })
    }

    /// Somebody moves this down by hand: it comes up for what it is read from now on.
    fn forget_heat(&self, inner: &mut Inner, found: &reader::Found) {
        let region = u32::try_from(found.region).unwrap_or(u32::MAX);
        let (heat, minutes) = (&self.environment.heat, self.minutes());
        let reads = heat.forget_reads(found.dataset, found.body, region, minutes);
        inner.by_hand.note(found.dataset, found.body, reads, minutes);
        for run in found.record.runs() {
            self.environment
                .chunk_heat
                .forget(run.chunk, run.index + run.count);
        }
    }

    /// What a step does at most now, about.
    pub(crate) fn step_bytes_at(&self, gentle: bool) -> u64 {
        let most = self.step_bytes.load(Ordering::Relaxed);
        match gentle {
            true => most.min(STEP_BYTES_WATCHED),
            false => most,
        }
    }

    fn is_cold(&self, inner: &Inner, job: &Job, found: &reader::Found) -> bool {
        if self.is_pinned_to(inner, job.source, found)
            || self.is_brought(inner, job, found.dataset, found.body)
        {
            return false;
        }
        let region = u32::try_from(found.region).unwrap_or(u32::MAX);
        let heat = self
            .environment
            .heat
            .of(found.dataset, found.body, region, self.minutes());
        warmth(job, &heat) <= heat_of_pass(job).unwrap_or(0.0)
    }

    /// Whether what was found shall stay on this tier.
    pub(crate) fn is_pinned_to(&self, inner: &Inner, tier: u8, found: &reader::Found) -> bool {
        // What lies beneath a pinned directory is not known yet: all stays where it is.
        if inner.beneath.is_looking() && self.environment.pins.has_directories(found.dataset) {
            return true;
        }
        let name = inner.policies.get(usize::from(tier)).map(|policy| &policy.name);
        let pinned = self.pin_of(inner, found.dataset, found.body);
        pinned.is_some() && pinned.as_ref() == name
    }

    /// Moves chunks to a tier: beside users, if it is to be gentle, what one request brings; no more than the rate of the tier lets
    /// through at once.
    pub(crate) fn rewrite(
        &self,
        inner: &mut Guard<'_>,
        target: u8,
        chunks: &[Moving],
        gentle: bool,
    ) -> Result<Rewritten, StoreError> {
        let mut result = Rewritten {
            whole: true,
            ..Rewritten::default()
        };
        // A pin wins, also over moves of other content that has the same chunk.
        let (chunks, kept_bytes) = self.unless_shared_with_pinned(inner, target, chunks);
        result.kept_bytes = kept_bytes;
        if chunks.is_empty() {
            return Ok(result);
        }
        let placement = Placement::Tier {
            tier: target,
            strict: true,
        };
        let (generation, rates) = (inner.generation, inner.rates.clone());
        let sources = chunks.iter().map(|moving| tier_bit(moving.tier()));
        let piece_bytes = rates.piece_bytes(sources.fold(tier_bit(target), |tiers, tier| tiers | tier));
        let (clock, foreground) = (&self.environment.clock, &self.environment.foreground);
        let began = clock.monotonic_nanoseconds();
        let done = MutexGuard::unlocked(inner, || {
            let _disturbed = foreground.disturb();
            // In slices, so that 'migration=off' acts at once also on slow devices.
            let mut rest = chunks;
            while !rest.is_empty() {
                if gentle && result.bytes > 0 || result.bytes >= piece_bytes {
                    result.whole = false;
                    break;
                }
                let slice = match gentle {
                    true => reader::request_of(&mut rest, piece_bytes),
                    false => reader::slice_of(&mut rest, piece_bytes),
                };
                if !self.is_enabled() || self.tiers_generation.load(Ordering::SeqCst) != generation {
                    result.whole = false;
                    break;
                }
                let ids: Vec<ChunkId> = slice.iter().map(Moving::id).collect();
                let outcome = self.environment.store.rewrite(&ids, placement)?;
                let heat = &self.environment.chunk_heat;
                match target {
                    0 if outcome.moved == ids.len() as u64 => ids.iter().for_each(|id| heat.rose(*id)),
                    0 => {}
                    _ => ids.iter().for_each(|id| heat.sank(*id)),
                }
                result.bytes += outcome.moved_bytes;
                rates.take(&outcome.tier_bytes);
                let tiers = outcome.tier_bytes.keys().map(|tier| tier_bit(*tier));
                result.tiers |= tiers.fold(0, |tiers, tier| tiers | tier);
                result.busy += outcome.busy;
                result.failed.extend(outcome.failed);
            }
            Ok(())
        });
        inner
            .courtesy
            .worked(foreground, began, clock.monotonic_nanoseconds());
        done.map(|()| result)
    }
}
