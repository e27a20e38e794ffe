//! `Mover`: the list of jobs, the policies that start them, and the step that does a piece of one.
//!
//! Invariants: a step moves at most about [`STEP_BYTES`], or what it was told to; it holds no lock that readers or writers of data wait for,
//! and none at all while devices work, so that jobs can be listed, paused and cancelled at any moment; what a user did
//! to a job meanwhile outlasts the step; content is only ever moved by `Store::rewrite`, so nothing the mover does can
//! lose or change it; a job's record may be older than its work, since moving something twice is harmless.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use terrace_codec::Reader;
use terrace_dataset::{Datasets, Environment, keys};
use terrace_store::{MoveRates, Store, StoreError, TierUsage, tier_bit};
use terrace_sync::{Mutex, MutexGuard, rank};

use crate::{
    io::Courtesy,
    jobs::{Job, JobKind, JobState, Reason, Retry, StoreSteps, Work, is_for_pin, store_step},
    pins::{Beneath, Pins, SharedWithPinned, Subtree},
    policy::{Aging, ByHand, Candidates, Exchange, Grace, HotChunks, WayForPins, space_request},
    relayout::Relayouts,
    tiers::{TierPolicy, Window, holds},
};

/// Stored bytes that one step moves at most, about: alone, and beside users.
pub(crate) const STEP_BYTES: u64 = 4 << 20;
/// Region records that one step looks at.
pub(crate) const STEP_RECORDS: usize = 32;
pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const POLICY_INTERVAL: u64 = 10 * SECOND;
const HEAT_INTERVAL: u64 = 60 * SECOND;
const PERSIST_INTERVAL: u64 = 10 * SECOND;
/// How long a tier is left alone after moving content off it failed.
const BACKOFF: u64 = 600 * SECOND;
/// How long no demotion for what is cold alone is begun after one that found nothing.
const WITHOUT_COLD: u64 = 60 * SECOND;
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
    /// Bytes moved since it is in RAM.
    pub(crate) moved: u64,
    pub(crate) waiting: Option<&'static str>,
    /// The tiers that its last step that moved something moved from or to, as bits.
    pub(crate) tiers: u64,
    pub(crate) steps: Option<Box<dyn StoreSteps>>,
    /// What it moves, where that is a directory.
    pub(crate) subtree: Option<Subtree>,
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
            moved: 0,
            waiting: None,
            tiers: 0,
            steps: None,
            subtree: None,
            persisted: 0,
            unsaved: false,
            retry: None,
        }
    }

    /// It goes on after it stood still: how fast it is then is not known yet.
    pub(crate) fn goes_on(&mut self, now: u64) {
        self.rate = 0.0;
        self.window = (now, 0);
    }

    /// Counts bytes into the rate.
    pub(crate) fn count(&mut self, bytes: u64, now: u64) {
        self.window.1 += bytes;
        self.moved += bytes;
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

/// A step that is under way; it is over also if it panics, so that the next one is not refused for ever.
struct Stepping<'a, 'b>(&'a mut Guard<'b>);

impl<'a, 'b> Stepping<'a, 'b> {
    fn begin(inner: &'a mut Guard<'b>) -> Self {
        inner.stepping = true;
        Self(inner)
    }
}

impl Drop for Stepping<'_, '_> {
    fn drop(&mut self) {
        self.0.stepping = false;
    }
}

/// The lock of the mover; released while devices work.
pub(crate) type Guard<'a> = MutexGuard<'a, Inner, rank::mover::Mover>;

pub(crate) struct Inner {
    /// A step is under way, perhaps with the lock released.
    pub(crate) stepping: bool,
    /// The order of the tiers that this step goes by.
    pub(crate) generation: u64,
    pub(crate) jobs: BTreeMap<u64, Active>,
    pub(crate) next_job: u64,
    pub(crate) policies: Vec<TierPolicy>,
    pub(crate) pins: Pins,
    pub(crate) beneath: Beneath,
    pub(crate) shared: SharedWithPinned,
    pub(crate) candidates: Candidates,
    pub(crate) hot_chunks: HotChunks,
    /// Whose turn it is.
    pub(crate) turn: usize,
    /// Steps of what sinks first since the last one of other work.
    pub(crate) sank_first: u8,
    pub(crate) aging: Aging,
    pub(crate) relayouts: Relayouts,
    pub(crate) grace: Grace,
    pub(crate) exchange: Exchange,
    pub(crate) by_hand: ByHand,
    /// By tier, the last demotion that was to make way for what is moved there by hand, until there is room.
    pub(crate) made_way: HashMap<u8, u64>,
    /// And for what is pinned to it.
    pub(crate) ways_for_pins: HashMap<u8, WayForPins>,
    pub(crate) rates: Arc<MoveRates>,
    /// The tiers from which something was brought up last, as bits.
    pub(crate) rising_from: u64,
    pub(crate) courtesy: Courtesy,
    /// The most metadata on each tier of late.
    pub(crate) metadata_bytes: Vec<u64>,
    pub(crate) next_policy: u64,
    pub(crate) next_urgency: u64,
    /// Reads and writes of the hottest region, when room was short last.
    pub(crate) hottest: f32,
    next_heat: u64,
    /// Tiers whose demotion was begun below the mark, for what is cold alone; and those on which such a one found nothing, until when
    /// none is begun.
    pub(crate) only_cold: HashSet<u8>,
    pub(crate) without_cold: HashMap<u8, u64>,
    pub(crate) left_alone: HashMap<u8, u64>,
}

/// The mover of a pool. All methods may be called from any thread.
pub struct Mover {
    pub(crate) datasets: Arc<Datasets>,
    pub(crate) environment: Arc<Environment>,
    pub(crate) inner: Mutex<Inner, rank::mover::Mover>,
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
        let minutes = (environment.clock.now_nanoseconds() / (60 * SECOND)) as u32;
        let mut jobs = BTreeMap::new();
        scan_table(store, keys::TABLE_JOB, |key, value| {
            let mut reader = Reader::new(key);
            let _ = reader.u8("table");
            if let (Ok(id), Ok(mut job)) = (reader.key_u64("job"), Job::decode(value)) {
                let store_work = !job.kind.migrates() && job.kind != JobKind::Evacuate;
                let interrupted = store_work || job.kind.is_round();
                if !job.state.is_over() && interrupted {
                    job.end_because("interrupted by a restart");
                }
                jobs.insert(id, Active::new(job, now));
            }
        })?;
        scan_table(store, keys::TABLE_HEAT, |key, value| {
            if let Ok((dataset, body)) = keys::parse_pin(key) {
                environment.heat.load(dataset, body, value, minutes);
            }
        })?;
        scan_table(store, keys::TABLE_FRAGMENTS, |key, value| {
            if let Ok(place) = keys::parse_fragments(key) {
                environment.fragments.load(place, value, now);
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
            shared: SharedWithPinned::default(),
            candidates: Candidates::default(),
            hot_chunks: HotChunks::default(),
            turn: 0,
            sank_first: 0,
            aging: Aging::default(),
            relayouts: Relayouts::default(),
            grace: Grace::default(),
            exchange: Exchange::default(),
            by_hand: ByHand::default(),
            made_way: HashMap::new(),
            ways_for_pins: HashMap::new(),
            rates: Arc::default(),
            rising_from: 0,
            courtesy: Courtesy::default(),
            metadata_bytes: Vec::new(),
            next_policy: 0,
            next_urgency: 0,
            hottest: 0.0,
            next_heat: now + HEAT_INTERVAL,
            only_cold: HashSet::new(),
            without_cold: HashMap::new(),
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
            inner.shared.look_again();
            // It may have been on its way when the pool was closed.
            mover.grant_return(&mut inner);
        }
        Ok(mover)
    }

    /// The settings of the tiers, fastest first; in force from the next step on.
    pub fn set_policies(&self, policies: Vec<TierPolicy>) {
        let mut inner = self.inner.lock();
        let before = std::mem::replace(&mut inner.policies, policies);
        let limits = inner.policies.iter().map(|policy| policy.rate_limit);
        inner.rates.set_limits(limits);
        for tier in 0..inner.policies.len() {
            let after =
                |policies: &[TierPolicy]| policies.get(tier).map(|policy| policy.demote_after_seconds);
            if after(&before) != after(&inner.policies)
                && let Some(id) = inner.aging.time_changed(tier as u8)
                && let Some(active) = inner
                    .jobs
                    .get_mut(&id)
                    .filter(|active| !active.job.state.is_over())
            {
                active.job.end_because("demote_after was changed");
                // Its record is written with the next look at the policies.
                active.unsaved = true;
            }
        }
        inner.next_policy = 0;
        inner.left_alone.clear();
        inner.ways_for_pins.clear();
        inner.exchange.seek_again();
        self.tell_pins(&inner);
        // By number it is known on which tier it is to lie.
        inner.beneath.look_again();
        inner.shared.forget();
    }

    /// From now on all that is moved counts here, and the limits of the tiers are said here: to be shared with the store, before
    /// [`Self::set_policies`].
    pub fn share_rates(&self, rates: Arc<MoveRates>) {
        self.inner.lock().rates = rates;
    }

    /// `migration=on|off`: with `false`, nothing is moved between tiers from now on (a step that runs ends). Dead blocks of what was
    /// overwritten in part go on coming back where room is short.
    pub fn set_enabled(&self, enabled: bool) {
        if self.enabled.swap(enabled, Ordering::SeqCst) != enabled && enabled {
            // What landed below meanwhile, and is read from there, waits for no look that is due later.
            let mut inner = self.inner.lock();
            (inner.next_policy, inner.next_urgency) = (0, 0);
            let now = self.environment.clock.monotonic_nanoseconds();
            inner.jobs.values_mut().for_each(|active| active.goes_on(now));
        }
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
        inner.generation = self.tiers_generation.load(Ordering::SeqCst);
        let stepping = Stepping::begin(&mut inner);
        self.step_locked(stepping.0)
    }

    fn step_locked(&self, inner: &mut Guard<'_>) -> Result<Step, StoreError> {
        let now = self.environment.clock.monotonic_nanoseconds();
        inner.courtesy.look(&self.environment.foreground, now);
        // What is moved before its tiers are known must not be paid with what a long rest brought.
        inner.rates.refresh(now);
        // All that changed, some with each step.
        let keeps = now >= inner.next_heat && self.keep_hints()?;
        if now >= inner.next_heat && !keeps {
            inner.next_heat = now + HEAT_INTERVAL;
        }
        self.environment.chunk_heat.age(self.minutes());
        if now >= inner.next_policy {
            inner.next_policy = now + POLICY_INTERVAL;
            self.keep_unsaved(inner)?;
            if self.is_enabled() {
                // First: what dead blocks take up need not sink.
                self.find_fragments(inner, now)?;
                self.look_at_tiers(inner, now)?;
                inner.by_hand.look(&self.environment.heat, self.minutes());
                self.find_hot(inner);
                self.want_chunks(inner);
                self.find_old(inner, now);
            }
        } else if self.is_enabled() {
            self.look_for_urgency(inner, now)?;
        }
        if !self.is_enabled() && now >= inner.next_urgency {
            // Nothing sinks, and what is written would land below for what is dead.
            inner.next_urgency = now + SECOND;
            self.find_early(inner, now)?;
        }
        if self.beneath_step(inner, now)? {
            return Ok(Step::More);
        }
        // Other work has its turns beside it.
        let looks = self.shared_step(inner, now)?;
        self.fill_room(inner, now);
        let next = match self.is_enabled() {
            true => inner.next_policy,
            false => inner.next_policy.min(inner.next_urgency),
        };
        let mut wait = next.saturating_sub(now).max(1);
        match self.take_turns(inner, now)? {
            0 => return Ok(Step::More),
            pause => wait = wait.min(pause),
        }
        if looks || keeps {
            return Ok(Step::More);
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
            && (active.job.for_pin
                || active
                    .retry
                    .as_ref()
                    .is_some_and(|retry| retry.reason == Reason::Pin))
            && self.knows_tiers(inner)
            && !is_for_pin(inner, &self.datasets, &active.job)
            && let Some(active) = inner.jobs.get_mut(&id)
        {
            active.job.end_because("the pin changed");
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
        let moves_within = inner.jobs.get(&id).filter(|active| !active.job.kind.migrates());
        let pause = moves_within.map_or(0, |active| inner.rates.wait(active.tiers, now));
        if pause > 0 {
            return Ok(pause);
        }
        let Some(active) = inner.jobs.get_mut(&id) else {
            return Ok(0);
        };
        let mut work = Work {
            job: active.job.clone(),
            moved: 0,
            waiting: None,
            unread: None,
            tiers: active.tiers,
            subtree: active.subtree.take(),
        };
        let mut steps = active.steps.take();
        let result = if work.job.kind.migrates() {
            self.migrate(inner, &mut work, now)
        } else {
            let step_bytes = self.step_bytes_at(inner.courtesy.is_watched(now));
            let step_bytes = match (work.job.kind, work.tiers) {
                // Between which tiers it moves anything shows its first step.
                (JobKind::Evacuate, 0) => step_bytes.min(inner.rates.piece_bytes(u64::MAX)),
                _ => step_bytes.min(inner.rates.piece_bytes(work.tiers)),
            };
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
        let is_full = matches!(result, Err(StoreError::NoSpace)) && work.job.kind.migrates();
        let mut failed = match &result {
            Err(StoreError::Stopped(_)) => None,
            Ok(_) => work.unread.take(),
            Err(StoreError::NoSpace) if is_full => Some(self.describe_no_room(inner, work.job.target)),
            Err(error) => Some(error.to_string()),
        };
        let for_pin = failed.is_some() && is_for_pin(inner, &self.datasets, &work.job);
        let target = work.job.target;
        let last = inner.jobs.get(&id).and_then(|active| active.retry.as_ref());
        let room = || {
            let tier = tier_name(inner, target);
            let cause = format!("tier '{tier}' has no room for more until dead blocks there come back");
            Retry::after(last, Reason::Room, cause, now)
        };
        let mut again = match is_full {
            true if for_pin && !self.waits_for_room_of_pins(inner, target) => None,
            true if self.may_win_room(target) => room(),
            _ => None,
        };
        if again.is_none()
            && for_pin
            && let Some(cause) = failed.clone()
        {
            again = Retry::after(last, Reason::Pin, cause, now);
            if is_full && self.asks_for_way(inner, target, now) {
                (failed, again) = (None, None);
                work.waiting = Some(space_request::AWAITED);
            }
        }
        let Some(active) = inner.jobs.get_mut(&id) else {
            return Ok(0);
        };
        if work.waiting == Some(space_request::AWAITED) {
            active.retry = None;
        }
        active.waiting = work.waiting;
        active.tiers = work.tiers;
        active.subtree = work.subtree;
        // What is shown as the rate is how fast it gets on: of a move by hand that is content, wherever it lay.
        let counted = match work.job.kind {
            JobKind::Move => work.job.done_bytes.saturating_sub(active.job.done_bytes),
            _ => work.moved,
        };
        active.count(counted, now);
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
            active.retry = again;
            if active.retry.is_none() {
                active.job.fail(cause);
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
        if over {
            // With what they hold.
            (active.subtree, active.steps) = (None, None);
        }
        let in_vain = over && active.moved == 0;
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
        if in_vain && job.kind == JobKind::Demote && inner.only_cold.remove(&job.source) {
            inner.without_cold.insert(job.source, now + WITHOUT_COLD);
        }
        if over {
            self.room_was_made(inner, id, now);
        }
        self.forget_ended(inner)?;
        Ok(pause)
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

    /// The first tier that policies leave in peace, since a faster one holds what is written; 255: none.
    pub(crate) fn resting_from(&self, inner: &Inner) -> u8 {
        let holding = inner.policies.iter().position(|policy| policy.hold.is_some());
        let Some(at) = holding else { return u8::MAX };
        let tiers = self.environment.store.space().tiers;
        let rests = |at: usize| {
            let (Some(tier), Some(level)) = (tiers.get(at), inner.policies[at].hold) else {
                return false;
            };
            let sinking = inner.demotion_of(at as u8).is_some();
            !sinking && holds(tier, level)
        };
        let first = (at..inner.policies.len()).find(|at| rests(*at));
        first.map_or(u8::MAX, |at| at as u8 + 1)
    }

    /// The same for the floors below, which leave those tiers in peace as well.
    pub fn resting_tiers(&self) -> u8 {
        self.resting_from(&self.inner.lock())
    }

    /// For how long nothing may be moved between these tiers (bits), or users are left alone.
    pub(crate) fn pause_for(&self, inner: &Inner, tiers: u64, now: u64) -> u64 {
        match inner.courtesy.wait(now) {
            0 => inner.rates.wait(tiers, now),
            courtesy => courtesy,
        }
    }

    /// Whether the settings are those of the tiers that there are: while tiers change places, not for a moment.
    pub(crate) fn knows_tiers(&self, inner: &Inner) -> bool {
        let tiers = self.environment.store.space().tiers;
        let mut both = tiers.iter().zip(&inner.policies);
        tiers.len() == inner.policies.len() && both.all(|(tier, policy)| tier.name == policy.name)
    }

    /// Minutes of the clock that heat goes by.
    pub fn minutes(&self) -> u32 {
        (self.environment.clock.now_nanoseconds() / (60 * SECOND)) as u32
    }
}

impl Inner {
    /// Whether a demotion of this tier is under way, and if so whether it runs or is paused: there is one at a time.
    pub(crate) fn demotion_of(&self, source: u8) -> Option<JobState> {
        let mut jobs = self.jobs.values().map(|active| &active.job);
        let job =
            jobs.find(|job| job.kind == JobKind::Demote && !job.state.is_over() && job.source == source);
        job.map(|job| job.state)
    }
}

/// What a step may bring up to a tier at most, about: from where the last did, or, as long as that is not known, from anywhere.
pub(crate) fn rising_piece_bytes(inner: &Inner, target: u8) -> u64 {
    inner.rates.piece_bytes(match inner.rising_from {
        0 => u64::MAX,
        tiers => tiers | tier_bit(target),
    })
}

/// What a step may move to a tier, or within it, at most, about.
pub(crate) fn piece_bytes(inner: &Inner, tier: u8) -> u64 {
    inner.rates.piece_bytes(tier_bit(tier))
}

pub(crate) fn tier_name(inner: &Inner, tier: u8) -> &str {
    let policy = inner.policies.get(usize::from(tier));
    policy.map_or("", |policy| policy.name.as_str())
}

/// Whether policies may move content off this tier, or onto it, now.
pub(crate) fn in_window(policies: &[TierPolicy], tier: u8, minute: u32) -> bool {
    let window = policies
        .get(usize::from(tier))
        .map(|policy| Window::parse(&policy.window));
    match window {
        Some(Ok(Some(window))) => window.contains(minute),
        _ => true,
    }
}

/// Whether policies may move content from one tier to another now: both have a say, whichever was told when it may work.
pub(crate) fn in_windows(policies: &[TierPolicy], source: u8, target: u8, minute: u32) -> bool {
    in_window(policies, source, minute) && in_window(policies, target, minute)
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
