//! What makes changes durable: fsync and flush, ticks of the clock, and checkpoints of the store.
//!
//! What must hold: what a call has made durable, by the promise of its dataset, is behind every later opening; nothing
//! older than the commit interval is ever lost, but for what is kept in RAM alone; a full pool refuses the writer, and
//! takes what it has accepted.

use terrace_dataset::FsError;

use super::Run;
use crate::{ensure, fs::state::Promise, trace, violation::Check};

impl Run {
    pub(super) fn fsync(&mut self) -> Check {
        if !self.volumes.is_empty() && self.random.chance(1, 5) {
            let volume = &mut self.volumes[0];
            let Some(handle) = volume.handle.clone() else {
                return Ok(());
            };
            // The second asks for it whatever the volume's durability.
            let whatever = !self.random.chance(1, 2);
            let done = match whatever {
                false => handle.flush(),
                true => handle.flush_always(),
            };
            return match done {
                Ok(()) => {
                    trace!(self.trace, "{}: flushed", volume.name);
                    if whatever || volume.promise.covers_flush() {
                        volume.history.synced();
                        self.flushed();
                    }
                    Ok(())
                }
                Err(error) => self.after_error("flush of a volume", &error),
            };
        }
        let index = self.random.index(self.filesystems.len());
        let filesystem = &mut self.filesystems[index];
        let Some(handle) = filesystem.handle.clone() else {
            return Ok(());
        };
        let result = if self.random.chance(1, 2) {
            handle.sync()
        } else {
            handle.sync_object(crate::fs::state::ROOT)
        };
        match result {
            Ok(()) => {
                trace!(self.trace, "{}: fsync", filesystem.name);
                if filesystem.promise.covers_flush() {
                    filesystem.history.synced();
                    self.flushed();
                }
                Ok(())
            }
            Err(error) => {
                self.not_refused_late("fsync", error == FsError::NoSpace)?;
                self.after_error("fsync", &error)
            }
        }
    }

    /// A full pool refuses the writer; what it has accepted it also takes. (Small change apart: on a pool without any
    /// room a truncated block is kept in the reserve as long as that lasts.)
    fn not_refused_late(&self, doing: &str, full: bool) -> Check {
        let much = self.accepted_bytes > 256 << 10;
        ensure!(
            !full || !much || self.storm || self.hurt || !self.rig.machine.is_powered(),
            "{doing}: the pool is too full for {} bytes that it had accepted",
            self.accepted_bytes
        );
        Ok(())
    }

    pub(crate) fn tick(&mut self) -> Check {
        let engine = self.engine()?;
        let seconds = match self.random.below(30) {
            0 => self.random.between(1000, 9000),
            1..=3 => self.random.between(30, 200),
            _ => 5,
        };
        self.rig.machine.clock.advance(seconds * 1_000_000_000);
        let before = self.now_seconds();
        // What a clock of the test's asks for, or what the daemon's does.
        let of_daemon = self.random.chance(1, 3);
        let first = engine.datasets().checkpoint();
        let done = match of_daemon {
            false => engine.tick().map(drop),
            true => engine.commit_due().map(drop),
        };
        let closed = first..=engine.datasets().checkpoint() - 1;
        match done {
            Ok(()) => {
                trace!(self.trace, "checkpoints {closed:?}");
                // Nothing older than the commit interval is ever lost, whatever fsync promises; but for what is kept in
                // RAM alone.
                for filesystem in self
                    .filesystems
                    .iter_mut()
                    .filter(|one| one.promise != Promise::Ram)
                {
                    filesystem.history.synced();
                }
                for volume in self.volumes.iter_mut().filter(|one| one.promise != Promise::Ram) {
                    volume.history.synced();
                }
                if of_daemon {
                    // What it let go of last is not durable yet.
                    self.flushed();
                }
                for index in 0..self.filesystems.len() {
                    let closed = (self.filesystems[index].promise != Promise::Ram).then_some(&closed);
                    self.compare_retained(index, closed, before)?;
                }
                match of_daemon {
                    true => self.held_is_durable(),
                    false => self.flushed(),
                }
                self.check_counts()?;
                self.check_rooms()?;
                self.check_reserved()
            }
            Err(error) => {
                self.tick_was_interrupted(&closed);
                let words = error.to_string();
                self.not_refused_late("tick", words.contains("is full"))?;
                self.excuse("tick", &words)
            }
        }
    }

    pub(crate) fn store_checkpoint(&mut self) -> Check {
        let engine = self.engine()?;
        trace!(self.trace, "store checkpoint");
        match engine.chunks().checkpoint() {
            Ok(()) => {
                self.check_root_holders()?;
                self.audit_root()
            }
            Err(error) => self.excuse("checkpoint", &error.to_string()),
        }
    }
}
