//! `Clockwork`: the bounded steps that drive an engine, from its threads or from a simulation: commits that are due, background work of
//! the store, upkeep, the mover, flushes.
//!
//! Invariants: a step of a closed engine is refused; a tick that returned has made durable all that came before it; what
//! goes wrong beside the users is complained of once, not at every step.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use terrace_chunk::{ChunkStore, Step};
use terrace_dataset::{Datasets, Environment, Progress};
use terrace_device::Clock;
use terrace_mover::Mover;
use terrace_pool::Pool;
use terrace_store::Store;

use super::{memory::Memory, throttle::Standing};
use crate::{
    EngineError,
    devices::DeviceManager,
    floors::Floors,
    integrity::{Integrity, ScrubStep},
    open_flag::OpenFlag,
    reporting::{Alarms, Complaints},
};

/// Most records that one step of background freeing changes.
const SWEEP_RECORDS: usize = 1000;

/// Bytes written ahead after which they are committed.
const AHEAD_BYTES_MAX: u64 = 128 << 20;
/// Where room is short this part of what there is, but so much at least: a commit costs records, however little it has.
const AHEAD_PART: u64 = 8;
const AHEAD_BYTES_MIN: u64 = 16 << 20;

/// How often it is looked within `device_timeout` whether the devices answer.
const LOOKS_AT_DEVICES: u32 = 8;

/// See the module.
pub(crate) struct Clockwork {
    pool: Arc<Pool>,
    chunks: Arc<ChunkStore>,
    datasets: Arc<Datasets>,
    environment: Arc<Environment>,
    pub(super) mover: Arc<Mover>,
    clock: Arc<dyn Clock>,
    open: Arc<OpenFlag>,
    complaints: Arc<Complaints>,
    alarms: Arc<Alarms>,
    pub(super) integrity: Arc<Integrity>,
    pub(super) devices: Arc<DeviceManager>,
    memory: Memory,
    commit_interval_milliseconds: AtomicU64,
    device_timeout_milliseconds: AtomicU64,
    /// Since when the copy of the log on a slower device is behind, as far as was seen; 0: it is not.
    behind_since_nanoseconds: AtomicU64,
    turn: AtomicU64,
}

impl Clockwork {
    /// `owns_process`: the process serves this pool alone.
    pub(crate) fn new(
        floors: &Floors,
        open: &Arc<OpenFlag>,
        reports: (&Arc<Complaints>, &Arc<Alarms>),
        integrity: &Arc<Integrity>,
        devices: &Arc<DeviceManager>,
        owns_process: bool,
    ) -> Self {
        Self {
            pool: floors.pool.clone(),
            chunks: floors.chunks.clone(),
            datasets: floors.datasets.clone(),
            environment: floors.environment.clone(),
            mover: floors.mover.clone(),
            clock: floors.clock.clone(),
            open: open.clone(),
            complaints: reports.0.clone(),
            alarms: reports.1.clone(),
            integrity: integrity.clone(),
            devices: devices.clone(),
            memory: Memory::new(floors, owns_process),
            commit_interval_milliseconds: AtomicU64::default(),
            device_timeout_milliseconds: AtomicU64::default(),
            behind_since_nanoseconds: AtomicU64::default(),
            turn: AtomicU64::default(),
        }
    }

    /// How often datasets without an interval of their own are committed, and how long a device may answer nothing.
    pub(crate) fn set_intervals(&self, commit: Duration, device_timeout: Duration) {
        let store = |at: &AtomicU64, time: Duration| at.store(time.as_millis() as u64, Ordering::Relaxed);
        store(&self.commit_interval_milliseconds, commit);
        store(&self.device_timeout_milliseconds, device_timeout);
    }

    /// See [`set_intervals`](Self::set_intervals).
    pub(crate) fn commit_interval(&self) -> Duration {
        Duration::from_millis(self.commit_interval_milliseconds.load(Ordering::Relaxed))
    }

