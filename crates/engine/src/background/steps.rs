//! The bounded steps that drive an engine, from its threads or from a simulation: commits that are due, background work of
//! the store, upkeep, the mover, flushes.
//!
//! Invariants: a step of a closed engine is refused; a tick that returned has made durable all that came before it; what
//! goes wrong beside the users is complained of once, not at every step.

use std::{sync::atomic::Ordering, time::Duration};

use terrace_chunk::Step;
use terrace_dataset::Progress;

use crate::{EngineError, engine::Engine, lifecycle::shares_of_store, reporting::resident_bytes};

/// Most records that one step of background freeing changes.
const SWEEP_RECORDS: usize = 1000;

/// Bytes written ahead after which they are committed.
const AHEAD_BYTES_MAX: u64 = 128 << 20;
/// Where room is short this part of what there is, but so much at least: a commit costs records, however little it has.
const AHEAD_PART: u64 = 8;
const AHEAD_BYTES_MIN: u64 = 16 << 20;

/// Of the fastest tier, the part that may be dirty in memory at a time, unless that is less than so many bytes: what overwrites
/// needs its room there before what it overwrites gives any back, and with much memory for a small tier the rest of it went to a
/// slower one.
const DIRTY_PART: u64 = 5;
const DIRTY_BYTES_MIN: u64 = 64 << 20;

/// How often it is looked at which memory nobody uses, nanoseconds.
const LEND_NANOSECONDS: u64 = 1_000_000_000;

/// How often it is looked within `device_timeout` whether the devices answer.
const LOOKS_AT_DEVICES: u32 = 8;

impl Engine {
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

    pub(crate) fn store_step(&self) -> Result<bool, EngineError> {
        self.check_open()?;
        let now = self.clock.monotonic_nanoseconds();
        self.lend_memory(now);
        self.chunks.rates().refresh(now);
        Ok(self.chunks.step()? == Step::More)
    }

    /// Lends readers what memory nobody else uses.
    fn lend_memory(&self, now: u64) {
        let last = self.lent_nanoseconds.load(Ordering::Relaxed);
        if now.saturating_sub(last) >= LEND_NANOSECONDS {
            self.lent_nanoseconds.store(now, Ordering::Relaxed);
            let mut sizes = self.pool.tiers().into_iter().map(|tier| tier.size_bytes);
            let fastest_bytes = sizes.find(|bytes| *bytes > 0).unwrap_or(u64::MAX);
            let dirty_most = (fastest_bytes / DIRTY_PART).max(DIRTY_BYTES_MIN);
            // What front ends keep, and what is known of chunks and segments, comes out of what would be lent.
            let others_bytes = self.environment.front_end_bytes.load(Ordering::Relaxed);
            let store_bytes = self.chunks.memory().total_bytes() + self.chunks.ledger_bytes();
            self.environment
                .lend_memory(store_bytes + others_bytes, dirty_most);
            self.environment.caches.relieve_all();
            self.keep_resident(now);
        }
    }

    /// Keeps what the process holds within the budget, as far as it serves this pool alone.
    fn keep_resident(&self, now: u64) {
        let Some(resident) = &self.resident else { return };
        let requests = self.standing().requests;
        let held_bytes = resident_bytes();
        let verdict = resident.judge(&self.environment.budget, held_bytes, requests, now);
        if self.environment.set_excess_memory(verdict.excess_bytes) {
            let (memtable_bytes, block_cache_bytes) = shares_of_store(&self.environment.budget);
            self.chunks.set_memory(memtable_bytes, block_cache_bytes);
        }
        if verdict.trims {
            terrace_device::give_spare_memory_back();
        }
    }

    /// Looks whether the devices answer; says how long to wait until the next look. Asks none of them for anything, and takes no lock
    /// that somebody may hold who waits for one.
    pub fn watch_devices(&self) -> Duration {
        let timeout = self.device_timeout();
        self.pool.look_at_devices(
            self.clock.monotonic_nanoseconds(),
            self.clock.now_nanoseconds(),
            timeout.as_nanos() as u64,
        );
        (timeout / LOOKS_AT_DEVICES).min(Duration::from_secs(1))
    }

