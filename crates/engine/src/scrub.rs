//! The scrub: everything is read and verified, in bounded steps, with progress: labels and roots first, since without these a
//! device is found by no opening, then content and tables.
//!
//! Invariants: one scrub at a time; a step holds no lock of the engine while it reads; what it found stays readable
//! until the next scrub starts, and what one found that ended until the next one ends, also after a restart.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use terrace_chunk::{ChunkStore, ScrubCursor};
use terrace_pool::{DeviceInfo, FrontDamage, Pool};
use terrace_store::{Batch, ChunkId, Store, StoreError};

use crate::{
    ScrubStatus, ScrubbedDevice,
    damage::{DamageWalk, Damaged, DamagedFile},
    journal::rfc3339,
    scrub_record::{self, Outcome},
};

/// How much one step reads, bytes.
const STEP_BYTES: u64 = 8 << 20;
/// Most lines of damage that are kept.
const DAMAGE_LINES_MAX: usize = 100;
/// Damaged chunks whose files are looked for, at most.
const LOST_CHUNKS_MAX: usize = 100_000;
/// Files that are named at most.
const FILES_MAX: usize = 1000;
/// Records that one step of that search reads.
const NAMING_RECORDS: usize = 2000;

struct Run {
    cursor: Option<ScrubCursor>,
    /// Labels and roots were read.
    fronts_read: bool,
    /// What is still to be told as events.
    untold: Vec<String>,
    started_monotonic: u64,
    /// Since when it is paused.
    paused_monotonic: Option<u64>,
    status: ScrubStatus,
    lost: BTreeSet<ChunkId>,
    naming: Option<DamageWalk>,
    /// The files of what has no good copy, as far as they are named, and whether these are all.
    damaged: Vec<DamagedFile>,
    all_named: bool,
    /// Chunks for whose missing copies there was no room.
    short: u64,
    /// Failed reads and checksum errors of each device when it began.
    errors_before: BTreeMap<u16, (u64, u64)>,
    /// It ended before the pool was opened.
    from_record: bool,
}

impl Run {
    /// It is not over.
    fn is_under_way(&self) -> bool {
        matches!(self.status.state.as_str(), "running" | "paused")
    }

    /// Labels and roots of a device were not as they should be.
    fn note_front(&mut self, damage: &FrontDamage, pool: &str) {
        let FrontDamage {
            path, found, left, ..
        } = damage;
        self.status.errors += found.len() as u64;
        self.status.repaired += found.len().saturating_sub(left.len()) as u64;
        if left.is_empty() {
            let line = format!(
                "labels and roots of {path} were written anew: {}",
                found.join("; ")
            );
            self.untold.push(line.clone());
            self.status.mended.push(line);
        } else {
            let line = format!(
                "labels and roots of {path} cannot be written anew: {}; 'terrace pool replace {pool} {path} NEW'",
                left.join("; ")
            );
            self.untold.push(line.clone());
            self.status.damage.push(line);
        }
    }
}

/// The running or last scrub.
#[derive(Default)]
pub(crate) struct Scrub {
    run: Mutex<Option<Run>>,
}

impl Scrub {
    /// The last one that ended, as the pool has it. A record that cannot be read is none: it is a report, not data.
    pub(crate) fn of(store: &dyn Store) -> Self {
        let record = store.get(&scrub_record::KEY).ok().flatten();
        let outcome = record.and_then(|bytes| Outcome::decode(&bytes).ok());
        let run = outcome.map(|outcome| Run {
            cursor: None,
            fronts_read: true,
            untold: Vec::new(),
            started_monotonic: 0,
            paused_monotonic: None,
            status: outcome.status,
            lost: BTreeSet::new(),
            naming: None,
            damaged: outcome.damaged,
            all_named: outcome.all_named,
            short: 0,
            errors_before: BTreeMap::new(),
            from_record: true,
        });
        Self { run: Mutex::new(run) }
    }