    /// See [`set_intervals`](Self::set_intervals).
    pub(crate) fn device_timeout(&self) -> Duration {
        Duration::from_millis(self.device_timeout_milliseconds.load(Ordering::Relaxed))
    }

    /// The time of the engine.
    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// What decides how long background work rests.
    pub(super) fn standing(&self) -> Standing {
        Standing {
            now_nanoseconds: self.clock.monotonic_nanoseconds(),
            requests: self.environment.foreground.requests(),
            free_bytes: self.chunks.landing_bytes(),
            is_pressed: self.chunks.is_pressed(),
            courtesy: self.chunks.throttle_share(),
        }
    }

    /// Notes an error of a worker.
    pub(super) fn complain(&self, worker: &str, error: &EngineError) {
        self.complaints.add(worker, error);
    }

    /// One commit interval: commits all datasets at one moment and makes that durable, so that nothing older than the
    /// interval can be lost; returns the checkpoint that it closed.
    pub(crate) fn tick(&self) -> Result<u64, EngineError> {
        self.open.check()?;
        let checkpoint = self.datasets.commit_all()?;
        self.chunks.flush(self.chunks.newest())?;
        self.chunks.catch_up();
        Ok(checkpoint)
    }

    /// Commits and makes durable what is due by the `commit_interval` of its dataset or of the pool, and brings the copy of
    /// the log on a slower device up to date before it is behind for as long as that of the pool. Returns for how long nothing
    /// will be due.
    pub(crate) fn commit_due(&self) -> Result<Duration, EngineError> {
        self.open.check()?;
        let interval = self.commit_interval().as_nanos() as u64;
        let wait = self.datasets.flusher().commit_due(interval)?;
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
    pub(crate) fn step(&self) -> Result<bool, EngineError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut worked = false;
        for kind in 0..4 {
            worked = match (turn + kind) % 4 {
                0 => self.store_step()?,
                1 => self.upkeep_step()?,
                2 => self.mover_step()?.is_none(),
                _ => self.datasets.flusher().write_ahead_step(),
            };
            if worked {
                break;
            }
        }
        Ok(worked)
    }

    /// What the threads for the store and the mover would do while somebody waits for them, where there are none.
    pub(crate) fn stand_in_for_threads(&self) {
        let results = [self.store_step().map(drop), self.mover_step().map(drop)];
        for error in results.into_iter().filter_map(Result::err) {
            self.complain("background", &error);
        }
    }

    pub(super) fn store_step(&self) -> Result<bool, EngineError> {
        self.open.check()?;
        let now = self.clock.monotonic_nanoseconds();
        self.memory.lend(now);
        self.chunks.rates().refresh(now);
        Ok(self.chunks.step()? == Step::More)
    }

    /// Looks whether the devices answer; says how long to wait until the next look. Asks none of them for anything, and takes no lock
    /// that somebody may hold who waits for one.
    pub(crate) fn watch_devices(&self) -> Duration {
        let timeout = self.device_timeout();
        self.pool.look_at_devices(
            self.clock.monotonic_nanoseconds(),
            self.clock.now_nanoseconds(),
            timeout.as_nanos() as u64,
        );
        (timeout / LOOKS_AT_DEVICES).min(Duration::from_secs(1))
    }

    pub(super) fn upkeep_step(&self) -> Result<bool, EngineError> {
        self.open.check()?;
        if let Err(error) = self.chunks.note_failing() {
            self.complaints.add("devices", &error.into());
        }
        self.alarms.report();
        self.integrity.metadata.report_unreadable();
        self.devices.bring_up_to_date();
        let swept = match self.datasets.sweeper().step(SWEEP_RECORDS) {
            Ok(progress) => progress == Progress::More,
            // What it cannot read keeps nobody from the rest, of all things not from a scrub.
            Err(error) => {
                self.complaints.add("history", &error.into());
                false
            }
        };
        let now = self.clock.monotonic_nanoseconds();
        let scrubbed = match self.integrity.step_scrub(now)? {
            ScrubStep::Idle => false,
            ScrubStep::Worked => true,
            ScrubStep::Done { found, behind_before } => {
                self.devices.resilver.note_scrubbed(&found, &behind_before)?;
                true
            }
        };
        let searched = self.integrity.step_search(now);
        Ok(swept || scrubbed || searched)
    }

