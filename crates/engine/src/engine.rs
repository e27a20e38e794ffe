//! `Engine`: an open pool and everything that runs in it.
//!
//! Invariants: what was acknowledged before [`Engine::close`] returned `Ok` is on the devices; after it nothing is
//! written any more; the threads only call what [`Engine::tick`] and [`Engine::step`] call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use terrace_cache::Budget;
use terrace_chunk::{ChunkStore, Step};
use terrace_dataset::{Datasets, Environment, Progress};
use terrace_device::{Clock, Device, Randomness, SystemRandomness};
use terrace_mover::{Mover, TierPolicy};
use terrace_pool::{CreateOptions, Landing, Parallelism, Pool, PoolState, TierSettings, landing_tier};
use terrace_store::Store;

use crate::{
    EngineError, OpenOptions, PoolSpec,
    alarms::Alarms,
    journal::{Entry, Journal, Ring},
    leaving::Leaving,
    leisure::Standing,
    losses::Losses,
    parse_duration, properties,
    report::given_up_in_words,
    resilver::Resilvering,
    scrub::Scrub,
    workers::Workers,
};

/// Most records that one step of background freeing changes.
const SWEEP_RECORDS: usize = 1000;
/// Bytes written ahead after which they are committed.
const AHEAD_BYTES_MAX: u64 = 128 << 20;

/// An open pool. All methods may be called from any thread.
pub struct Engine {
    pub(crate) pool: Arc<Pool>,
    pub(crate) chunks: Arc<ChunkStore>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) datasets: Arc<Datasets>,
    pub(crate) environment: Arc<Environment>,
    pub(crate) mover: Arc<Mover>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) journal: Journal,
    pub(crate) scrub: Scrub,
    pub(crate) leaving: Leaving,
    pub(crate) resilvering: Resilvering,
    pub(crate) losses: Arc<Losses>,
    pub(crate) randomness: Arc<dyn Randomness>,
    pub(crate) opened_nanoseconds: u64,
    memory_override: Option<u64>,
    commit_interval_milliseconds: AtomicU64,
    /// Since when the copy of the log on a slower device is behind, as far as was seen; 0: it is not.
    behind_since_nanoseconds: AtomicU64,
    /// Datasets of which metadata was out of reach when the pool was opened.
    pub(crate) kept_from_changes: Vec<String>,
    turn: AtomicU64,
    workers: Workers,
    closed: AtomicBool,
    /// Whether everything was saved; held while that is tried.
    saved: Mutex<bool>,
    last_complaint: Mutex<String>,
    pub(crate) alarms: Alarms,
}

impl Engine {
    /// Makes a pool: opens or makes the devices of the spec, labels them, and opens it. Devices that hold a pool are
    /// refused unless `force` is set.
    ///
    /// # Errors
    /// `Invalid` for a spec that makes no sense, `Device` and `Pool` for what the devices say.
    pub fn create(spec: &PoolSpec, force: bool, options: OpenOptions) -> Result<Arc<Self>, EngineError> {
        let mut tiers = Vec::new();
        for tier in &spec.tiers {
            let mut devices = Vec::new();
            for device in &tier.devices {
                if !force && let Some(pool) = terrace_pool::is_pool_member(&device.path) {
                    return Err(EngineError::Busy(format!(
                        "device '{}' belongs to pool '{pool}'; destroy that pool first, or use --force, which loses it",
                        device.path.display()
                    )));
                }
                devices.push(device.create()?);
            }
            tiers.push(devices);
        }
        Self::create_with(spec, tiers, force, options)
    }

