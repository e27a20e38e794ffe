//! Jobs: the scrub, and what the mover works at.

use super::clockwork::Clockwork;
use crate::{EngineError, JobStatus, reporting::SCRUB_JOB};

impl Clockwork {
    /// Work in the background.
    pub(crate) fn jobs(&self) -> Vec<JobStatus> {
        let moves = self.mover.jobs().into_iter().map(|job| JobStatus {
            id: job.id,
            kind: job.kind.into(),
            state: job.state.into(),
            reason: job.reason,
            done_bytes: job.done_bytes,
            total_bytes: job.total_bytes,
            rate: job.rate,
            eta_seconds: job.eta_seconds,
            started: job.started,
        });
        self.integrity.scrub_job().into_iter().chain(moves).collect()
    }

    /// Pauses, resumes or cancels a job.
    pub(crate) fn change_job(&self, id: u64, action: &str) -> Result<(), EngineError> {
        match (id, action) {
            (SCRUB_JOB, "pause" | "resume" | "cancel") => self.integrity.change_scrub(action),
            (_, "pause") => Ok(self.mover.pause(id)?),
            (_, "resume") => Ok(self.mover.resume(id)?),
            (_, "cancel") => {
                self.mover.cancel(id)?;
                self.devices.drains.settle()
            }
            _ => Err(EngineError::Invalid(format!(
                "a job cannot '{action}'; it can pause, resume and cancel"
            ))),
        }
    }
}