    /// It has just ended: keeps in the pool what it found, if it read everything. Durable with the next flush.
    pub(crate) fn keep(&self, store: &dyn Store, devices: &[DeviceInfo], now_nanoseconds: u64) {
        let record = {
            let mut guard = self.run.lock();
            let Some(run) = guard.as_mut().filter(|run| run.status.state == "done") else {
                return;
            };
            run.status.ended = rfc3339(now_nanoseconds);
            run.status.devices = devices
                .iter()
                .map(|device| {
                    let (reads, sums) = run.errors_before.get(&device.number).copied().unwrap_or_default();
                    ScrubbedDevice {
                        path: device.path.clone(),
                        read_errors: device.counters.read_errors.saturating_sub(reads),
                        checksum_errors: device.counters.checksum_errors.saturating_sub(sums),
                    }
                })
                .filter(|device| device.read_errors + device.checksum_errors > 0)
                .collect();
            let outcome = Outcome {
                status: run.status.clone(),
                damaged: run.damaged.clone(),
                all_named: run.all_named,
            };
            outcome.encode()
        };
        let mut batch = Batch::new();
        batch.put(scrub_record::KEY.to_vec(), record);
        if let Err(error) = store.commit(batch) {
            tracing::warn!("what the scrub found could not be kept for after a restart: {error}");
        }
    }

    /// Whether it could not give everything the copies that its tier keeps, for want of room.
    pub(crate) fn is_short(&self) -> bool {
        self.run.lock().as_ref().is_some_and(|run| run.short > 0)
    }

    /// Whether the last one ended before the pool was opened.
    pub(crate) fn is_from_before(&self) -> bool {
        self.run.lock().as_ref().is_some_and(|run| run.from_record)
    }

    /// Starts one; false if one is running already.
    pub(crate) fn start(
        &self,
        now_nanoseconds: u64,
        monotonic_nanoseconds: u64,
        total_bytes: u64,
        devices: &[DeviceInfo],
    ) -> bool {
        let mut run = self.run.lock();
        if run.as_ref().is_some_and(Run::is_under_way) {
            return false;
        }
        *run = Some(Run {
            cursor: Some(ScrubCursor::default()),
            fronts_read: false,
            untold: Vec::new(),
            started_monotonic: monotonic_nanoseconds,
            paused_monotonic: None,
            status: ScrubStatus {
                state: "running".into(),
                started: rfc3339(now_nanoseconds),
                total_bytes,
                ..ScrubStatus::default()
            },
            lost: BTreeSet::new(),
            naming: None,
            damaged: Vec::new(),
            all_named: true,
            short: 0,
            errors_before: devices
                .iter()
                .map(|device| {
                    let counters = &device.counters;
                    (device.number, (counters.read_errors, counters.checksum_errors))
                })
                .collect(),
            from_record: false,
        });
        true
    }

    /// Gives the running one up; false if there is none.
    pub(crate) fn cancel(&self) -> bool {
        let mut run = self.run.lock();
        match run.as_mut() {
            Some(run) if run.is_under_way() => {
                run.status.state = "cancelled".into();
                run.cursor = None;
                run.naming = None;
                true
            }
            _ => false,
        }
    }

    /// Stops the running one until it is resumed; false if there is none.
    pub(crate) fn pause(&self, monotonic_nanoseconds: u64) -> bool {
        let mut run = self.run.lock();
        match run.as_mut() {
            Some(run) if run.is_under_way() => {
                run.paused_monotonic.get_or_insert(monotonic_nanoseconds);
                run.status.state = "paused".into();
                (run.status.rate, run.status.eta_seconds) = (0.0, None);
                true
            }
            _ => false,
        }
    }

    /// Lets a paused one go on; false if none is under way.
    pub(crate) fn resume(&self, monotonic_nanoseconds: u64) -> bool {
        let mut run = self.run.lock();
        match run.as_mut() {
            Some(run) if run.is_under_way() => {
                if let Some(since) = run.paused_monotonic.take() {
                    run.started_monotonic += monotonic_nanoseconds.saturating_sub(since);
                }
                run.status.state = "running".into();
                true
            }
            _ => false,
        }
    }

    /// What is known of it.
    pub(crate) fn status(&self) -> Option<ScrubStatus> {
        self.run.lock().as_ref().map(|run| run.status.clone())
    }

    /// The files that it found damaged, and whether these are surely all of them.
    pub(crate) fn damaged_files(&self) -> (Vec<DamagedFile>, bool) {
        let run = self.run.lock();
        let found = run.as_ref().map(|run| (run.damaged.clone(), run.all_named));
        found.unwrap_or((Vec::new(), true))
    }

    /// What it found since this was asked last and users are to be told, however the scrub ends.
    pub(crate) fn take_untold(&self) -> Vec<String> {
        let mut run = self.run.lock();
        run.as_mut()
            .map(|run| std::mem::take(&mut run.untold))
            .unwrap_or_default()
    }