    /// Makes a pool on devices that are open already, one list per tier of the spec (whose own device lists are
    /// ignored): for the simulator.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_on(
        spec: &PoolSpec,
        devices: Vec<Vec<Arc<dyn Device>>>,
        options: OpenOptions,
    ) -> Result<Arc<Self>, EngineError> {
        Self::create_with(spec, devices, false, options)
    }

    fn create_with(
        spec: &PoolSpec,
        devices: Vec<Vec<Arc<dyn Device>>>,
        force: bool,
        options: OpenOptions,
    ) -> Result<Arc<Self>, EngineError> {
        let mut pool_properties = std::collections::BTreeMap::new();
        let mut dataset_properties = Vec::new();
        for (name, value) in &spec.properties {
            if properties::is_pool_property(name) {
                pool_properties.insert(name.clone(), properties::canonical(name, value)?);
            } else {
                dataset_properties.push((name.as_str(), value.as_str()));
            }
        }
        let tiers = spec
            .tiers
            .iter()
            .zip(devices)
            .map(|(tier, devices)| {
                (
                    TierSettings {
                        copies: tier.copies,
                        ..TierSettings::named(&tier.name)
                    },
                    devices,
                )
            })
            .collect();
        let pool = Pool::create(
            CreateOptions {
                name: spec.name.clone(),
                tiers,
                properties: pool_properties,
                segment_bytes: spec.segment_bytes,
                created_nanoseconds: options.clock.now_nanoseconds(),
                force,
                parallelism: parallelism(&options),
            },
            &*options.randomness,
        )?;
        let engine = Self::start(Arc::new(pool), true, options)?;
        for (name, value) in dataset_properties {
            engine.datasets.set(&spec.name, name, value)?;
        }
        Ok(engine)
    }

    /// Opens the pool that these devices make up, given in any order.
    ///
    /// # Errors
    /// `Pool` if labels or roots do not agree or devices are missing, `Store` if its tables cannot be read.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Arc<Self>, EngineError> {
        let pool = Pool::open(
            devices,
            terrace_pool::OpenOptions {
                degraded: options.degraded,
                exported: options.exported,
                destroyed: options.destroyed,
                parallelism: parallelism(&options),
                ..terrace_pool::OpenOptions::default()
            },
        )?;
        Self::start(Arc::new(pool), false, options)
    }

    fn start(pool: Arc<Pool>, new: bool, options: OpenOptions) -> Result<Arc<Self>, EngineError> {
        let stored = |name: &str| pool.property(name).unwrap_or_default();
        let memory = options
            .memory_bytes
            .unwrap_or_else(|| properties::memory_bytes(&stored("memory")));
        let budget = Budget::new(memory);
        let budget = Arc::new(if options.threads {
            budget
        } else {
            budget.without_delays()
        });
        let (memtable_bytes, block_cache_bytes) = shares_of_store(&budget);
        let defaults = terrace_chunk::Options::default();
        let chunk_options = terrace_chunk::Options {
            memtable_bytes,
            block_cache_bytes,
            threads: if options.threads {
                std::thread::available_parallelism().map_or(2, |n| n.get().min(8))
            } else {
                0
            },
            nonce: options.nonce.unwrap_or(defaults.nonce),
            rewind: options.rewind,
            ..defaults
        };
        let chunks = if new {
            ChunkStore::create(pool.clone(), chunk_options)?
        } else {
            ChunkStore::open(pool.clone(), chunk_options)?
        };
        let store: Arc<dyn Store> = chunks.clone();
        let environment = Arc::new(Environment {
            owner: options.owner,
            ..Environment::with_budget(store.clone(), options.clock.clone(), budget)
        });
        let told = |error: EngineError| chunks.metadata_is_away().map_or(error, EngineError::Store);
        let datasets = Datasets::open(environment.clone(), &pool.name());
        let datasets = Arc::new(datasets.map_err(|error| told(error.into()))?);
        datasets.relieve();
        let mover = Arc::new(Mover::open(datasets.clone()).map_err(|error| told(error.into()))?);
        let journal = Journal::open(&*store).map_err(|error| told(error.into()))?;
        let scrub = Scrub::of(&*store, &pool.devices(), options.clock.monotonic_nanoseconds());
        let mut engine = Self {
            opened_nanoseconds: options.clock.now_nanoseconds(),
            clock: options.clock,
            memory_override: options.memory_bytes,
            commit_interval_milliseconds: AtomicU64::new(5000),
            behind_since_nanoseconds: AtomicU64::new(0),
            kept_from_changes: Vec::new(),
            turn: AtomicU64::new(0),
            workers: Workers::default(),
            closed: AtomicBool::new(false),
            saved: Mutex::new(false),
            last_complaint: Mutex::new(String::new()),
            alarms: Alarms::default(),
            scrub,
            leaving: Leaving::default(),
            resilvering: Resilvering::default(),
            losses: Arc::default(),
            randomness: options.randomness,
            pool,
            chunks,
            store,
            datasets,
            environment,
            mover,
            journal,
        };
        engine.keep_what_is_out_of_reach();
        let engine = Arc::new(engine);
        engine.apply_tiers();
        engine.apply_properties();
        engine.resume_leaving();
        if let Err(error) = engine.start_resilver() {
            engine.complain("devices", &error);
        }
        if let Some(cause) = engine.chunks.given_up() {
            engine.event("lost", &given_up_in_words(cause));
        }
        if engine.chunks.end_without().is_some() {
            engine.event("lost", crate::devices::END_WITHOUT_IN_WORDS);
        }
        engine.tell_opened(new);
        let going_on = engine.scrub.resumed_in_words();
        if !going_on.is_empty() {
            engine.event("scrub", &going_on);
        }
        if options.threads {
            engine
                .workers
                .start(&engine)
                .map_err(|error| EngineError::Invalid(format!("start threads: {error}")))?;
        }
        Ok(engine)
    }

    /// Name of the pool.
    pub fn name(&self) -> String {
        self.pool.name()
    }

    /// The pool below.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The same store with its maintenance.
    pub fn chunks(&self) -> &Arc<ChunkStore> {
        &self.chunks
    }

    /// The datasets.
    pub fn datasets(&self) -> &Arc<Datasets> {
        &self.datasets
    }

    /// Caches, budget and heat.
    pub fn environment(&self) -> &Arc<Environment> {
        &self.environment
    }

    /// The mover.
    pub fn mover(&self) -> &Arc<Mover> {
        &self.mover
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// One commit interval: commits all datasets at one moment and makes that durable, so that nothing older than the
    /// interval can be lost; returns the checkpoint that it closed.
    ///
    /// # Errors
    /// What the store says.
    pub fn tick(&self) -> Result<u64, EngineError> {
        self.check_open()?;
        let checkpoint = self.datasets.commit_all()?;
        self.store.flush(self.store.newest())?;
        self.chunks.catch_up();
        Ok(checkpoint)
    }

    /// Commits and makes durable what is due by the `commit_interval` of its dataset or of the pool, and brings the copy of
    /// the log on a slower device up to date before it is behind for as long as that of the pool. Returns for how long nothing
    /// will be due.
    ///
    /// # Errors
    /// What the store says.
    pub fn commit_due(&self) -> Result<Duration, EngineError> {
        self.check_open()?;
        let interval = self.commit_interval_milliseconds.load(Ordering::Relaxed) * 1_000_000;
        let wait = self.datasets.commit_due(interval)?;
        Ok(Duration::from_nanos(wait.min(self.catch_up_due(interval))))
    }

    /// Who looks at least every half `interval` sees what is behind within that, and ends it after another half.
    fn catch_up_due(&self, interval: u64) -> u64 {
        let now = self.clock.monotonic_nanoseconds().max(1);
        let since = match self.chunks.behind_bytes() {
            0 => 0,
            _ => match self.behind_since_nanoseconds.load(Ordering::Relaxed) {
                0 => now,
                since if now.saturating_sub(since) < interval / 2 => since,
                _ => {
                    self.chunks.catch_up();
                    0
                }
            },
        };
        self.behind_since_nanoseconds.store(since, Ordering::Relaxed);
        interval / 2
    }

    /// One bounded step of background work: store, history and scrub, mover, writing ahead in turn. Returns whether
    /// there was any.
    ///
    /// # Errors
    /// What the store says.
    pub fn step(&self) -> Result<bool, EngineError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut worked = false;
        for kind in 0..4 {
            worked = match (turn + kind) % 4 {
                0 => self.store_step()?,
                1 => self.upkeep_step()?,
                2 => self.mover_step()?.is_none(),
                _ => self.datasets.write_ahead_step(),
            };
            if worked {
                break;
            }
        }
        Ok(worked)
    }

    /// Commits, flushes and writes a checkpoint, ends the threads. Later calls of other methods fail or do nothing.
    /// After an error it may be called again: it succeeds only when everything is saved.
    ///
    /// # Errors
    /// What could not be made durable.
    pub fn close(&self) -> Result<(), EngineError> {
        let mut saved = self.saved.lock();
        if *saved {
            return Ok(());
        }
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.workers.stop();
            self.event("closed", "the pool was closed");
            // What users wrote comes first: without its heat the pool is only slower for a while.
            if let Err(error) = self.mover.save() {
                tracing::warn!("the heat of regions was not saved: {error}");
            }
            if let Err(error) = self.keep_scrub() {
                tracing::warn!("how far the scrub is was not saved: {error}");
            }
        }
        self.datasets.save_all()?;
        self.chunks.close()?;
        *saved = true;
        Ok(())
    }

    /// Closes the pool and marks it on the labels, so that only `pool import` takes it up again.
    ///
    /// # Errors
    /// As [`close`](Self::close), and if the labels cannot be written.
    pub fn close_as(&self, state: PoolState) -> Result<(), EngineError> {
        self.close()?;
        Ok(self.pool.set_state(state)?)
    }

    pub(crate) fn check_open(&self) -> Result<(), EngineError> {
        if self.closed.load(Ordering::SeqCst) {
            Err(EngineError::Closed)
        } else {
            Ok(())
        }
    }

    /// What decides how long background work rests.
    pub(crate) fn standing(&self) -> Standing {
        Standing {
            now_nanoseconds: self.clock.monotonic_nanoseconds(),
            requests: self.environment.foreground.requests(),
            free_bytes: self.chunks.landing_bytes(),
            is_pressed: self.chunks.is_pressed(),
            courtesy: self.chunks.courtesy(),
        }
    }

    pub(crate) fn store_step(&self) -> Result<bool, EngineError> {
        self.check_open()?;
        Ok(self.chunks.step()? == Step::More)
    }

    pub(crate) fn upkeep_step(&self) -> Result<bool, EngineError> {
        self.check_open()?;
        if let Err(error) = self.pool.note_failing() {
            self.complain("devices", &error.into());
        }
        self.tell_failing();
        if let Err(error) = self.take_back_out_of_step() {
            self.complain("devices", &error);
        }
        if let Err(error) = self.resilver_with_more_room() {
            self.complain("devices", &error);
        }
        let swept = self.datasets.sweep_step(SWEEP_RECORDS)? == Progress::More;
        let now = self.clock.monotonic_nanoseconds();
        let stepped = self.scrub.step(&self.chunks, &self.pool.name(), now);
        if stepped.is_err() {
            // It failed. A pool that stopped keeps where it was, and it goes on when that is opened again.
            let _ = self.keep_scrub();
        }
        let scrubbed = match stepped? {
            None => false,
            Some(false) => {
                if self.scrub.is_keeping_due(now)
                    && let Err(error) = self.keep_scrub()
                {
                    self.complain("scrub", &error);
                }
                true
            }
            Some(true) => {
                if let Some(status) = self.scrub.status() {
                    let text = format!(
                        "scrub {}: {} errors, {} repaired",
                        status.state, status.errors, status.repaired
                    );
                    self.event("scrub", &text);
                }
                self.scrub
                    .keep(&*self.store, &self.pool.devices(), self.clock.now_nanoseconds());
                // What it found is in its own list.
                self.losses.look_again();
                if self.scrub.status().is_some_and(|status| status.state == "done") {
                    self.scrubbed_all(self.scrub.is_short(), &self.scrub.behind_before())?;
                }
                true
            }
        };
        let looked = self.losses.step(&self.chunks, &self.pool.name(), now);
        Ok(swept || scrubbed || looked)
    }

    /// One step of the mover; `None`: there may be more to do, else for how long there is not.
    pub(crate) fn mover_step(&self) -> Result<Option<Duration>, EngineError> {
        self.check_open()?;
        let asked = self.chunks.sinking_asked();
        if asked.is_some() {
            self.mover.look_for_room_at_once();
        }
        let step = self.mover.step()?;
        self.chunks.set_sinking(self.mover.sinking_tiers(), asked);
        self.chunks.set_resting_from(self.mover.resting_tiers());
        let now = self.environment.clock.monotonic_nanoseconds();
        for tier in 0..self.pool.tiers().len() as u8 {
            let spacing = self.environment.foreground.spacing(Some(tier), now);
            self.chunks.set_spacing(tier, spacing);
        }
        self.settle_leaving()?;
        self.settle_resilver()?;
        match step {
            terrace_mover::Step::More => Ok(None),
            terrace_mover::Step::Idle { wait } => Ok(Some(Duration::from_nanos(wait))),
        }
    }

    /// Changes the settings of a tier; in force at once. Returns the tiers on which something lands no more, as it lands on this
    /// one now.
    ///
    /// # Errors
    /// `Pool` if there is no such tier or the labels cannot be written.
    pub fn set_tier(
        &self,
        name: &str,
        settings: TierSettings,
    ) -> Result<Vec<(String, Landing)>, EngineError> {
        self.check_open()?;
        let lands = || -> [usize; 2] {
            let tiers = self.pool.tiers();
            [true, false].map(|sequential| landing_tier(tiers.iter().map(|tier| &tier.settings), sequential))
        };
        let before = lands();
        let taken = self.pool.set_tier(name, settings)?;
        self.apply_tiers();
        // Not only once the segments that are begun are full.
        if lands() != before {
            self.chunks.land_anew()?;
        }
        Ok(taken)
    }

    pub(crate) fn apply_tiers(&self) {
        let tiers = self.pool.tiers().into_iter().map(|tier| tier.settings);
        let policies: Vec<_> = tiers
            .map(|settings| TierPolicy {
                hold: self.hold_of(&settings.name),
                name: settings.name,
                high_water: settings.high_water,
                low_water: settings.low_water,
                promote_after: settings.promote_after,
                demote_after_seconds: settings.demote_after_seconds,
                rate_limit: settings.rate_limit,
                window: settings.window,
            })
            .collect();
        self.pool
            .set_holds(policies.iter().map(|policy| policy.hold).collect());
        self.mover.set_policies(policies);
        self.chunks.set_resting_from(self.mover.resting_tiers());
    }

    /// Fill level up to which a tier keeps what is written, so that the disks below may sleep.
    pub fn hold_of(&self, tier: &str) -> Option<f64> {
        let level = self.pool.property(&hold_property(tier))?.parse::<f64>().ok()?;
        (level > 0.0 && level <= 1.0).then_some(level)
    }

    /// A tier is gone: another one of its name does not hold because that one did.
    pub(crate) fn forget_hold(&self, tier: &str) -> Result<(), EngineError> {
        let name = hold_property(tier);
        if self.pool.property(&name).is_some() {
            self.pool.set_property(&name, None)?;
        }
        Ok(())
    }

    /// Sets it; in force at once.
    ///
    /// # Errors
    /// `Invalid` for a level below the low-water mark, `Pool` if there is no such tier or the labels cannot be written.
    pub fn set_hold(&self, tier: &str, level: Option<f64>) -> Result<(), EngineError> {
        self.check_open()?;
        let tiers = self.pool.tiers();
        let Some(found) = tiers.iter().find(|found| found.settings.name == tier) else {
            return Err(EngineError::Invalid(format!("the pool has no tier '{tier}'")));
        };
        if let Some(level) = level
            && !(level > found.settings.low_water && level <= 1.0)
        {
            return Err(EngineError::Invalid(format!(
                "hold must be above low_water ({}), down to which the tier is emptied when it is reached, and at most 100%; \
                 set low_water first",
                found.settings.low_water
            )));
        }
        let text = level.map(|level| level.to_string());
        self.pool.set_property(&hold_property(tier), text.as_deref())?;
        self.apply_tiers();
        Ok(())
    }

    /// Writes ahead what streams have written; commits ahead of the interval when much else is dirty, so that writers
    /// need not wait, or when much was written ahead, so that a recovery has little to verify.
    pub(crate) fn flush_step(&self) -> Result<bool, EngineError> {
        self.check_open()?;
        if self.datasets.write_ahead_step() {
            if self.datasets.ahead_bytes() > AHEAD_BYTES_MAX {
                self.datasets.commit_all()?;
            }
            return Ok(true);
        }
        if !self.datasets.wants_flush() {
            return Ok(false);
        }
        self.datasets.commit_all()?;
        Ok(true)
    }

    /// Says an error of a worker once.
    pub(crate) fn complain(&self, worker: &str, error: &EngineError) {
        if matches!(error, EngineError::Closed) {
            return;
        }
        let text = format!("{worker}: {error}");
        let mut last = self.last_complaint.lock();
        if *last != text {
            tracing::error!("{text}");
            last.clone_from(&text);
            drop(last);
            self.event("error", &text);
        }
    }

    /// Starts a scrub in the background; false if one is running already.
    ///
    /// # Errors
    /// `Closed`.
    pub fn start_scrub(&self) -> Result<bool, EngineError> {
        self.check_open()?;
        let total = self.store.space().stored_bytes;
        let started = self.scrub.start(
            self.clock.now_nanoseconds(),
            self.clock.monotonic_nanoseconds(),
            total,
            &self.pool.devices(),
        );
        if started {
            self.event("scrub", "scrub started");
            // One that cannot be kept is worth having all the same: a device fails, perhaps.
            if let Err(error) = self.keep_scrub_durably() {
                self.complain("scrub", &error);
            }
        }
        Ok(started)
    }

    /// Writes down how far the scrub is, or that none is under way.
    fn keep_scrub(&self) -> Result<(), EngineError> {
        let now = self.clock.monotonic_nanoseconds();
        Ok(self
            .scrub
            .keep_progress(&self.chunks, &self.pool.devices(), now)?)
    }

    /// The same for what was asked for by hand: it outlasts a crash from the moment it is answered.
    pub(crate) fn keep_scrub_durably(&self) -> Result<(), EngineError> {
        self.keep_scrub()?;
        Ok(self.store.flush(self.store.newest())?)
    }

    /// Notes that something happened.
    pub fn event(&self, kind: &str, text: &str) {
        self.journal.add(
            &*self.store,
            Ring::Events,
            self.clock.now_nanoseconds(),
            kind,
            text,
        );
    }

    /// Notes a command that changed the pool.
    pub fn log_command(&self, user: &str, words: &str) {
        self.journal.add(
            &*self.store,
            Ring::Commands,
            self.clock.now_nanoseconds(),
            user,
            words,
        );
    }

    /// Events with a number of at least `from`, oldest first.
    ///
    /// # Errors
    /// What the store says.
    pub fn events(&self, from: u64) -> Result<Vec<Entry>, EngineError> {
        Ok(self.journal.read(&*self.store, Ring::Events, from, usize::MAX)?)
    }

    /// The command log, oldest first.
    ///
    /// # Errors
    /// What the store says.
    pub fn commands(&self) -> Result<Vec<Entry>, EngineError> {
        Ok(self.journal.read(&*self.store, Ring::Commands, 0, usize::MAX)?)
    }

    /// A property of the pool.
    ///
    /// # Errors
    /// `Invalid` if there is none of this name.
    pub fn property(&self, name: &str) -> Result<String, EngineError> {
        let default = properties::default_of(name)?;
        Ok(self.pool.property(name).unwrap_or_else(|| default.to_owned()))
    }

    /// All properties of the pool: name, value, whether it was set.
    pub fn properties(&self) -> Vec<(String, String, bool)> {
        let all = properties::DEFINITIONS.iter();
        all.map(|definition| {
            let value = self.pool.property(definition.name);
            let set = value.is_some();
            (
                definition.name.to_owned(),
                value.unwrap_or_else(|| definition.default.to_owned()),
                set,
            )
        })
        .collect()
    }

    /// Sets a property of the pool; it takes effect at once and is kept.
    ///
    /// # Errors
    /// `Invalid` for names and values that there are not.
    pub fn set_property(&self, name: &str, value: &str) -> Result<(), EngineError> {
        self.check_open()?;
        let value = properties::canonical(name, value)?;
        self.pool.set_property(name, Some(&value))?;
        self.apply_properties();
        Ok(())
    }

    /// Whether the mover may move data.
    pub fn migration(&self) -> bool {
        self.pool.property("migration").as_deref() != Some("off")
    }

    /// How often datasets without a `commit_interval` of their own are committed.
    pub fn commit_interval(&self) -> Duration {
        Duration::from_millis(self.commit_interval_milliseconds.load(Ordering::Relaxed))
    }

    fn apply_properties(&self) {
        let interval = self
            .pool
            .property("commit_interval")
            .and_then(|text| parse_duration(&text).ok());
        let interval = interval.unwrap_or(Duration::from_secs(5));
        self.commit_interval_milliseconds
            .store(interval.as_millis() as u64, Ordering::Relaxed);
        self.mover.set_enabled(self.migration());
        if self.memory_override.is_none() {
            let memory = properties::memory_bytes(&self.pool.property("memory").unwrap_or_default());
            if memory != self.environment.budget.limit_bytes() {
                self.environment.budget.set_limit(memory);
                self.datasets.size_caches();
                let (memtable_bytes, block_cache_bytes) = shares_of_store(&self.environment.budget);
                self.chunks.set_memory(memtable_bytes, block_cache_bytes);
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Without a clean close this is a crash: recovery replays the log. Threads must not outlive it.
        self.workers.stop();
    }
}

/// Of what the store may take of the memory: for records that are not yet in tables, and for what was read of tables.
fn shares_of_store(budget: &Budget) -> (usize, usize) {
    let store_bytes = budget.store_bytes() as usize;
    (store_bytes / 3, store_bytes / 2)
}

/// The labels' property that keeps how far a tier holds.
fn hold_property(tier: &str) -> String {
    format!("tier.{tier}.hold")
}

fn parallelism(options: &OpenOptions) -> Parallelism {
    if options.threads {
        Parallelism::Threads
    } else {
        Parallelism::Sequential
    }
}

/// Randomness of the operating system, shared.
pub(crate) fn system_randomness() -> Arc<dyn terrace_device::Randomness> {
    Arc::new(SystemRandomness)
}