    pub(crate) fn upkeep_step(&self) -> Result<bool, EngineError> {
        self.check_open()?;
        if let Err(error) = self.chunks.note_failing() {
            self.complain("devices", &error.into());
        }
        self.tell_failing();
        self.tell_silent();
        self.tell_unretained();
        self.tell_stopped();
        self.tell_unreadable();
        if let Err(error) = self.take_back_out_of_step() {
            self.complain("devices", &error);
        }
        if let Err(error) = self.resilver_with_more_room() {
            self.complain("devices", &error);
        }
        let swept = match self.datasets.sweep_step(SWEEP_RECORDS) {
            Ok(progress) => progress == Progress::More,
            // What it cannot read keeps nobody from the rest, of all things not from a scrub.
            Err(error) => {
                self.complain("history", &error.into());
                false
            }
        };
        let now = self.clock.monotonic_nanoseconds();
        let stepped = self.scrub.step(&self.chunks, &self.pool.name(), now);
        if stepped.is_err() {
            // It failed. A pool that stopped keeps where it was, and it goes on when that is opened again.
            let _ = self.keep_scrub();
        }
        let scrubbed = stepped?;
        for text in self.scrub.take_untold() {
            self.event("device", &text);
        }
        if scrubbed == Some(false)
            && self.scrub.is_keeping_due(now)
            && let Err(error) = self.keep_scrub()
        {
            self.complain("scrub", &error);
        }
        if scrubbed == Some(true) {
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
                self.met.scrubbed(&self.chunks);
                let status = self.scrub.status().unwrap_or_default();
                let short = status.short_in_words(&self.pool.name());
                if !short.is_empty() {
                    self.event("scrub", &short);
                }
                self.scrubbed_all(&status, &self.scrub.behind_before())?;
            }
        }
        let looked = self.losses.step(&self.chunks, &self.pool.name(), now);
        let met = self.met.step(&self.chunks, &self.pool.name(), now);
        Ok(swept || scrubbed.is_some() || looked || met)
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
        let left = self.settle_leaving();
        self.settle_resilver()?;
        left?;
        match step {
            terrace_mover::Step::More => Ok(None),
            terrace_mover::Step::Idle { wait } => Ok(Some(Duration::from_nanos(wait))),
        }
    }

    /// Writes ahead what streams have written; commits ahead of the interval when much else is dirty, so that writers
    /// need not wait, or when much was written ahead, so that a recovery has little to verify.
    pub(crate) fn flush_step(&self) -> Result<bool, EngineError> {
        self.check_open()?;
        let worked = self.datasets.write_ahead_step();
        // Much may be written that leaves hardly anything dirty (`dataset/src/writing/write_through.rs`), and what it takes the place of
        // gives no room back before the commit.
        let is_much = self.environment.budget.dirty_bytes() > 0 && {
            let part = self.store.available_bytes() / AHEAD_PART;
            self.datasets.ahead_bytes() > part.clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX)
        };
        if is_much || !worked && self.datasets.wants_flush() {
            self.datasets.commit_all()?;
            return Ok(true);
        }
        Ok(worked)
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
        let volume = engine.datasets().volume("tank/v").unwrap();
        // Three times over itself: nobody reads the clock, and no commit is due but for what this brings.
        let mut commits = 0;
        for count in 0..96 {
            volume.write(count % 32 * MIB, &noise(count)).unwrap();
            let before = engine.store().newest();
            while engine.flush_step().unwrap() {}
            commits += u32::from(engine.store().newest() != before);
            assert!(engine.datasets().ahead_bytes() <= 17 * MIB);
        }
        // As many as keep room from being short, and no more.
        assert!((3..=8).contains(&commits), "{commits}");
        engine.close().unwrap();
    }
}
