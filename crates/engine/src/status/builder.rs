//! Building [`Status`] and the I/O counters from what the floors below count. From memory alone: no device is read.

use std::sync::Arc;

use terrace_chunk::ChunkStore;
use terrace_dataset::{Datasets, Environment};
use terrace_pool::{DeviceState, Pool, Presence};
use terrace_store::{Space, Store};

use crate::{
    DeviceStatus, IoCounters, MemoryStatus, Status, TierStatus,
    background::{Clockwork, resident_bytes},
    devices::{DeviceManager, describe_lost_device},
    floors::Floors,
    integrity::Integrity,
    pool_properties,
    reporting::{fullness, rfc3339},
};

/// Of the pool, what is worth a word of history that retention keeps.
const RETAINED_PART: u64 = 100;

/// See the module.
pub(crate) struct StatusBuilder {
    pub(super) pool: Arc<Pool>,
    pub(super) chunks: Arc<ChunkStore>,
    datasets: Arc<Datasets>,
    environment: Arc<Environment>,
    opened_nanoseconds: u64,
    pub(super) integrity: Arc<Integrity>,
    pub(super) devices: Arc<DeviceManager>,
    clockwork: Arc<Clockwork>,
}

impl StatusBuilder {
    /// Of a pool that was opened just now.
    pub(crate) fn new(
        floors: &Floors,
        integrity: &Arc<Integrity>,
        devices: &Arc<DeviceManager>,
        clockwork: &Arc<Clockwork>,
    ) -> Self {
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            datasets: floors.datasets.clone(),
            environment: floors.environment.clone(),
            opened_nanoseconds: floors.clock.now_nanoseconds(),
            integrity: integrity.clone(),
            devices: devices.clone(),
            clockwork: clockwork.clone(),
        }
    }

    /// The pool as it is now.
    pub(crate) fn status(&self) -> Status {
        let space = self.chunks.space();
        let (room, room_detail) = fullness(&space, &self.pool.name(), &self.describe_retained());
        let mut status = Status {
            room: room.into(),
            room_detail,
            pool: self.pool.name(),
            pool_id: terrace_pool::format_id(&self.pool.id()),
            format_version: self.chunks.format_version().into(),
            newest_format_version: terrace_chunk::FORMAT_NEWEST.into(),
            daemon_pid: std::process::id(),
            opened: rfc3339(self.opened_nanoseconds),
            checkpoint: self.datasets.checkpoint(),
            size_bytes: space.size_bytes,
            used_bytes: space.used_bytes,
            available_bytes: space.available_bytes,
            logical_bytes: space.logical_bytes,
            unique_bytes: space.unique_bytes,
            overwritten_bytes: space.overwritten_bytes(),
            stored_bytes: space.stored_bytes,
            metadata_bytes: space.metadata_bytes,
            dedup_ratio: space.dedup_ratio(),
            compression_ratio: ratio(space.unique_bytes, space.chunk_stored_bytes),
            pending_free_bytes: space.pending_free_bytes,
            reserve_bytes: space.reserve_bytes,
            chunks: space.chunks,
            memory: self.memory(&space),
            migration: pool_properties::allows_migration(&self.pool),
            tiers: self.tier_status(),
            jobs: self.clockwork.jobs(),
            datasets: Vec::new(),
            scrub: self.integrity.scrub_status(),
            lost: self.integrity.lost_status(),
            state: String::new(),
            state_detail: String::new(),
        };
        (status.state, status.state_detail) = self.describe_health(&status);
        // Nothing has room in a pool that refuses writes after an error, and deleting files gives it none.
        if self.chunks.stopped().is_some() {
            status.room_detail.clear();
        }
        status
    }

    fn memory(&self, space: &Space) -> MemoryStatus {
        let environment = &self.environment;
        let budget = &environment.budget;
        let cache = environment.cache.counters();
        let cached = cache.bytes;
        let object_bytes = environment.caches.used_bytes();
        let heat_bytes = environment.heat_bytes();
        let front_end_bytes = environment.front_ends.bytes();
        let ledger_bytes = self.chunks.ledger_bytes();
        let others = object_bytes + heat_bytes + front_end_bytes + ledger_bytes;
        MemoryStatus {
            budget_bytes: budget.limit_bytes(),
            used_bytes: budget.dirty_bytes() + cached + space.memory.total_bytes() + others,
            dirty_bytes: budget.dirty_bytes(),
            cache_bytes: cached,
            record_bytes: space.memory.record_bytes,
            table_bytes: space.memory.table_bytes,
            append_bytes: space.memory.append_bytes,
            object_bytes,
            heat_bytes,
            front_end_bytes,
            ledger_bytes,
            resident_bytes: resident_bytes(),
            cache_hits: cache.hits,
            cache_misses: cache.misses,
        }
    }

    /// What `status`, and whoever finds no room, is told of history that retention keeps; empty where it is next to nothing.
    pub(crate) fn describe_retained(&self) -> String {
        let segment = u64::from(self.pool.segment_bytes());
        let size = self.pool.total_segments() * segment;
        self.datasets
            .retained()
            .describe((size / RETAINED_PART).max(segment))
    }

    fn tier_status(&self) -> Vec<TierStatus> {
        let space = self.chunks.space();
        let devices = self.pool.devices();
        let outdated = self.pool.outdated();
        let segment_bytes = u64::from(self.pool.segment_bytes());
        let tiers = self.pool.tiers().into_iter().enumerate();
        tiers
            .map(|(number, tier)| {
                let devices: Vec<DeviceStatus> = devices
                    .iter()
                    .filter(|device| {
                        usize::from(device.tier) == number && device.state != DeviceState::Removed
                    })
                    .map(|device| DeviceStatus {
                        path: device.path.clone(),
                        state: device.state.to_string(),
                        size_bytes: u64::from(device.segments) * segment_bytes,
                        used_bytes: u64::from(device.segments.saturating_sub(device.free_segments))
                            * segment_bytes,
                        read_errors: device.counters.read_errors,
                        write_errors: device.counters.write_errors,
                        checksum_errors: device.counters.checksum_errors,
                        number: device.number,
                        leaving: self.devices.goals.describe(device.number).into(),
                        behind: device.presence == Presence::Behind,
                        silent_since: device.silent_since.map(rfc3339),
                        outdated: outdated.contains(&device.number),
                    })
                    .collect();
                let (name, copies) = (tier.settings.name, tier.settings.copies);
                let staying = devices.iter().filter(|device| stays(device)).count();
                TierStatus {
                    copies,
                    lost_device_detail: describe_lost_device(&self.pool.name(), &name, copies, staying)
                        .unwrap_or_default(),
                    name,
                    size_bytes: devices.iter().map(|device| device.size_bytes).sum(),
                    used_bytes: devices.iter().map(|device| device.used_bytes).sum(),
                    live_bytes: (space.tiers.get(number)).map_or(0, |tier| {
                        tier.devices.iter().map(|device| device.live_bytes).sum()
                    }),
                    devices,
                }
            })
            .collect()
    }

    /// I/O counters of each device since the pool was opened.
    pub(crate) fn io_counters(&self) -> Vec<IoCounters> {
        let tiers = self.pool.tiers();
        let segment_bytes = u64::from(self.pool.segment_bytes());
        let devices = self
            .pool
            .devices()
            .into_iter()
            .filter(|device| device.state != DeviceState::Removed);
        devices
            .map(|device| IoCounters {
                tier: tiers
                    .get(usize::from(device.tier))
                    .map_or_else(String::new, |tier| tier.settings.name.clone()),
                path: device.path,
                size_bytes: u64::from(device.segments) * segment_bytes,
                used_bytes: u64::from(device.segments.saturating_sub(device.free_segments)) * segment_bytes,
                reads: device.counters.reads,
                writes: device.counters.writes,
                read_bytes: device.counters.read_bytes,
                written_bytes: device.counters.write_bytes,
                read_errors: device.counters.read_errors,
                write_errors: device.counters.write_errors,
                checksum_errors: device.counters.checksum_errors,
                read_seconds: device.counters.read_nanoseconds as f64 / 1e9,
                write_seconds: device.counters.write_nanoseconds as f64 / 1e9,
            })
            .collect()
    }
}

/// Whether new content goes to a device: one that is being shrunk stays.
pub(super) fn stays(device: &DeviceStatus) -> bool {
    matches!(&*device.leaving, "" | "shrinking")
}

fn ratio(before: u64, after: u64) -> f64 {
    if before == 0 || after == 0 {
        1.0
    } else {
        before as f64 / after as f64
    }
}
