//! Clients that write again what a recovery lost, with the same content as before, and may be cut off again at once; and
//! the look at every copy of every chunk and of every table.

use terrace_chunk::ScrubCursor;
use terrace_store::{Compression, Placement};

use super::Run;
use crate::{
    ensure,
    hardware::{Counted, Survivors},
    run::{Check, Content},
    store::model::Value,
    trace,
};

/// Chunks that a client wrote, and how.
#[derive(Clone)]
pub(crate) struct Recent {
    /// The newest batch then.
    pub(super) after: u64,
    pub(super) contents: Vec<Content>,
    pub(super) compression: Compression,
    pub(super) dedup: bool,
    pub(super) placement: Placement,
}

/// Writes that a client remembers.
pub(super) const RECENT_MAX: usize = 12;

impl Run {
    /// Every copy of every chunk is good, unless something outside may have taken one.
    pub(super) fn check_copies(&mut self) -> Check {
        if self.storm || self.ragged || !self.rig.machine.is_powered() || self.rig.machine.lacks_a_disk() {
            return Ok(());
        }
        let progress = self.store()?.verify_step(&mut ScrubCursor::default(), u64::MAX);
        ensure!(
            progress.damaged_copies == 0 || !self.rig.machine.is_powered(),
            "{} of {} copies of chunks are bad, and nothing damaged them",
            progress.damaged_copies,
            progress.copies
        );
        // A table goes on with one copy where a device fails; a scrub makes the other anew.
        ensure!(
            progress.damaged_tables.is_empty() || self.scarred || !self.rig.machine.is_powered(),
            "nothing damaged the tables: {}",
            progress.damaged_tables.lines().join("; ")
        );
        Ok(())
    }

    /// A whole scrub.
    pub(super) fn scrub(&mut self) -> Check {
        let store = self.store()?;
        trace!(self.trace, "scrub");
        let mut cursor = ScrubCursor::default();
        for _ in 0..super::background::STEPS_MAX {
            match store.scrub_step(&mut cursor, 1 << 20) {
                Ok(progress) => {
                    ensure!(
                        (progress.damaged.is_empty()
                            && (progress.damaged_metadata.is_empty() || self.scarred))
                            || self.is_explained(),
                        "scrub found damage where there is none: {:?} {:?}",
                        progress.damaged,
                        progress.damaged_metadata
                    );
                    if progress.finished {
                        // What had lost a copy has it again.
                        self.healed = !self.is_explained();
                        self.mended = !self.is_explained();
                        return Ok(());
                    }
                }
                Err(error) => return self.after_error("scrub", &error),
            }
        }
        crate::violation!("a scrub has no end")
    }

    /// After a recovery a client writes again what was lost, as before, and may be cut off again at once.
    pub(crate) fn write_again(&mut self) -> Check {
        let newest = self.model.newest();
        let lost: Vec<Recent> = self
            .recent
            .drain(..)
            .filter(|recent| recent.after >= newest)
            .collect();
        if lost.is_empty() || self.random.chance(1, 2) {
            return Ok(());
        }
        trace!(self.trace, "{} writes are made again", lost.len());
        let flushes = self.random.chance(2, 3);
        for recent in &lost {
            let written = self.write_as(
                &recent.contents,
                recent.compression,
                recent.dedup,
                recent.placement,
                false,
            )?;
            let Some(written) = written else { return Ok(()) };
            self.held
                .extend(written.into_iter().zip(recent.contents.iter().copied()));
        }
        let key = self.key();
        self.commit(vec![(key, Some(Value::default()))], Vec::new(), false)?;
        if flushes {
            match self.random.chance(1, 2) {
                true => self.rig.machine.cut_power_after(Some(self.random.below(12))),
                false => self.stop_at_flush(Survivors::Oldest),
            }
            return self.flush();
        }
        self.cut()
    }

    /// Cut off at the flush of what was written first after an opening, so that the log is there and its data is not;
    /// and again while a client writes the same at the same place, so that the data is there and the log is the old one.
    pub(super) fn cut_off_twice(&mut self) -> Check {
        if self.storm {
            return Ok(());
        }
        self.flush()?;
        self.held.clear();
        self.recent.clear();
        self.kill()?;
        self.rig.machine.cut_power_after(None);
        for _ in 0..self.random.between(1, 3) {
            self.commit_batch()?;
        }
        self.stop_at_flush(Survivors::Newest);
        self.flush()
    }

    fn stop_at_flush(&mut self, survivors: Survivors) {
        trace!(self.trace, "power goes at the next flush: {survivors:?}");
        self.rig.machine.survivors(survivors);
        self.rig.machine.cut_power_at(Counted::Flushes, 0);
    }
}
