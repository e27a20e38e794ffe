//! Making and opening a pool: devices, labels, store, datasets, mover.
//!
//! Invariant: devices that hold a pool are not overwritten unless that is asked for.

use std::sync::Arc;

use terrace_cache::Budget;
use terrace_chunk::ChunkStore;
use terrace_dataset::{Datasets, Environment};
use terrace_device::{Device, MemoryDevice};
use terrace_mover::Mover;
use terrace_pool::{CreateOptions, Parallelism, Pool, TierSettings};
use terrace_store::Store;

use super::{options::OpenOptions, spec::PoolSpec};
use crate::{
    EngineError,
    devices::{Joining, JoiningDevice},
    floors::{Floors, shares_of_store},
    pool_properties,
    reporting::EventLog,
};

/// Claims the devices of a spec; nothing is made or changed.
pub(crate) fn plan_creating(spec: &PoolSpec, force: bool) -> Result<Joining, EngineError> {
    let joining = Joining::of(spec.tiers.iter().flat_map(|tier| &tier.devices), force)?;
    for device in joining.devices() {
        terrace_pool::check_device_size(&device.path, device.size_bytes)?;
    }
    Ok(joining)
}

/// Whether a spec has what only the pool itself can refuse: properties of datasets. What it has no room for is known once it is made,
/// and then what was on the devices is lost.
pub(crate) fn wants_rehearsal(spec: &PoolSpec) -> bool {
    let is_pools = |name: &String| pool_properties::is_pool_property(name);
    !spec.properties.keys().all(is_pools)
}

/// As planned, in memory: the devices of each tier.
pub(crate) fn rehearsal_devices(spec: &PoolSpec, planned: &[JoiningDevice]) -> Vec<Vec<Arc<dyn Device>>> {
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
    tiers
}

/// Names and values.
type Properties<'a> = Vec<(&'a str, &'a str)>;

/// Makes a pool on devices that are open, one list for each tier of the spec; with the properties that its root is to have.
pub(crate) fn create_pool<'a>(
    spec: &'a PoolSpec,
    devices: Vec<Vec<Arc<dyn Device>>>,
    force: bool,
    options: &OpenOptions,
) -> Result<(Arc<Pool>, Properties<'a>), EngineError> {
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
            parallelism: parallelism(options),
        },
        &*options.randomness,
    )?;
    Ok((Arc::new(pool), dataset_properties))
}

/// Opens the pool that these devices make up.
pub(crate) fn open_pool(
    devices: Vec<Arc<dyn Device>>,
    options: &OpenOptions,
) -> Result<Arc<Pool>, EngineError> {
    let pool = Pool::open(
        devices,
        terrace_pool::OpenOptions {
            degraded: options.degraded,
            exported: options.exported,
            destroyed: options.destroyed,
            parallelism: parallelism(options),
            ..terrace_pool::OpenOptions::default()
        },
    )?;
    Ok(Arc::new(pool))
}

/// Opens the floors above a pool, and what happened in it.
pub(crate) fn open_floors(
    pool: Arc<Pool>,
    new: bool,
    options: &OpenOptions,
) -> Result<(Floors, EventLog), EngineError> {
    let stored = |name: &str| pool.property(name).unwrap_or_default();
    let memory = options
        .memory_bytes
        .unwrap_or_else(|| pool_properties::memory_bytes(&stored("memory")));
    let budget = Arc::new(Budget::new(memory));
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
        clock: options.clock.clone(),
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
    let id = terrace_pool::format_id(&pool.id());
    let events = EventLog::open(store.clone(), options.clock.clone(), id, options.events.clone());
    let events = events.map_err(|error| told(error.into()))?;
    let floors = Floors {
        pool,
        chunks,
        store,
        environment,
        datasets,
        mover,
        clock: options.clock.clone(),
    };
    Ok((floors, events))
}

fn parallelism(options: &OpenOptions) -> Parallelism {
    if options.threads {
        Parallelism::Threads
    } else {
        Parallelism::Sequential
    }
}
