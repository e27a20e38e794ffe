//! The scrub: everything is read and verified, in bounded steps, with progress: labels and roots first, since without these a
//! device is found by no opening, then content and tables.
//!
//! Invariants: one scrub at a time; a step holds no lock of the engine while it reads; what it found stays readable
//! until the next scrub starts, and what one found that ended until the next one ends, also after a restart; one that is
//! under way when the pool is closed, or its process killed, goes on from what was kept of it last ([`Progress`]).

use std::collections::BTreeSet;

use terrace_chunk::{ChunkStore, ScrubCursor};
use terrace_pool::{DeviceInfo, DeviceState, Pool, Presence};
use terrace_store::{Batch, Store, StoreError};
use terrace_sync::{Mutex, rank};

use super::{
    damaged_files::{DamageWalk, Damaged, DamagedFile},
    scrub_progress::{self, KEEP_INTERVAL_NANOSECONDS, LOST_CHUNKS_MAX, Progress},
    scrub_record::{self, Outcome},
    scrub_run::{Run, errors_by_device},
};
use crate::{ScrubStatus, ScrubbedDevice, reporting::rfc3339};

/// How much one step reads, bytes.
const STEP_BYTES: u64 = 8 << 20;
/// Most lines of damage that are kept.
const DAMAGE_LINES_MAX: usize = 100;
/// Files that are named at most.
const FILES_MAX: usize = 1000;
/// Records that one step of that search reads.
const NAMING_RECORDS: usize = 2000;

/// A device was away, and may lack content.
pub(crate) fn is_behind(device: &&DeviceInfo) -> bool {
    device.presence == Presence::Behind && device.state != DeviceState::Missing
}

/// The running or last scrub.
#[derive(Default)]
pub(super) struct Scrub {
    run: Mutex<Option<Run>, rank::engine::Scrub>,
    /// Held while its progress is written: what is older does not take the place of what is newer.
    keeping: Mutex<(), rank::engine::ScrubProgress>,
}

impl Scrub {
    /// The one that the end of the process interrupted, which goes on, or else the last one that ended, as the pool has it. A
    /// record that cannot be read is none: it is a report, not data.
    pub(super) fn of(store: &dyn Store, devices: &[DeviceInfo], monotonic_nanoseconds: u64) -> Self {
        let record = |key: &[u8]| store.get(key).ok().flatten();
        let progress = record(&scrub_progress::KEY).and_then(|bytes| Progress::decode(&bytes).ok());
        let outcome = record(&scrub_record::KEY).and_then(|bytes| Outcome::decode(&bytes).ok());
        let run = match (progress, outcome) {
            (Some(progress), _) => Some(Run::resumed(progress, devices, monotonic_nanoseconds)),
            (None, Some(outcome)) => Some(Run {
                damaged: outcome.damaged,
                all_named: outcome.all_named,
                from_record: true,
                ..Run::new(outcome.status)
            }),
            (None, None) => None,
        };
        Self {
            run: Mutex::new(run),
            keeping: Mutex::new(()),
        }
    }

    /// What is to be told when it goes on after a restart; empty if there is none.
    pub(super) fn describe_resumed(&self) -> String {
        let run = self.run.lock();
        let Some(run) = run.as_ref().filter(|run| run.is_resumed && run.is_under_way()) else {
            return String::new();
        };
        let status = &run.status;
        let done = format!("{} of {} bytes are read", status.done_bytes, status.total_bytes);
        match &run.awaits {
            Some(_) => format!("scrub not gone on with: {done}{}", run.describe_awaited()),
            None if run.paused_monotonic.is_some() => format!("scrub is still paused: {done}"),
            None => format!("scrub goes on: {done}"),
        }
    }

    /// What keeps it from going on; empty if nothing does.
    pub(super) fn describe_awaited(&self) -> String {
        self.run
            .lock()
            .as_ref()
            .map(Run::describe_awaited)
            .unwrap_or_default()
    }