    /// One step of the mover; `None`: there may be more to do, else for how long there is not.
    pub(super) fn mover_step(&self) -> Result<Option<Duration>, EngineError> {
        self.open.check()?;
        let asked = self.chunks.sinking_asked();
        if asked.is_some() {
            self.mover.look_for_room_at_once();
        }
        let step = self.mover.step()?;
        self.chunks.set_sinking(self.mover.sinking_tiers(), asked);
        self.chunks.set_resting_from(self.mover.resting_tiers());
        let now = self.clock.monotonic_nanoseconds();
        for tier in 0..self.pool.tiers().len() as u8 {
            let spacing = self.environment.foreground.spacing(Some(tier), now);
            self.chunks.set_spacing(tier, spacing);
        }
        self.devices.settle()?;
        match step {
            terrace_mover::Step::More => Ok(None),
            terrace_mover::Step::Idle { wait } => Ok(Some(Duration::from_nanos(wait))),
        }
    }

    /// Writes ahead what streams have written; commits ahead of the interval when much else is dirty, so that writers
    /// need not wait, or when much was written ahead, so that a recovery has little to verify.
    pub(super) fn flush_step(&self) -> Result<bool, EngineError> {
        self.open.check()?;
        let worked = self.datasets.flusher().write_ahead_step();
        // Much may be written that leaves hardly anything dirty (`dataset/src/writing/write_through.rs`), and what it takes the place of
        // gives no room back before the commit.
        let is_much = self.environment.budget.dirty_bytes() > 0 && {
            let part = self.chunks.available_bytes() / AHEAD_PART;
            self.datasets.environment().ahead.bytes() > part.clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX)
        };
        if is_much || !worked && self.datasets.flusher().wants_flush() {
            self.datasets.commit_all()?;
            return Ok(true);
        }
        Ok(worked)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use terrace_dataset::NewDataset;
    use terrace_device::{Device, ManualClock, MemoryDevice};

    use crate::{Engine, OpenOptions, PoolSpec, TierSpec};

    const MIB: u64 = 1 << 20;

    fn noise(seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        std::iter::repeat_with(next)
            .take(MIB as usize / 8)
            .flatten()
            .collect()
    }

    #[test]
    fn a_stream_that_leaves_nothing_dirty_is_committed_before_it_has_taken_all_room() {
        let device = Arc::new(MemoryDevice::new("/disk", 160 * MIB));
        let spec = PoolSpec {
            name: "tank".into(),
            tiers: vec![TierSpec {
                name: "only".into(),
                devices: vec!["/disk".parse().unwrap()],
                copies: 1,
            }],
            ..PoolSpec::default()
        };
        let options = OpenOptions::driven(Arc::new(ManualClock::new(1)), 1);
        let engine = Engine::create_on(&spec, vec![vec![device as Arc<dyn Device>]], options).unwrap();
        let new = NewDataset {
            volume_bytes: Some(32 * MIB),
            ..NewDataset::default()
        };
        engine.datasets().create("tank/v", &new).unwrap();
        // As where writers are slowed: each stores what he writes himself.
        engine.environment().budget.set_delays(false);
        let volume = engine.datasets().volume("tank/v").unwrap();
        // Three times over itself: nobody reads the clock, and no commit is due but for what this brings.
        let mut commits = 0;
        for count in 0..96 {
            volume.write(count % 32 * MIB, &noise(count)).unwrap();
            let before = engine.store().newest();
            while engine.clockwork().flush_step().unwrap() {}
            commits += u32::from(engine.store().newest() != before);
            assert!(engine.datasets().environment().ahead.bytes() <= 17 * MIB);
        }
        // As many as keep room from being short, and no more.
        assert!((3..=8).contains(&commits), "{commits}");
        engine.close().unwrap();
    }
}
