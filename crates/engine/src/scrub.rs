//! The scrub: everything is read and verified, in bounded steps, with progress.
//!
//! Invariants: one scrub at a time; a step holds no lock of the engine while it reads; what it found stays readable
//! until the next scrub starts.

use parking_lot::Mutex;
use terrace_chunk::{ChunkStore, ScrubCursor};
use terrace_store::StoreError;

use crate::{ScrubStatus, journal::rfc3339};

/// How much one step reads, bytes.
const STEP_BYTES: u64 = 8 << 20;
/// Most lines of damage that are kept.
const DAMAGE_LINES_MAX: usize = 100;

struct Run {
    cursor: Option<ScrubCursor>,
    started_monotonic: u64,
    status: ScrubStatus,
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
        if run.as_ref().is_some_and(|run| run.status.state == "running") {
            return false;
        }
        *run = Some(Run {
            cursor: Some(ScrubCursor::default()),
            started_monotonic: monotonic_nanoseconds,
            status: ScrubStatus {
                state: "running".into(),
                started: rfc3339(now_nanoseconds),
                total_bytes,
                ..ScrubStatus::default()
            },
        });
        true
    }

    /// Gives the running one up; false if there is none.
    pub(crate) fn cancel(&self) -> bool {
        let mut run = self.run.lock();
        match run.as_mut() {
            Some(run) if run.status.state == "running" => {
                run.status.state = "cancelled".into();
                run.cursor = None;
                true
            }
            _ => false,
        }
    }

    /// What is known of it.
    pub(crate) fn status(&self) -> Option<ScrubStatus> {
        self.run.lock().as_ref().map(|run| run.status.clone())
    }

    /// Reads the next piece. `None`: nothing to do; `Some(true)`: it has just ended.
    pub(crate) fn step(
        &self,
        chunks: &ChunkStore,
        monotonic_nanoseconds: u64,
    ) -> Result<Option<bool>, StoreError> {
        let taken = self.run.lock().as_mut().and_then(|run| run.cursor.take());
        let Some(mut cursor) = taken else { return Ok(None) };
        let outcome = chunks.scrub_step(&mut cursor, STEP_BYTES);
        let mut guard = self.run.lock();
        let Some(run) = guard.as_mut() else {
            return Ok(None);
        };
        if run.status.state != "running" {
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
        let status = &mut run.status;
        status.chunks += progress.copies;
        status.done_bytes = progress.done_bytes;
        status.total_bytes = progress.total_bytes.max(progress.done_bytes);
        status.repaired += progress.repaired;
        status.errors +=
            progress.repaired + (progress.damaged.len() + progress.damaged_metadata.len()) as u64;
        let lines = progress
            .damaged
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
        if seconds > 0.0 {
            status.rate = status.done_bytes as f64 / seconds;
        }
        status.eta_seconds =
            (status.rate > 0.0).then(|| (status.total_bytes - status.done_bytes) as f64 / status.rate);
        if progress.finished {
            status.state = "done".into();
            status.total_bytes = status.done_bytes;
            status.eta_seconds = Some(0.0);
            return Ok(Some(true));
        }
        run.cursor = Some(cursor);
        Ok(Some(false))
    }
}
