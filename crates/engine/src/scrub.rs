//! The scrub: everything is read and verified, in bounded steps, with progress.
//!
//! Invariants: one scrub at a time; a step holds no lock of the engine while it reads; what it found stays readable
//! until the next scrub starts.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use terrace_chunk::{ChunkStore, ScrubCursor};
use terrace_store::{ChunkId, StoreError};

use crate::{
    ScrubStatus,
    damage::{DamageWalk, Damaged, DamagedFile},
    journal::rfc3339,
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
    started_monotonic: u64,
    /// Since when it is paused.
    paused_monotonic: Option<u64>,
    status: ScrubStatus,
    lost: BTreeSet<ChunkId>,
    naming: Option<DamageWalk>,
    /// The files of what has no good copy, as far as they are named, and whether these are all.
    damaged: Vec<DamagedFile>,
    all_named: bool,
}

impl Run {
    /// It is not over.
    fn is_under_way(&self) -> bool {
        matches!(self.status.state.as_str(), "running" | "paused")
    }
}

/// The running or last scrub.
#[derive(Default)]
pub(crate) struct Scrub {
    run: Mutex<Option<Run>>,
}

impl Scrub {
    /// Starts one; false if one is running already.
    pub(crate) fn start(&self, now_nanoseconds: u64, monotonic_nanoseconds: u64, total_bytes: u64) -> bool {
        let mut run = self.run.lock();
        if run.as_ref().is_some_and(Run::is_under_way) {
            return false;
        }
        *run = Some(Run {
            cursor: Some(ScrubCursor::default()),
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