    /// Whether its progress should be kept now.
    pub(super) fn is_keeping_due(&self, monotonic_nanoseconds: u64) -> bool {
        let run = self.run.lock();
        run.as_ref()
            .filter(|run| run.is_under_way())
            .is_some_and(|run| monotonic_nanoseconds >= run.next_keep || run.status.errors > run.kept_errors)
    }

    /// Keeps how far it is, or that none is under way. Durable with the next flush.
    ///
    /// # Errors
    /// What the store says; then it is tried again after the next step.
    pub(super) fn keep_progress(
        &self,
        chunks: &ChunkStore,
        devices: &[DeviceInfo],
        monotonic_nanoseconds: u64,
    ) -> Result<(), StoreError> {
        let _keeping = self.keeping.lock();
        let progress = {
            let run = self.run.lock();
            run.as_ref().filter(|run| run.is_under_way()).map(|run| {
                let new_errors = run.status.errors > run.kept_errors;
                (run.number, run.progress(devices), new_errors)
            })
        };
        let mut batch = Batch::new();
        batch.privileged();
        let Some((number, progress, new_errors)) = progress else {
            if chunks.get(&scrub_progress::KEY)?.is_some() {
                batch.delete(scrub_progress::KEY.to_vec());
                chunks.commit(batch)?;
            }
            return Ok(());
        };
        if new_errors && progress.status.repaired > 0 {
            // Tables that it wrote anew are those of the pool from the next root on: it is not to be beyond them before.
            chunks.checkpoint()?;
        }
        batch.put(scrub_progress::KEY.to_vec(), progress.encode());
        chunks.commit(batch)?;
        if let Some(run) = self.run.lock().as_mut().filter(|run| run.number == number) {
            run.next_keep = monotonic_nanoseconds.saturating_add(KEEP_INTERVAL_NANOSECONDS);
            run.kept_errors = progress.status.errors;
        }
        Ok(())
    }

    /// It has just ended: keeps in the pool what it found, if it read everything. Durable with the next flush.
    pub(super) fn keep(&self, store: &dyn Store, devices: &[DeviceInfo], now_nanoseconds: u64) {
        let _keeping = self.keeping.lock();
        let record = {
            let mut guard = self.run.lock();
            let Some(run) = guard.as_mut().filter(|run| run.status.state == "done") else {
                return;
            };
            run.status.ended = rfc3339(now_nanoseconds);
            run.errors_after = errors_by_device(devices);
            run.status.devices = devices
                .iter()
                .map(|device| {
                    let (read_errors, checksum_errors) = run.errors_of(device);
                    ScrubbedDevice {
                        path: device.path.clone(),
                        read_errors,
                        checksum_errors,
                    }
                })
                .filter(|device| device.read_errors + device.checksum_errors > 0)
                .collect();
            run.outcome()
        };
        let mut batch = Batch::new();
        // On a full pool too: a restart would take it for one that is under way.
        batch.privileged();
        batch.put(scrub_record::KEY.to_vec(), record);
        batch.delete(scrub_progress::KEY.to_vec());
        if let Err(error) = store.commit(batch) {
            tracing::warn!("what the scrub found could not be kept for after a restart: {error}");
        }
    }

    /// Whether it could not give everything the copies that its tier keeps, for want of room.
    pub(super) fn is_short(&self) -> bool {
        let run = self.run.lock();
        run.as_ref().is_some_and(|run| run.status.short > 0)
    }

    /// What lacked copies since there was no room for them has them now; that is kept as well.
    ///
    /// # Errors
    /// What the store says; then it is looked for once more after the next start.
    pub(super) fn completed(&self, store: &dyn Store) -> Result<(), StoreError> {
        let _keeping = self.keeping.lock();
        let record = {
            let mut guard = self.run.lock();
            let is_short = |run: &&mut Run| run.status.state == "done" && run.status.short > 0;
            let Some(run) = guard.as_mut().filter(is_short) else {
                return Ok(());
            };
            run.status.short = 0;
            run.outcome()
        };
        let mut batch = Batch::new();
        batch.privileged();
        batch.put(scrub_record::KEY.to_vec(), record);
        store.commit(batch).map(drop)
    }

