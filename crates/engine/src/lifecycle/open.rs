//! Making and opening a pool: devices, labels, store, datasets, mover, and the threads that drive them.
//!
//! Invariants: devices that hold a pool are not overwritten unless that is asked for; nothing runs in a thread before the
//! settings that the pool keeps are in force.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64},
};

use parking_lot::Mutex;
use terrace_cache::Budget;
use terrace_chunk::ChunkStore;
use terrace_dataset::{Datasets, Environment};
use terrace_device::{Device, MemoryDevice};
use terrace_mover::Mover;
use terrace_pool::{CreateOptions, Parallelism, Pool, TierSettings};
use terrace_store::Store;

use super::{pool_properties, settings::DEVICE_TIMEOUT_DEFAULT};
use crate::{
    EngineError, OpenOptions, PoolSpec,
    background::Workers,
    devices::{Joining, JoiningDevice, Leaving, Resilvering, by_tier, undo},
    engine::Engine,
    integrity::{Met, Scrub},
    reporting::{Alarms, Journal, given_up_in_words},
    resident::Resident,
};

impl Engine {
    /// Makes a pool: opens or makes the devices of the spec, labels them, and opens it. Devices that hold anything are
    /// refused unless `force` is set, before any of them is touched.
    ///
    /// # Errors
    /// `Invalid` for a spec that makes no sense, `Device` and `Pool` for what the devices say.
    pub fn create(spec: &PoolSpec, force: bool, options: OpenOptions) -> Result<Arc<Self>, EngineError> {
        let joining = Self::plan_creating(spec, force)?;
        Self::rehearse(spec, &joining.devices())?;
        let made = joining.make()?;
        let tiers = by_tier(&made, spec.tiers.iter().map(|tier| tier.devices.len()));
        let created = Self::create_with(spec, tiers, force, options);
        if created.is_err() {
            undo(made);
        }
        created
    }

    /// What [`create`](Self::create) would make devices of, in the order of the spec; nothing is made or changed.
    ///
    /// # Errors
    /// As `create`, as far as the devices go.
    pub fn plan(spec: &PoolSpec, force: bool) -> Result<Vec<JoiningDevice>, EngineError> {
        let planned = Self::plan_creating(spec, force)?.devices();
        Self::rehearse(spec, &planned)?;
        Ok(planned)
    }

    fn plan_creating(spec: &PoolSpec, force: bool) -> Result<Joining, EngineError> {
        let joining = Joining::of(spec.tiers.iter().flat_map(|tier| &tier.devices), force)?;
        for device in joining.devices() {
            terrace_pool::check_device_size(&device.path, device.size_bytes)?;
        }
        Ok(joining)
    }

    /// Makes the pool in memory, where it has properties of datasets: what it has no room for is known once it is made, and then
    /// what was on the devices is lost.
    fn rehearse(spec: &PoolSpec, planned: &[JoiningDevice]) -> Result<(), EngineError> {
        if spec
            .properties
            .keys()
            .all(|name| pool_properties::is_pool_property(name))
        {
            return Ok(());
        }
        let mut tiers = Vec::new();
        let mut planned = planned.iter();
        for tier in &spec.tiers {
            let mut devices: Vec<Arc<dyn Device>> = Vec::new();
            for device in planned.by_ref().take(tier.devices.len()) {
                devices.push(Arc::new(MemoryDevice::new(
                    device.path.clone(),
                    device.size_bytes,
                )));
            }
            tiers.push(devices);
        }
        let options = OpenOptions {
            threads: false,
            ..OpenOptions::default()
        };
        Self::create_with(spec, tiers, false, options)?.close()
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
            if pool_properties::is_pool_property(name) {
                pool_properties.insert(name.clone(), pool_properties::canonical(name, value)?);
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
            .unwrap_or_else(|| pool_properties::memory_bytes(&stored("memory")));
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
        mover.share_rates(chunks.rates().clone());
        let journal = Journal::open(&*store).map_err(|error| told(error.into()))?;
        let scrub = Scrub::of(&*store, &pool.devices(), options.clock.monotonic_nanoseconds());
        let mut engine = Self {
            opened_nanoseconds: options.clock.now_nanoseconds(),
            clock: options.clock,
            memory_override: options.memory_bytes,
            commit_interval_milliseconds: AtomicU64::new(5000),
            device_timeout_milliseconds: AtomicU64::new(DEVICE_TIMEOUT_DEFAULT.as_millis() as u64),
            behind_since_nanoseconds: AtomicU64::new(0),
            lent_nanoseconds: AtomicU64::new(0),
            resident: options.owns_process.then(Resident::default),
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
            met: Met::default(),
            randomness: options.randomness,
            pool,
            chunks,
            store,
            datasets,
            environment,
            mover,
            journal,
            event_keeper: options.events,
        };
        engine.keep_what_is_out_of_reach();
        let engine = Arc::new(engine);
        // They come before what this opening tells.
        engine.take_kept_events();
        engine.apply_tiers();
        engine.recall_cleared_heat();
        engine.apply_properties();
        engine.resume_leaving();
        if let Err(error) = engine.start_resilver() {
            engine.complain("devices", &error);
        }
        engine.await_room_for_scrubbed();
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
}

/// Of what the store may take of the memory: for records that are not yet in tables, and for what was read of tables.
pub(crate) fn shares_of_store(budget: &Budget) -> (usize, usize) {
    let store_bytes = budget.store_bytes() as usize;
    (
        store_bytes / 3,
        budget.less_excess(budget.store_bytes() / 2) as usize,
    )
}

fn parallelism(options: &OpenOptions) -> Parallelism {
    if options.threads {
        Parallelism::Threads
    } else {
        Parallelism::Sequential
    }
}
