//! `Mover`: the list of jobs, the policies that start them, and the step that does a piece of one.
//!
//! Invariants: a step moves at most about [`STEP_BYTES`]; it holds no lock that readers or writers of data wait for;
//! content is only ever moved by `Store::rewrite`, so nothing the mover does can lose or change it; a job's record
//! may be older than its work, since moving something twice is harmless.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use terrace_codec::Reader;
use terrace_dataset::{Datasets, Environment, keys};
use terrace_store::{Batch, ChunkId, Placement, Store, StoreError, TierUsage};

use crate::{
    job::{Job, JobKind, JobState},
    pace::Pace,
    pins::Pins,
    plan,
    policy::{TierPolicy, Window, minute_of_day},
    promote::Candidates,
};

/// Stored bytes that one step moves at most, about.
pub(crate) const STEP_BYTES: u64 = 4 << 20;
/// Region records that one step looks at.
pub(crate) const STEP_RECORDS: usize = 32;
const SECOND: u64 = 1_000_000_000;
const POLICY_INTERVAL: u64 = 10 * SECOND;
const HEAT_INTERVAL: u64 = 60 * SECOND;
const PERSIST_INTERVAL: u64 = 10 * SECOND;
/// How long a tier is left alone after moving content off it failed.
const BACKOFF: u64 = 600 * SECOND;
/// Ended jobs that are still listed.
const ENDED_KEPT: usize = 20;
/// Reads and writes of a region, decayed, up to which each pass of a demotion moves it: the coldest go first.
const PASS_HEAT: [f32; 6] = [0.02, 0.3, 1.5, 6.0, 24.0, f32::INFINITY];
/// Heat records that are kept: larger objects' heat is only in RAM.
const HEAT_BYTES_MAX: usize = 64 << 10;

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

/// Work of the store that runs as a job, in steps: a scrub, a compaction.
pub trait StoreSteps: Send {
    /// Does a bounded piece, of about `budget_bytes`.
    fn step(&mut self, budget_bytes: u64) -> Result<StoreWork, StoreError>;
}

/// What a step of the store did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreWork {
    /// Bytes looked at or moved by this step.
    pub bytes: u64,
    /// All that there is to do, as far as is known now.
    pub total_bytes: u64,
    /// Whether that was the last step.
    pub finished: bool,
    /// Something to show (what was found), instead of the reason.
    pub note: Option<String>,
}

