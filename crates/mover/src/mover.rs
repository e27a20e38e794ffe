//! `Mover`: the list of jobs, the policies that start them, and the step that does a piece of one.
//!
//! Invariants: a step moves at most about [`STEP_BYTES`], or what it was told to; it holds no lock that readers or writers of data wait for,
//! and none at all while devices work, so that jobs can be listed, paused and cancelled at any moment; what a user did
//! to a job meanwhile outlasts the step; content is only ever moved by `Store::rewrite`, so nothing the mover does can
//! lose or change it; a job's record may be older than its work, since moving something twice is harmless.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use terrace_codec::Reader;
use terrace_dataset::{Datasets, Environment, keys};
use terrace_store::{ChunkId, Placement, Store, StoreError, TierUsage};

use crate::{
    aging::Aging,
    beneath::Beneath,
    courtesy::Courtesy,
    grace::Grace,
    hot_chunks::{self, HotChunks},
    job::{Job, JobKind, JobState},
    marks::{filled_bytes, room_below},
    pace::Pace,
    passes::{
        PASSES, clearly_colder, heat_of_pass, is_for_chunks, next_pass, room_for_chunks, stays, warmth,
    },
    pins::Pins,
    plan::{self, Chosen, Moving},
    policy::{TierPolicy, Window, minute_of_day},
    promote::Candidates,
    relayout::Relayouts,
    retry::{Retry, is_for_pin},
    store_work::{StoreSteps, Work, store_step},
};

/// Stored bytes that one step moves at most, about: alone, and beside users.
pub(crate) const STEP_BYTES: u64 = 4 << 20;
const STEP_BYTES_WATCHED: u64 = 512 << 10;
/// Beside users a step begins no further read of the fastest tier after this many nanoseconds; of a slower one it asks for
/// one thing only: what a device does at once before it makes others wait cannot be known.
const STEP_NANOSECONDS_WATCHED: u64 = 1_000_000;
/// Region records that one step looks at.
pub(crate) const STEP_RECORDS: usize = 32;
pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const POLICY_INTERVAL: u64 = 10 * SECOND;
const HEAT_INTERVAL: u64 = 60 * SECOND;
const PERSIST_INTERVAL: u64 = 10 * SECOND;
/// By which part of it the most metadata of late is forgotten at each look at the tiers.
const METADATA_DECAY: u64 = 32;
/// After how long a move by hand asks again for what something else was moving.
const BUSY_PAUSE: u64 = SECOND / 100;
/// How long a tier is left alone after moving content off it failed.
const BACKOFF: u64 = 600 * SECOND;
/// Shortest time between two searches for room for something hotter.
const ROOM_INTERVAL: u64 = 2 * SECOND;
/// And the longest, after many of them.
const ROOM_INTERVAL_MAX: u64 = 60 * SECOND;
/// What a rewrite came to.
#[derive(Default)]
pub(crate) struct Rewritten {
    /// Stored bytes moved.
    pub(crate) bytes: u64,
    /// All were tried: not when migration was switched off in between, and not when users are about and something was
    /// moved that took its time.
    pub(crate) whole: bool,
    /// Chunks that something else was moving.
    pub(crate) busy: u64,
}

/// In the place of a body: all that lies beneath the directories of the dataset that are pinned to the target.
pub(crate) const BENEATH: u64 = u64::MAX;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There may be more to do at once.
    More,
    /// Nothing to do for about this many nanoseconds.
    Idle {
        /// Nanoseconds.
        wait: u64,
    },
}

/// A job in RAM.
pub(crate) struct Active {
    pub(crate) job: Job,
    pub(crate) rate: f64,
    window: (u64, u64),
    pub(crate) waiting: Option<&'static str>,
    pub(crate) steps: Option<Box<dyn StoreSteps>>,
    persisted: u64,
    /// Its record is older than it should be, since it could not be written.
    pub(crate) unsaved: bool,
    /// It failed and is tried again.
    pub(crate) retry: Option<Retry>,
}

impl Active {
    pub(crate) fn new(job: Job, now: u64) -> Self {
        Self {
            job,
            rate: 0.0,
            window: (now, 0),
            waiting: None,
            steps: None,
            persisted: 0,
            unsaved: false,
            retry: None,
        }
    }