    /// The devices that lacked content when it began, and have it now that it has read everything.
    pub(super) fn behind_before(&self) -> Vec<u16> {
        let run = self.run.lock();
        run.as_ref()
            .map(|run| run.behind_before.clone())
            .unwrap_or_default()
    }

    /// Whether the last one ended before the pool was opened.
    pub(super) fn is_from_before(&self) -> bool {
        self.run.lock().as_ref().is_some_and(|run| run.from_record)
    }

    /// Starts one; false if one is running already.
    pub(super) fn start(
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
        let status = ScrubStatus {
            state: "running".into(),
            started: rfc3339(now_nanoseconds),
            total_bytes,
            ..ScrubStatus::default()
        };
        *run = Some(Run {
            number: run.as_ref().map_or(0, |run| run.number + 1),
            cursor: Some(ScrubCursor::default()),
            fronts_read: false,
            untold: Vec::new(),
            started_monotonic: monotonic_nanoseconds,
            next_keep: monotonic_nanoseconds.saturating_add(KEEP_INTERVAL_NANOSECONDS),
            behind_before: devices
                .iter()
                .filter(is_behind)
                .map(|device| device.number)
                .collect(),
            errors_before: errors_by_device(devices),
            ..Run::new(status)
        });
        true
    }

    /// Gives the running one up; false if there is none.
    pub(super) fn cancel(&self) -> bool {
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
    pub(super) fn pause(&self, monotonic_nanoseconds: u64) -> bool {
        let mut run = self.run.lock();
        match run.as_mut() {
            Some(run) if run.is_under_way() => {
                run.paused_monotonic.get_or_insert(monotonic_nanoseconds);
                run.awaits = None;
                run.status.state = "paused".into();
                (run.status.rate, run.status.eta_seconds) = (0.0, None);
                true
            }
            _ => false,
        }
    }

    /// Lets a paused one go on; false if none is under way.
    pub(super) fn resume(&self, monotonic_nanoseconds: u64) -> bool {
        let mut run = self.run.lock();
        match run.as_mut() {
            Some(run) if run.is_under_way() => {
                if let Some(since) = run.paused_monotonic.take() {
                    run.started_monotonic += monotonic_nanoseconds.saturating_sub(since);
                }
                run.awaits = None;
                run.status.state = "running".into();
                true
            }
            _ => false,
        }
    }

    /// What is known of it.
    pub(super) fn status(&self) -> Option<ScrubStatus> {
        self.run.lock().as_ref().map(|run| run.status.clone())
    }

    /// The same, with what was met on these devices since it was done.
    pub(super) fn status_with(&self, devices: &[DeviceInfo]) -> Option<ScrubStatus> {
        let run = self.run.lock();
        let run = run.as_ref()?;
        let mut status = run.status.clone();
        if status.state == "done" {
            let since = errors_by_device(devices)
                .into_iter()
                .map(|(number, (reads, sums))| {
                    let (reads_then, sums_then) = run.errors_after.get(&number).copied().unwrap_or_default();
                    reads.saturating_sub(reads_then) + sums.saturating_sub(sums_then)
                });
            status.errors_since = since.sum();
        }
        Some(status)
    }

    /// The files that it found damaged, and whether these are surely all of them.
    pub(super) fn damaged_files(&self) -> (Vec<DamagedFile>, bool) {
        let run = self.run.lock();
        let found = run.as_ref().map(|run| (run.damaged.clone(), run.all_named));
        found.unwrap_or((Vec::new(), true))
    }

    /// What it found since this was asked last and users are to be told, however the scrub ends.
    pub(super) fn take_untold(&self) -> Vec<String> {
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
    pub(super) fn step(
        &self,
        chunks: &ChunkStore,
        pool: &str,
        monotonic_nanoseconds: u64,
    ) -> Result<Option<bool>, StoreError> {
        let (number, mut cursor) = {
            let mut guard = self.run.lock();
            let Some(run) = guard.as_mut().filter(|run| run.paused_monotonic.is_none()) else {
                return Ok(None);
            };
            if let Some(walk) = run.naming.take() {
                let number = run.number;
                drop(guard);
                return Ok(Some(self.name_files(number, walk, chunks)));
            }
            match run.cursor.take() {
                Some(cursor) => (run.number, cursor),
                None => return Ok(None),
            }
        };
        self.read_fronts(chunks.pool());
        let outcome = chunks.scrub_step(&mut cursor, STEP_BYTES);
        let mut guard = self.run.lock();
        let Some(run) = guard.as_mut().filter(|run| run.number == number) else {
            // Another one began meanwhile.
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
            } else {
                run.lost_are_all = false;
            }
        }
        let status = &mut run.status;
        status.short += progress.short;
        status.unmended += progress.unmended;
        status.chunks += progress.copies;
        status.done_bytes = progress.done_bytes;
        status.total_bytes = progress.total_bytes.max(progress.done_bytes);
        status.repaired += progress.repaired;
        status.errors += progress.repaired + progress.unmended;
        status.errors += damaged.len() as u64 + progress.damaged_metadata.count();
        let lines = damaged
            .iter()
            .map(|chunk| {
                format!(
                    "chunk {}, {} blocks refer to it: {}",
                    chunk.id, chunk.references, chunk.cause
                )
            })
            .chain(progress.damaged_metadata.into_lines());
        let room = DAMAGE_LINES_MAX.saturating_sub(status.damage.len());
        status.damage.extend(lines.take(room));
        let seconds = monotonic_nanoseconds.saturating_sub(run.started_monotonic) as f64 / 1e9;
        if run.paused_monotonic.is_none() {
            if seconds > 0.0 {
                status.rate = status.done_bytes.saturating_sub(run.earlier_bytes) as f64 / seconds;
            }
            status.eta_seconds =
                (status.rate > 0.0).then(|| (status.total_bytes - status.done_bytes) as f64 / status.rate);
        }
        run.at = cursor.clone();
        if progress.finished && !run.lost.is_empty() {
            // They stay with it until they are named, for the case of a restart.
            run.naming = Some(DamageWalk::new(pool, Damaged::Chunks(run.lost.clone())));
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
    fn name_files(&self, number: u64, mut walk: DamageWalk, chunks: &ChunkStore) -> bool {
        let more = walk.step(chunks, NAMING_RECORDS);
        let found = (!more).then(|| walk.files(chunks));
        let mut guard = self.run.lock();
        let Some(run) = guard.as_mut().filter(|run| run.number == number) else {
            return false;
        };
        if !run.is_under_way() {
            return true;
        }
        let Some((files, whole)) = found else {
            run.naming = Some(walk);
            return false;
        };
        let whole = whole && run.lost_are_all;
        run.lost = BTreeSet::new();
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

    use super::Scrub;
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
        let scrub = Scrub::default();
        assert!(scrub.start(0, 0, 0, &[]));
        while scrub.step(engine.chunks(), "tank", 1).unwrap() == Some(false) {}
        let status = scrub.status().unwrap();
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
        while engine.datasets().sweeper().step(1000).unwrap() == terrace_dataset::Progress::More {}
        // It is still there to be read, and nobody will.
        assert_eq!(scrub(&engine), (0, Vec::new()));
        flip(&device, &content(3));
        assert_eq!(scrub(&engine), (1, vec!["tank/files/kept".to_owned()]));
    }
}