    /// Reads labels and roots, if this one has not done so.
    fn read_fronts(&self, pool: &Pool) {
        {
            let mut guard = self.run.lock();
            let Some(run) = guard.as_mut().filter(|run| !run.fronts_read) else {
                return;
            };
            run.fronts_read = true;
        }
        let outcome = pool.mend_fronts();
        let mut guard = self.run.lock();
        let Some(run) = guard.as_mut().filter(|run| run.is_under_way()) else {
            return;
        };
        match outcome {
            Ok(damage) => damage
                .iter()
                .for_each(|damage| run.note_front(damage, &pool.name())),
            Err(error) => {
                let line = format!("labels and roots could not be written anew: {error}");
                run.status.errors += 1;
                run.status.damage.push(line.clone());
                run.untold.push(line);
            }
        }
    }

    /// Reads the next piece. `None`: nothing to do; `Some(true)`: it has just ended.
    pub(crate) fn step(
        &self,
        chunks: &ChunkStore,
        pool: &str,
        monotonic_nanoseconds: u64,
    ) -> Result<Option<bool>, StoreError> {
        let is_running = |run: &&mut Run| run.paused_monotonic.is_none();
        let naming = self
            .run
            .lock()
            .as_mut()
            .filter(is_running)
            .and_then(|run| run.naming.take());
        if let Some(walk) = naming {
            return Ok(Some(self.name_files(walk, chunks)));
        }
        let taken = self
            .run
            .lock()
            .as_mut()
            .filter(is_running)
            .and_then(|run| run.cursor.take());
        let Some(mut cursor) = taken else { return Ok(None) };
        self.read_fronts(chunks.pool());
        let outcome = chunks.scrub_step(&mut cursor, STEP_BYTES);
        let mut guard = self.run.lock();
        let Some(run) = guard.as_mut() else {
            return Ok(None);
        };
        if !run.is_under_way() {
            return Ok(Some(true));
        }
        let progress = match outcome {
            Ok(progress) => progress,
            Err(error) => {
                run.status.state = "failed".into();
                run.status.damage.push(error.to_string());
                return Err(error);
            }
        };
        // What nothing refers to any more, since it was deleted or written over, is about to be freed: nobody lost it.
        let damaged: Vec<_> = progress
            .damaged
            .into_iter()
            .filter(|chunk| chunk.references > 0)
            .collect();
        for chunk in &damaged {
            if run.lost.len() < LOST_CHUNKS_MAX {
                run.lost.insert(chunk.id);
            }
        }
        run.short += progress.short;
        let status = &mut run.status;
        status.chunks += progress.copies;
        status.done_bytes = progress.done_bytes;
        status.total_bytes = progress.total_bytes.max(progress.done_bytes);
        status.repaired += progress.repaired;
        status.errors += progress.repaired + (damaged.len() + progress.damaged_metadata.len()) as u64;
        let lines = damaged
            .iter()
            .map(|chunk| {
                format!(
                    "chunk {}, {} blocks refer to it: {}",
                    chunk.id, chunk.references, chunk.cause
                )
            })
            .chain(progress.damaged_metadata);
        let room = DAMAGE_LINES_MAX.saturating_sub(status.damage.len());
        status.damage.extend(lines.take(room));
        let seconds = monotonic_nanoseconds.saturating_sub(run.started_monotonic) as f64 / 1e9;
        if run.paused_monotonic.is_none() {
            if seconds > 0.0 {
                status.rate = status.done_bytes as f64 / seconds;
            }
            status.eta_seconds =
                (status.rate > 0.0).then(|| (status.total_bytes - status.done_bytes) as f64 / status.rate);
        }
        if progress.finished && !run.lost.is_empty() {
            run.naming = Some(DamageWalk::new(
                pool,
                Damaged::Chunks(std::mem::take(&mut run.lost)),
            ));
            return Ok(Some(false));
        }
        if progress.finished {
            status.state = "done".into();
            status.total_bytes = status.done_bytes;
            status.eta_seconds = Some(0.0);
            return Ok(Some(true));
        }
        run.cursor = Some(cursor);
        Ok(Some(false))
    }