    /// Counts bytes into the rate.
    pub(crate) fn count(&mut self, bytes: u64, now: u64) {
        self.window.1 += bytes;
        let elapsed = now.saturating_sub(self.window.0);
        if elapsed >= SECOND {
            let rate = self.window.1 as f64 / (elapsed as f64 / SECOND as f64);
            self.rate = if self.rate == 0.0 {
                rate
            } else {
                0.7 * self.rate + 0.3 * rate
            };
            self.window = (now, 0);
        }
    }
}

/// The lock of the mover; released while devices work.
pub(crate) type Guard<'a> = MutexGuard<'a, Inner>;

pub(crate) struct Inner {
    /// A step is under way, perhaps with the lock released.
    stepping: bool,
    /// The order of the tiers that this step goes by.
    pub(crate) generation: u64,
    pub(crate) jobs: BTreeMap<u64, Active>,
    pub(crate) next_job: u64,
    pub(crate) policies: Vec<TierPolicy>,
    pub(crate) pins: Pins,
    pub(crate) beneath: Beneath,
    pub(crate) candidates: Candidates,
    pub(crate) hot_chunks: HotChunks,
    /// Whose turn it is.
    pub(crate) turn: usize,
    pub(crate) aging: Aging,
    pub(crate) relayouts: Relayouts,
    pub(crate) grace: Grace,
    /// The fastest tier was too full for something hot: the most reads of it.
    pub(crate) room_wanted: Option<f32>,
    /// Before this time no room is sought for it: the last search was in vain.
    pub(crate) next_room: u64,
    /// The same for chunks.
    next_chunk_room: u64,
    /// How long after the next one.
    room_interval: u64,
    pub(crate) paces: HashMap<u8, Pace>,
    pub(crate) courtesy: Courtesy,
    /// The most metadata on each tier of late.
    metadata_bytes: Vec<u64>,
    pub(crate) next_policy: u64,
    next_heat: u64,
    left_alone: HashMap<u8, u64>,
}

/// The mover of a pool. All methods may be called from any thread.
pub struct Mover {
    pub(crate) datasets: Arc<Datasets>,
    pub(crate) environment: Arc<Environment>,
    pub(crate) inner: Mutex<Inner>,
    enabled: AtomicBool,
    /// What a step moves at most, about.
    pub(crate) step_bytes: AtomicU64,
    /// Grows when tiers change places.
    pub(crate) tiers_generation: AtomicU64,
}

impl Mover {
    /// Takes the jobs and the heat of the pool up again. Work of the store that was interrupted is shown as such.
    pub fn open(datasets: Arc<Datasets>) -> Result<Self, StoreError> {
        let environment = datasets.environment().clone();
        let store = environment.store.as_ref();
        let now = environment.clock.monotonic_nanoseconds();
        let mut jobs = BTreeMap::new();
        scan_table(store, keys::TABLE_JOB, |key, value| {
            let mut reader = Reader::new(key);
            let _ = reader.u8("table");
            if let (Ok(id), Ok(mut job)) = (reader.key_u64("job"), Job::decode(value)) {
                let store_work = !job.kind.migrates() && job.kind != JobKind::Evacuate;
                let interrupted = store_work || job.kind.is_round();
                if !job.state.is_over() && interrupted {
                    job.state = JobState::Cancelled;
                    job.reason.push_str("; interrupted by a restart");
                }
                jobs.insert(id, Active::new(job, now));
            }
        })?;
        scan_table(store, keys::TABLE_HEAT, |key, value| {
            if let Ok((dataset, body)) = keys::parse_pin(key) {
                environment.heat.load(dataset, body, value);
            }
        })?;
        let names = store
            .space()
            .tiers
            .into_iter()
            .map(|tier| TierPolicy::named(tier.name));
        let inner = Inner {
            stepping: false,
            generation: 0,
            // 1 is kept for a job that the engine shows by itself.
            next_job: jobs.last_key_value().map_or(2, |(id, _)| id + 1),
            jobs,
            policies: names.collect(),
            pins: Pins::load(store)?,
            beneath: Beneath::default(),
            candidates: Candidates::default(),
            hot_chunks: HotChunks::default(),
            turn: 0,
            aging: Aging::default(),
            relayouts: Relayouts::default(),
            grace: Grace::default(),
            room_wanted: None,
            next_room: 0,
            next_chunk_room: 0,
            room_interval: ROOM_INTERVAL,
            paces: HashMap::new(),
            courtesy: Courtesy::default(),
            metadata_bytes: Vec::new(),
            next_policy: 0,
            next_heat: now + HEAT_INTERVAL,
            left_alone: HashMap::new(),
        };
        let mover = Self {
            datasets,
            environment,
            inner: Mutex::new(inner),
            enabled: AtomicBool::new(true),
            step_bytes: AtomicU64::new(STEP_BYTES),
            tiers_generation: AtomicU64::new(0),
        };
        {
            let mut inner = mover.inner.lock();
            mover.tell_pins(&inner);
            inner.beneath.look_again();
        }
        Ok(mover)
    }