/// A job in RAM.
pub(crate) struct Active {
    pub(crate) job: Job,
    pub(crate) rate: f64,
    window: (u64, u64),
    pub(crate) waiting: Option<&'static str>,
    pub(crate) steps: Option<Box<dyn StoreSteps>>,
    persisted: u64,
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

pub(crate) struct Inner {
    pub(crate) jobs: BTreeMap<u64, Active>,
    pub(crate) next_job: u64,
    pub(crate) policies: Vec<TierPolicy>,
    pub(crate) pins: Pins,
    pub(crate) candidates: Candidates,
    pub(crate) paces: HashMap<u8, Pace>,
    next_policy: u64,
    next_heat: u64,
    left_alone: HashMap<u8, u64>,
}

/// The mover of a pool. All methods may be called from any thread.
pub struct Mover {
    pub(crate) datasets: Arc<Datasets>,
    pub(crate) environment: Arc<Environment>,
    pub(crate) inner: Mutex<Inner>,
    enabled: AtomicBool,
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
                let interrupted = store_work || job.kind == JobKind::Promote;
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
            // 1 is kept for a job that the engine shows by itself.
            next_job: jobs.last_key_value().map_or(2, |(id, _)| id + 1),
            jobs,
            policies: names.collect(),
            pins: Pins::load(store)?,
            candidates: Candidates::default(),
            paces: HashMap::new(),
            next_policy: 0,
            next_heat: now + HEAT_INTERVAL,
            left_alone: HashMap::new(),
        };
        Ok(Self {
            datasets,
            environment,
            inner: Mutex::new(inner),
            enabled: AtomicBool::new(true),
        })
    }

    /// The settings of the tiers, fastest first; in force from the next step on.
    pub fn set_policies(&self, policies: Vec<TierPolicy>) {
        let mut inner = self.inner.lock();
        inner.policies = policies;
        inner.next_policy = 0;
        inner.left_alone.clear();
    }

    /// `migration=on|off`: with `false`, nothing is moved between tiers from now on (a step that runs ends).
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::SeqCst);
    }

    /// Whether content may be moved between tiers.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::SeqCst)
    }

    /// Does one bounded piece of work: looks at the policies when it is time, then works on the oldest job that may.
    pub fn step(&self) -> Result<Step, StoreError> {
        let Some(mut inner) = self.inner.try_lock() else {
            return Ok(Step::Idle { wait: SECOND / 10 });
        };
        let now = self.environment.clock.monotonic_nanoseconds();
        if now >= inner.next_heat {
            inner.next_heat = now + HEAT_INTERVAL;
            self.keep_heat()?;
        }
        if now >= inner.next_policy {
            inner.next_policy = now + POLICY_INTERVAL;
            if self.is_enabled() {
                self.look_at_tiers(&mut inner, now)?;
                self.find_hot(&mut inner);
            }
        }
        let mut wait = inner.next_policy.saturating_sub(now).max(1);
        if !inner.candidates.is_empty() && self.is_enabled() {
            match self.promote_step(&mut inner, now)? {
                0 => return Ok(Step::More),
                pause => wait = wait.min(pause),
            }
        }
        let ids: Vec<u64> = inner
            .jobs
            .iter()
            .filter(|(_, job)| self.may_run(job))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            match self.work(&mut inner, id, now)? {
                0 => return Ok(Step::More),
                pause => wait = wait.min(pause),
            }
        }
        Ok(Step::Idle { wait })
    }

    fn may_run(&self, active: &Active) -> bool {
        active.job.state == JobState::Running
            && active.job.kind != JobKind::Promote
            && (self.is_enabled() || !active.job.kind.migrates())
    }

    /// Works on a job; returns 0, or for how long it must wait.
    fn work(&self, inner: &mut Inner, id: u64, now: u64) -> Result<u64, StoreError> {
        let Some(mut active) = inner.jobs.remove(&id) else {
            return Ok(0);
        };
        let result = if active.job.kind.migrates() {
            self.migrate(inner, &mut active, now)
        } else {
            self.store_step(&mut active, now)
        };
        let pause = match result {
            Ok(pause) => pause,
            Err(error @ StoreError::Stopped(_)) => {
                inner.jobs.insert(id, active);
                return Err(error);
            }
            Err(error) => {
                if active.job.kind == JobKind::Demote {
                    inner.left_alone.insert(active.job.source, now + BACKOFF);
                }
                active.job.fail(error.to_string());
                0
            }
        };
        let persist = active.job.state.is_over() || now >= active.persisted + PERSIST_INTERVAL;
        if pause == 0 && persist {
            active.persisted = now;
            self.persist(id, &active.job)?;
        }
        inner.jobs.insert(id, active);
        self.forget_ended(inner)?;
        Ok(pause)
    }

    fn store_step(&self, active: &mut Active, now: u64) -> Result<u64, StoreError> {
        let Some(steps) = &mut active.steps else {
            active.job.state = JobState::Cancelled;
            return Ok(0);
        };
        let work = steps.step(STEP_BYTES)?;
        active.job.done_bytes = active.job.done_bytes.saturating_add(work.bytes);
        active.job.total_bytes = work.total_bytes.max(active.job.done_bytes);
        active.count(work.bytes, now);
        if let Some(note) = work.note {
            active.job.reason = note;
        }
        if work.finished {
            active.job.finish();
            active.steps = None;
        }
        Ok(0)
    }

    /// One step of a demotion or a move.
    fn migrate(&self, inner: &mut Inner, active: &mut Active, now: u64) -> Result<u64, StoreError> {
        let store = self.environment.store.as_ref();
        let by_hand = active.job.kind == JobKind::Move;
        let minute = minute_of_day(self.environment.clock.now_nanoseconds());
        if !by_hand && !in_window(&inner.policies, active.job.source, minute) {
            active.waiting = Some("waiting for its window");
            return Ok(60 * SECOND);
        }
        let pause = self.pause_for(inner, active.job.target, now);
        if pause > 0 {
            active.waiting = None;
            return Ok(pause);
        }
        active.waiting = None;
        let job = &mut active.job;
        let page = match job.kind {
            JobKind::Demote => plan::next_of_pool(store, &job.cursor, STEP_RECORDS)?,
            _ => plan::next_of_dataset(store, job.dataset, job.body, &job.cursor, STEP_RECORDS)?,
        };
        let mut chunks = HashMap::new();
        let mut looked_at = 0;
        let mut stopped = None;
        for found in &page.found {
            if chunks.values().sum::<u64>() >= STEP_BYTES {
                stopped = Some(keys::region(found.dataset, found.body, found.region));
                break;
            }
            looked_at += u64::from(found.record.mapped_blocks()) * 4096;
            let wanted = match job.kind {
                JobKind::Demote => self.is_cold(inner, job, found),
                _ => true,
            };
            if wanted {
                let (source, target) = (job.source, job.target);
                plan::chunks_where(store, &found.record, &mut chunks, |tier| match by_hand {
                    true => tier != target,
                    false => tier == source,
                })?;
            }
        }
        let in_history =
            job.kind == JobKind::Demote && !matches!(job.cursor.first(), Some(&keys::TABLE_REGION));
        let moved = self.rewrite(inner, job.target, &chunks, now)?;
        // A page cut short is looked at again from its start; what was moved is not moved twice.
        match stopped {
            Some(next) if !in_history => job.cursor = next,
            Some(_) if moved > 0 => {}
            _ => match page.next {
                Some(next) => job.cursor = next,
                None => {
                    job.cursor = Vec::new();
                    job.pass += 1;
                }
            },
        }
        job.done_bytes = job
            .done_bytes
            .saturating_add(if by_hand { looked_at } else { moved });
        let over = match job.kind {
            JobKind::Demote => job.done_bytes >= job.total_bytes || usize::from(job.pass) >= PASS_HEAT.len(),
            _ => job.pass > 0,
        };
        if over {
            job.finish();
        }
        active.count(moved, now);
        Ok(0)
    }

    fn is_cold(&self, inner: &Inner, job: &Job, found: &plan::Found) -> bool {
        let source = inner
            .policies
            .get(usize::from(job.source))
            .map(|policy| policy.name.as_str());
        let pinned = match inner.pins.of_body(found.dataset, found.body) {
            Some(tier) => Some(tier.to_owned()),
            None => self
                .datasets
                .state_by_number(found.dataset)
                .and_then(|state| state.settings().pin.clone()),
        };
        if pinned.is_some() && pinned.as_deref() == source {
            return false;
        }
        let minutes = self.minutes();
        let region = u32::try_from(found.region).unwrap_or(u32::MAX);
        let heat = self
            .environment
            .heat
            .of(found.dataset, found.body, region, minutes);
        let limit = PASS_HEAT
            .get(usize::from(job.pass))
            .copied()
            .unwrap_or(f32::INFINITY);
        heat.reads + heat.writes <= limit
    }

    /// For how long the tier may not be written to.
    pub(crate) fn pause_for(&self, inner: &mut Inner, target: u8, now: u64) -> u64 {
        let limit = inner
            .policies
            .get(usize::from(target))
            .map_or(0, |policy| policy.rate_limit);
        inner.paces.entry(target).or_default().wait(limit, now)
    }

    /// Moves chunks to a tier; returns the stored bytes moved.
    pub(crate) fn rewrite(
        &self,
        inner: &mut Inner,
        target: u8,
        chunks: &HashMap<ChunkId, u64>,
        _now: u64,
    ) -> Result<u64, StoreError> {
        if chunks.is_empty() {
            return Ok(0);
        }
        let mut ids: Vec<ChunkId> = chunks.keys().copied().collect();
        ids.sort_unstable();
        let placement = Placement::Tier {
            tier: target,
            strict: true,
        };
        let outcome = self.environment.store.rewrite(&ids, placement)?;
        let limit = inner
            .policies
            .get(usize::from(target))
            .map_or(0, |policy| policy.rate_limit);
        inner
            .paces
            .entry(target)
            .or_default()
            .take(limit, outcome.moved_bytes);
        Ok(outcome.moved_bytes)
    }

    /// Starts a demotion for each tier above its high-water mark.
    fn look_at_tiers(&self, inner: &mut Inner, now: u64) -> Result<(), StoreError> {
        let tiers = self.environment.store.space().tiers;
        inner.pins.find_bodies(self.environment.store.as_ref())?;
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
            let filled = tier.used_bytes.max(tier.live_bytes);
            if busy
                || inner.left_alone.get(&source).is_some_and(|until| now < *until)
                || filled as f64 <= policy.high_water * tier.size_bytes as f64
            {
                continue;
            }
            // What is not live comes back by compaction; only live content has to move.
            let low = (policy.low_water * tier.size_bytes as f64) as u64;
            let total_bytes = tier.live_bytes.saturating_sub(low);
            let Some(target) = room_below(&tiers, &inner.policies, source) else {
                continue;
            };
            if total_bytes == 0 {
                continue;
            }
            let percent = filled * 100 / tier.size_bytes.max(1);
            let reason = format!(
                "tier '{}' is {percent} % full; moving the coldest down to '{}' until {:.0} %",
                tier.name,
                tiers
                    .get(usize::from(target))
                    .map_or("", |tier| tier.name.as_str()),
                policy.low_water * 100.0
            );
            let job = self.new_job(JobKind::Demote, reason, total_bytes, source, target);
            self.add(inner, job, None)?;
        }
        Ok(())
    }

    pub(crate) fn new_job(
        &self,
        kind: JobKind,
        reason: String,
        total_bytes: u64,
        source: u8,
        target: u8,
    ) -> Job {
        Job {
            kind,
            state: JobState::Running,
            reason,
            started: self.environment.now(),
            done_bytes: 0,
            total_bytes,
            source,
            target,
            dataset: 0,
            body: 0,
            pass: 0,
            cursor: Vec::new(),
        }
    }

    /// Numbers a job and keeps it.
    pub(crate) fn add(
        &self,
        inner: &mut Inner,
        job: Job,
        steps: Option<Box<dyn StoreSteps>>,
    ) -> Result<u64, StoreError> {
        let id = inner.next_job;
        self.persist(id, &job)?;
        inner.next_job += 1;
        let mut active = Active::new(job, self.environment.clock.monotonic_nanoseconds());
        active.steps = steps;
        inner.jobs.insert(id, active);
        Ok(id)
    }

    pub(crate) fn persist(&self, id: u64, job: &Job) -> Result<(), StoreError> {
        let mut batch = Batch::new();
        batch.privileged();
        batch.put(Job::key(id), job.encode());
        self.environment.store.commit(batch)?;
        Ok(())
    }

    /// Drops all but the newest ended jobs. The newest number stays listed, so that numbers are not used twice.
    pub(crate) fn forget_ended(&self, inner: &mut Inner) -> Result<(), StoreError> {
        let ended: Vec<u64> = inner
            .jobs
            .iter()
            .filter(|(_, active)| active.job.state.is_over())
            .map(|(id, _)| *id)
            .collect();
        if ended.len() <= ENDED_KEPT {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.privileged();
        for id in &ended[..ended.len() - ENDED_KEPT] {
            batch.delete(Job::key(*id));
            inner.jobs.remove(id);
        }
        self.environment.store.commit(batch)?;
        Ok(())
    }

    /// Keeps some of the heat that changed, so that it survives a restart.
    fn keep_heat(&self) -> Result<(), StoreError> {
        let mut batch = Batch::new();
        for (dataset, body, encoded) in self.environment.heat.take_changed(256) {
            let known = self
                .datasets
                .state_by_number(dataset)
                .is_some_and(|state| !state.is_gone());
            if known && encoded.len() <= HEAT_BYTES_MAX {
                batch.put(keys::heat(dataset, body), encoded);
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        match self.environment.store.commit(batch) {
            // Heat is a hint: a full pool does without.
            Err(StoreError::NoSpace) => Ok(()),
            other => other.map(drop),
        }
    }

    pub(crate) fn minutes(&self) -> u32 {
        (self.environment.clock.now_nanoseconds() / (60 * SECOND)) as u32
    }
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

/// The first slower tier that has room below its high-water mark.
fn room_below(tiers: &[TierUsage], policies: &[TierPolicy], source: u8) -> Option<u8> {
    let slower = usize::from(source) + 1..tiers.len();
    slower
        .into_iter()
        .find(|at| has_room(&tiers[*at], policies.get(*at), 0))
        .map(|at| at as u8)
}

/// Whether a tier stays below its high-water mark with `bytes` more.
pub(crate) fn has_room(tier: &TierUsage, policy: Option<&TierPolicy>, bytes: u64) -> bool {
    let high = policy.map_or(1.0, |policy| policy.high_water);
    (tier.live_bytes.saturating_add(bytes) as f64) < high * tier.size_bytes as f64
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