    /// Goes on looking for the files of damaged chunks; true at the end, which is that of the scrub.
    fn name_files(&self, mut walk: DamageWalk, chunks: &ChunkStore) -> bool {
        let more = walk.step(chunks, NAMING_RECORDS);
        let found = (!more).then(|| walk.files(chunks));
        let mut guard = self.run.lock();
        let Some(run) = guard.as_mut().filter(|run| run.is_under_way()) else {
            return true;
        };
        let Some((files, whole)) = found else {
            run.naming = Some(walk);
            return false;
        };
        run.all_named = whole && files.len() <= FILES_MAX;
        run.damaged = files;
        run.damaged.truncate(FILES_MAX);
        let status = &mut run.status;
        status.files = run.damaged.iter().map(|file| file.path.clone()).collect();
        if !whole {
            status.damage.push("not all damaged files could be named".into());
        }
        status.state = "done".into();
        status.total_bytes = status.done_bytes;
        status.eta_seconds = Some(0.0);
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use terrace_dataset::{Context, FileKind, NewDataset, ROOT};
    use terrace_device::{AlignedBuffer, Device, ManualClock, MemoryDevice};

    use crate::{Engine, OpenOptions, PoolSpec, TierSpec};

    const BLOCK: usize = 4096;

    /// Content that is found by its first bytes.
    fn content(seed: u8) -> Vec<u8> {
        let bytes = (0..BLOCK).map(|at| (at as u8).wrapping_mul(seed) ^ (at >> 5) as u8 ^ seed);
        bytes.collect()
    }

    fn flip(device: &MemoryDevice, content: &[u8]) {
        let length = device.size_bytes() as usize;
        let mut bytes = AlignedBuffer::with_capacity(length);
        device.read_at(0, bytes.reuse(length)).unwrap();
        let found = bytes.windows(content.len()).position(|here| here == content);
        let at = found.unwrap() + 100;
        let page = at / BLOCK * BLOCK;
        bytes[at] ^= 4;
        let mut written = AlignedBuffer::with_capacity(BLOCK);
        written.reuse(BLOCK).copy_from_slice(&bytes[page..page + BLOCK]);
        device.write_at(page as u64, &written).unwrap();
    }

    /// Scrubs while nothing else is done: what was deleted is not freed meanwhile.
    fn scrub(engine: &Engine) -> (u64, Vec<String>) {
        assert!(engine.scrub.start(0, 0, 0, &[]));
        while engine.scrub.step(&engine.chunks, "tank", 1).unwrap() == Some(false) {}
        let status = engine.scrub.status().unwrap();
        assert_eq!(status.state, "done");
        (status.errors, status.files)
    }

    #[test]
    fn damage_that_nobody_refers_to_any_more_is_none() {
        let spec = PoolSpec {
            name: "tank".into(),
            tiers: vec![TierSpec {
                name: "disk".into(),
                devices: Vec::new(),
                copies: 1,
            }],
            ..PoolSpec::default()
        };
        let device = Arc::new(MemoryDevice::new("disk", 96 << 20));
        let options = OpenOptions::driven(Arc::new(ManualClock::new(1)), 1);
        let engine =
            Engine::create_on(&spec, vec![vec![device.clone() as Arc<dyn Device>]], options).unwrap();
        let new = NewDataset {
            properties: vec![("compression".into(), "off".into())],
            ..NewDataset::default()
        };
        engine.datasets().create("tank/files", &new).unwrap();
        let files = engine.datasets().filesystem("tank/files").unwrap();
        let root = Context::root();
        for (name, seed) in [(&b"kept"[..], 3), (b"deleted", 5)] {
            let file = files.create(&root, ROOT, name, FileKind::File, 0o600, 0).unwrap();
            files.write(&root, file.object, 0, &content(seed), false).unwrap();
        }
        files.sync().unwrap();
        assert_eq!(scrub(&engine), (0, Vec::new()));
        flip(&device, &content(5));
        assert_eq!(scrub(&engine), (1, vec!["tank/files/deleted".to_owned()]));
        files.unlink(&root, ROOT, b"deleted").unwrap();
        files.sync().unwrap();
        engine.datasets().commit_all().unwrap();
        while engine.datasets().sweep_step(1000).unwrap() == terrace_dataset::Progress::More {}
        // It is still there to be read, and nobody will.
        assert_eq!(scrub(&engine), (0, Vec::new()));
        flip(&device, &content(3));
        assert_eq!(scrub(&engine), (1, vec!["tank/files/kept".to_owned()]));
    }
}