    /// The settings of the tiers, fastest first; in force from the next step on.
    pub fn set_policies(&self, policies: Vec<TierPolicy>) {
        let mut inner = self.inner.lock();
        inner.policies = policies;
        inner.next_policy = 0;
        inner.left_alone.clear();
        self.tell_pins(&inner);
        // By number it is known on which tier it is to lie.
        inner.beneath.look_again();
    }

    /// `migration=on|off`: with `false`, nothing is moved between tiers from now on (a step that runs ends).
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::SeqCst);
    }

    /// How much a step moves, about: less lets a simulation see more states between two steps.
    pub fn set_step_bytes(&self, bytes: u64) {
        self.step_bytes.store(bytes.max(1), Ordering::Relaxed);
    }

    /// Whether content may be moved between tiers.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::SeqCst)
    }

    /// Does one bounded piece of work: looks at the policies when it is time, then works on the oldest job that may.
    pub fn step(&self) -> Result<Step, StoreError> {
        let mut inner = match self.inner.try_lock() {
            Some(inner) if !inner.stepping => inner,
            _ => return Ok(Step::Idle { wait: SECOND / 10 }),
        };
        inner.stepping = true;
        inner.generation = self.tiers_generation.load(Ordering::SeqCst);
        let done = self.step_locked(&mut inner);
        inner.stepping = false;
        done
    }

    fn step_locked(&self, inner: &mut Guard<'_>) -> Result<Step, StoreError> {
        let now = self.environment.clock.monotonic_nanoseconds();
        if now >= inner.next_heat {
            inner.next_heat = now + HEAT_INTERVAL;
            self.keep_heat()?;
        }
        self.environment.chunk_heat.age(self.minutes());
        if now >= inner.next_policy {
            inner.next_policy = now + POLICY_INTERVAL;
            self.keep_unsaved(inner)?;
            if self.is_enabled() {
                self.look_at_tiers(inner, now)?;
                self.find_hot(inner);
                self.want_chunks(inner);
                self.find_old(inner, now);
                self.find_fragments(inner, now);
            }
        }
        if self.beneath_step(inner, now)? {
            return Ok(Step::More);
        }
        let mut wait = inner.next_policy.saturating_sub(now).max(1);
        match self.take_turns(inner, now)? {
            0 => return Ok(Step::More),
            pause => wait = wait.min(pause),
        }
        Ok(Step::Idle { wait })
    }

    pub(crate) fn may_run(&self, active: &Active) -> bool {
        active.job.state == JobState::Running
            && !active.job.kind.is_round()
            && (self.is_enabled() || !active.job.kind.migrates())
    }

    /// Works on a job; returns 0, or for how long it must wait.
    pub(crate) fn work(&self, inner: &mut Guard<'_>, id: u64, now: u64) -> Result<u64, StoreError> {
        if let Some(active) = inner.jobs.get(&id)
            && active.retry.is_some()
            && !is_for_pin(inner, &self.datasets, &active.job)
            && let Some(active) = inner.jobs.get_mut(&id)
        {
            active.job.state = JobState::Cancelled;
            active.job.reason.push_str("; the pin changed");
            active.retry = None;
            self.keep(inner, id)?;
            return Ok(0);
        }
        let Some(active) = inner.jobs.get_mut(&id) else {
            return Ok(0);
        };
        // A device that is to leave may be failing: emptying it waits for nobody.
        if !active.job.kind.migrates() && active.job.kind != JobKind::Evacuate {
            let pause = inner.courtesy.wait(now);
            if pause > 0 {
                return Ok(pause);
            }
        }
        let Some(active) = inner.jobs.get_mut(&id) else {
            return Ok(0);
        };
        let mut work = Work {
            job: active.job.clone(),
            moved: 0,
            waiting: None,
        };
        let mut steps = active.steps.take();
        let result = if work.job.kind.migrates() {
            self.migrate(inner, &mut work, now)
        } else {
            let step_bytes = self.step_bytes_at(inner, now);
            let (clock, foreground) = (&self.environment.clock, &self.environment.foreground);
            let done = MutexGuard::unlocked(inner, || {
                let _disturbed = foreground.disturb();
                store_step(&mut work, &mut steps, step_bytes)
            });
            inner
                .courtesy
                .worked(foreground, now, clock.monotonic_nanoseconds());
            done
        };
        let failed = match &result {
            Err(StoreError::Stopped(_)) | Ok(_) => None,
            Err(StoreError::NoSpace) if work.job.kind.migrates() => Some(format!(
                "tier '{}' has no room for more; make some there, or add a device to it with 'terrace pool add'",
                tier_name(inner, work.job.target)
            )),
            Err(error) => Some(error.to_string()),
        };
        let again = failed.is_some() && is_for_pin(inner, &self.datasets, &work.job);
        let Some(active) = inner.jobs.get_mut(&id) else {
            return Ok(0);
        };
        active.waiting = work.waiting;
        active.count(work.moved, now);
        if active.steps.is_none() {
            active.steps = steps;
        }
        let changed = active.job.state != JobState::Running;
        active.job.progressed(work.job);
        if changed {
            // What the user did meanwhile holds.
            if active.job.state.is_over() {
                active.steps = None;
            }
        } else if let Some(cause) = failed {
            match again {
                true => active.retry = Some(Retry::after(active.retry.as_ref(), cause, now)),
                false => active.job.fail(cause),
            }
        } else if work.moved > 0 || active.job.state.is_over() {
            active.retry = None;
        }
        let stopped = matches!(result, Err(StoreError::Stopped(_)));
        let pause = match result {
            Err(error) if stopped => return Err(error),
            Err(_) => 0,
            Ok(pause) => pause,
        };
        let over = active.job.state.is_over();
        let persist = over || now >= active.persisted + PERSIST_INTERVAL;
        let job = active.job.clone();
        if pause == 0 && persist {
            active.persisted = now;
            self.keep(inner, id)?;
        }
        // A demotion that failed, or one for hot content that found nothing colder, is not begun again at once.
        if job.kind == JobKind::Demote && job.state == JobState::Failed {
            inner.left_alone.insert(job.source, now + BACKOFF);
        }
        if job.kind == JobKind::Demote && job.body != 0 && over {
            if now > inner.next_room + BACKOFF {
                inner.room_interval = ROOM_INTERVAL;
            }
            match job.done_bytes {
                0 if is_for_chunks(&job) => inner.next_chunk_room = now + BACKOFF,
                0 => inner.next_room = now + 6 * BACKOFF,
                // What waits for the room need not wait for the next look as well. Ever more time passes between two of
                // these, so that a hot set is up soon, and regions that are as hot as each other do not change places
                // for ever.
                _ => {
                    inner.next_policy = now;
                    inner.next_room = now + inner.room_interval;
                    inner.room_interval = (inner.room_interval / 4 * 5).min(ROOM_INTERVAL_MAX);
                }
            }
        }
        self.forget_ended(inner)?;
        Ok(pause)
    }

    /// One step of a demotion or a move.
    fn migrate(&self, inner: &mut Guard<'_>, work: &mut Work, now: u64) -> Result<u64, StoreError> {
        let by_hand = work.job.kind == JobKind::Move;
        let beneath = by_hand && work.job.body == BENEATH;
        if beneath && inner.beneath.is_looking() {
            work.waiting = Some("waiting until it is known what lies beneath");
            return Ok(POLICY_INTERVAL);
        }
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        if !by_hand && !in_window(&inner.policies, work.job.source, minute) {
            work.waiting = Some("waiting for its window");
            return Ok(60 * SECOND);
        }
        if !by_hand && work.job.target >= self.resting_from(inner) {
            work.waiting = Some("waiting, since a faster tier holds what is written");
            return Ok(POLICY_INTERVAL);
        }
        let pause = self.pause_for(inner, work.job.target, now);
        if pause > 0 {
            return Ok(pause);
        }
        let store = self.environment.store.as_ref();
        let job = &mut work.job;
        if by_hand {
            // Not to go back at once: what is hot is found again.
            inner.candidates.forget(job.dataset, job.body);
        }
        let page = MutexGuard::unlocked(inner, || match job.kind {
            JobKind::Demote => plan::next_of_pool(store, &job.cursor, STEP_RECORDS),
            _ if beneath => plan::next_of_dataset(store, job.dataset, 0, &job.cursor, STEP_RECORDS),
            _ => plan::next_of_dataset(store, job.dataset, job.body, &job.cursor, STEP_RECORDS),
        })?;
        let mut chunks = Chosen::default();
        let mut looked_at = 0;
        let mut step_bytes = self.step_bytes_at(inner, now);
        if is_for_chunks(job) {
            // No more than was asked for: what is moved down may be as warm as what comes up in its place.
            step_bytes = step_bytes.min(job.total_bytes.saturating_sub(job.done_bytes).max(1));
        }
        let mut stopped = None;
        for found in &page.found {
            if chunks.bytes() >= step_bytes {
                stopped = Some(keys::region(found.dataset, found.body, found.region));
                break;
            }
            looked_at += u64::from(found.record.mapped_blocks()) * 4096;
            let wanted = match (by_hand, beneath) {
                (_, true) => {
                    let pin = self.pin_of(inner, found.dataset, found.body);
                    pin.is_some_and(|pin| pin == tier_name(inner, job.target))
                }
                (true, _) => true,
                _ => self.is_cold(inner, job, found),
            };
            if wanted {
                self.note_moving(found, now);
                let (source, target) = (job.source, job.target);
                MutexGuard::unlocked(inner, || {
                    chunks.add(store, &found.record, |tier| match by_hand {
                        true => tier != target,
                        false => tier == source,
                    })
                })?;
            }
        }
        if job.kind == JobKind::Demote {
            chunks.retain(|moving| !stays(job, &self.environment.chunk_heat, moving));
            if usize::from(job.pass) + 1 < PASSES {
                let minutes = self.minutes();
                let limit = heat_of_pass(job).unwrap_or(0.0);
                chunks.retain(|moving| !inner.grace.is_hotter(moving.id(), minutes, limit));
            }
        }
        let in_history =
            job.kind == JobKind::Demote && !matches!(job.cursor.first(), Some(&keys::TABLE_REGION));
        let done = self.rewrite(inner, job.target, chunks.chunks())?;
        let moved = done.bytes;
        work.moved = moved;
        if !done.whole {
            // Switched off in the middle, or users come first: the same page again when it goes on.
            job.done_bytes = job.done_bytes.saturating_add(if by_hand { 0 } else { moved });
            return Ok(0);
        }
        if by_hand && done.busy > 0 {
            // Compaction has some of them in hand and leaves them on their tier: the same page again.
            return Ok(BUSY_PAUSE);
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
            job.finish();
        }
        Ok(0)
    }

    /// What a step does at most now, about.
    fn step_bytes_at(&self, inner: &Inner, now: u64) -> u64 {
        let most = self.step_bytes.load(Ordering::Relaxed);
        match inner.courtesy.is_watched(now) {
            true => most.min(STEP_BYTES_WATCHED),
            false => most,
        }
    }

    /// The tiers as their marks are concerned: metadata comes and goes with every checkpoint, so the most of late counts.
    pub(crate) fn usage(&self, inner: &mut Inner) -> Vec<TierUsage> {
        let mut tiers = self.environment.store.space().tiers;
        inner.metadata_bytes.resize(tiers.len(), 0);
        for (tier, most) in tiers.iter_mut().zip(&mut inner.metadata_bytes) {
            *most = tier.metadata_bytes.max(*most);
            tier.metadata_bytes = *most;
        }
        tiers
    }

    fn is_cold(&self, inner: &Inner, job: &Job, found: &plan::Found) -> bool {
        if self.is_pinned_to(inner, job.source, found) {
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
    pub(crate) fn is_pinned_to(&self, inner: &Inner, tier: u8, found: &plan::Found) -> bool {
        // What lies beneath a pinned directory is not known yet: all stays where it is.
        if inner.beneath.is_looking() && self.environment.pins.has_directories(found.dataset) {
            return true;
        }
        let name = inner.policies.get(usize::from(tier)).map(|policy| &policy.name);
        let pinned = self.pin_of(inner, found.dataset, found.body);
        pinned.is_some() && pinned.as_ref() == name
    }

    /// The first tier that policies leave in peace, since a faster one holds what is written; 255: none.
    pub(crate) fn resting_from(&self, inner: &Inner) -> u8 {
        let holding = inner.policies.iter().position(|policy| policy.hold.is_some());
        let Some(at) = holding else { return u8::MAX };
        let tiers = self.environment.store.space().tiers;
        let holds = |at: usize| {
            let (Some(tier), Some(level)) = (tiers.get(at), inner.policies[at].hold) else {
                return false;
            };
            let sinking = inner.jobs.values().any(|active| {
                active.job.kind == JobKind::Demote
                    && !active.job.state.is_over()
                    && usize::from(active.job.source) == at
            });
            !sinking && (filled_bytes(tier) as f64) < level * tier.size_bytes as f64
        };
        let first = (at..inner.policies.len()).find(|at| holds(*at));
        first.map_or(u8::MAX, |at| at as u8 + 1)
    }

    /// The same for the floors below, which leave those tiers in peace as well.
    pub fn resting_tiers(&self) -> u8 {
        self.resting_from(&self.inner.lock())
    }

    /// For how long the tier may not be written to, or users are left alone.
    pub(crate) fn pause_for(&self, inner: &mut Inner, target: u8, now: u64) -> u64 {
        let courtesy = inner.courtesy.wait(now);
        if courtesy > 0 {
            return courtesy;
        }
        let limit = inner
            .policies
            .get(usize::from(target))
            .map_or(0, |policy| policy.rate_limit);
        inner.paces.entry(target).or_default().wait(limit, now)
    }

    /// Moves chunks to a tier.
    pub(crate) fn rewrite(
        &self,
        inner: &mut Guard<'_>,
        target: u8,
        chunks: &[Moving],
    ) -> Result<Rewritten, StoreError> {
        let mut result = Rewritten {
            whole: true,
            ..Rewritten::default()
        };
        if chunks.is_empty() {
            return Ok(result);
        }
        let placement = Placement::Tier {
            tier: target,
            strict: true,
        };
        let generation = inner.generation;
        let (clock, foreground) = (&self.environment.clock, &self.environment.foreground);
        let began = clock.monotonic_nanoseconds();
        let watched = inner.courtesy.is_watched(began);
        let done = MutexGuard::unlocked(inner, || {
            let _disturbed = foreground.disturb();
            // In slices, so that 'migration=off' acts at once also on slow devices.
            let mut rest = chunks.to_vec();
            while !rest.is_empty() {
                let took = clock.monotonic_nanoseconds().saturating_sub(began);
                let enough = rest[0].is_slow() || took >= STEP_NANOSECONDS_WATCHED;
                if watched && result.bytes > 0 && enough {
                    result.whole = false;
                    break;
                }
                let slice = match watched {
                    true => plan::request_of(&mut rest),
                    false => plan::slice_of(&mut rest),
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
                result.busy += outcome.busy;
            }
            Ok(())
        });
        inner
            .courtesy
            .worked(foreground, began, clock.monotonic_nanoseconds());
        let limit = inner
            .policies
            .get(usize::from(target))
            .map_or(0, |policy| policy.rate_limit);
        inner.paces.entry(target).or_default().take(limit, result.bytes);
        done.map(|()| result)
    }

    /// Starts a demotion for each tier above its high-water mark.
    fn look_at_tiers(&self, inner: &mut Inner, now: u64) -> Result<(), StoreError> {
        for most in &mut inner.metadata_bytes {
            *most -= *most / METADATA_DECAY;
        }
        let tiers = self.usage(inner);
        let space = self.environment.store.space();
        self.environment.chunk_heat.set_places(hot_chunks::places(&space));
        inner.pins.find_bodies(self.environment.store.as_ref())?;
        let room_wanted = inner.room_wanted.take();
        let chunk_room = inner.hot_chunks.room_wanted.take();
        let chunk_room = chunk_room.filter(|_| self.environment.chunk_heat.is_informed());
        for (source, tier) in tiers.iter().enumerate() {
            let Some(policy) = inner.policies.get(source).cloned() else {
                continue;
            };
            let source = source as u8;
            let busy = inner.jobs.values().any(|active| {
                active.job.kind == JobKind::Demote
                    && !active.job.state.is_over()
                    && active.job.source == source
            });
            let filled = filled_bytes(tier);
            let mark = policy.hold.unwrap_or(policy.high_water);
            let mark_bytes = mark * tier.size_bytes as f64;
            let full = filled as f64 > mark_bytes || policy.hold.is_some() && filled as f64 >= mark_bytes;
            // What makes way for hotter content must be clearly colder, so that the two do not change places.
            let colder = chunk_room
                .filter(|_| now >= inner.next_chunk_room.max(inner.next_room))
                .map(room_for_chunks)
                .or_else(|| {
                    let room_wanted = room_wanted.filter(|_| now >= inner.next_room);
                    room_wanted.map(|reads| u64::from(clearly_colder(reads).to_bits()))
                })
                .filter(|_| source == 0 && !full);
            if busy
                || inner.left_alone.get(&source).is_some_and(|until| now < *until)
                || !full && colder.is_none()
                || source >= self.resting_from(inner)
            {
                continue;
            }
            // What is not live comes back by compaction; only live content has to move.
            let low = (policy.low_water * tier.size_bytes as f64) as u64;
            let total_bytes = filled.saturating_sub(low).min(tier.live_bytes);
            let Some(target) = room_below(&tiers, &inner.policies, source) else {
                continue;
            };
            if total_bytes == 0 {
                continue;
            }
            let percent = filled * 100 / tier.size_bytes.max(1);
            let why = match colder {
                Some(_) => "something hotter has no room: moving what is colder",
                None => "moving the coldest",
            };
            let reason = format!(
                "tier '{}' is {percent} % full; {why} down to '{}' until {:.0} %",
                tier.name,
                tiers
                    .get(usize::from(target))
                    .map_or("", |tier| tier.name.as_str()),
                policy.low_water * 100.0
            );
            let mut job = self.new_job(JobKind::Demote, reason, total_bytes, source, target);
            job.body = colder.unwrap_or(0);
            self.add(inner, job, None)?;
        }
        Ok(())
    }

    pub(crate) fn minutes(&self) -> u32 {
        (self.environment.clock.now_nanoseconds() / (60 * SECOND)) as u32
    }
}

pub(crate) fn tier_name(inner: &Inner, tier: u8) -> &str {
    let policy = inner.policies.get(usize::from(tier));
    policy.map_or("", |policy| policy.name.as_str())
}

/// Whether policies may move content off this tier now.
pub(crate) fn in_window(policies: &[TierPolicy], source: u8, minute: u32) -> bool {
    let window = policies
        .get(usize::from(source))
        .map(|policy| Window::parse(&policy.window));
    match window {
        Some(Ok(Some(window))) => window.contains(minute),
        _ => true,
    }
}

fn scan_table(store: &dyn Store, table: u8, mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
    let (mut from, to) = keys::table_range(table);
    loop {
        let page = store.scan(&from, &to, 256)?;
        page.iter().for_each(|(key, value)| visit(key, value));
        match page.last() {
            Some((last, _)) if page.len() == 256 => from = last.iter().copied().chain([0]).collect(),
            _ => return Ok(()),
        }
    }
}
