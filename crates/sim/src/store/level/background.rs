//! What the store does beside its clients: background steps, checkpoints, moves between tiers, and the full walk.
//!
//! What must hold: whatever fails, what the newest root needs is still held; the background comes to rest, and at rest no
//! chunk is kept that nothing refers to, unless a writer holds it; the full walk finds every count exact.

use terrace_chunk::Step;
use terrace_store::{ChunkId, Placement, Store};

use super::Run;
use crate::{ensure, run::Check, trace, violation};

/// Steps of the background after which it must have come to rest.
pub(super) const STEPS_MAX: u64 = 20_000;
impl Run {
    pub(super) fn background(&mut self) -> Check {
        let store = self.store()?;
        // Work that is left half done while clients go on matters most where much is written.
        let steps = match self.wordy && self.random.chance(2, 3) {
            true => 1,
            false => self.random.between(1, 12),
        };
        for _ in 0..steps {
            match store.step() {
                Ok(Step::More) => {}
                Ok(Step::Idle) => break,
                Err(error) => return self.after_error("step", &error),
            }
        }
        self.audit_root()
    }

    /// What the newest root needs is still held, whatever fails.
    pub(super) fn audit_root(&mut self) -> Check {
        if !self.rig.machine.is_powered() {
            return Ok(());
        }
        match self.store()?.audit_root() {
            Ok(wrong) => ensure!(wrong.is_empty(), "{}", wrong.join("; ")),
            Err(error) => return self.after_error("audit of the root", &error),
        }
        Ok(())
    }

    /// Steps until there is nothing to do.
    pub(super) fn rest(&mut self) -> Check {
        let store = self.store()?;
        for _ in 0..STEPS_MAX {
            match store.step() {
                Ok(Step::More) => {}
                Ok(Step::Idle) => return self.check_rested(),
                Err(error) => return self.after_error("step", &error),
            }
        }
        violation!("the background found no rest in {STEPS_MAX} steps")
    }

    /// At rest there is no chunk that nothing refers to, unless a writer holds it.
    fn check_rested(&mut self) -> Check {
        let chunks = self.store()?.space().chunks;
        let wanted = self.model.references().len() as u64;
        ensure!(
            chunks == wanted || !self.held.is_empty() || self.is_explained(),
            "{chunks} chunks are kept at rest, {wanted} are referred to"
        );
        Ok(())
    }

    pub(super) fn checkpoint(&mut self) -> Check {
        let store = self.store()?;
        trace!(self.trace, "checkpoint");
        match store.checkpoint() {
            Ok(()) => {
                self.flushed(store.newest());
                self.model.is_everywhere();
                self.scarred &= !std::mem::take(&mut self.healed);
                self.audit_root()
            }
            Err(error) => self.after_error("checkpoint", &error),
        }
    }

    pub(super) fn rewrite(&mut self) -> Check {
        let store = self.store()?;
        let ids: Vec<ChunkId> = self.model.references().into_keys().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let count = self.random.between(1, 20);
        let chosen: Vec<ChunkId> = (0..count).map(|_| *self.random.pick(&ids)).collect();
        let tier = self.random.below(self.rig.shape.tiers.len() as u64) as u8;
        let strict = self.random.chance(1, 2);
        match store.rewrite(&chosen, Placement::Tier { tier, strict }) {
            Ok(outcome) => {
                trace!(
                    self.trace,
                    "rewrite to tier {tier}: {} moved, {} skipped", outcome.moved, outcome.skipped
                );
                if outcome.moved > 0 && tier > 0 {
                    self.moved_after = self.model.newest();
                }
                ensure!(
                    outcome.failed.is_empty() || self.is_explained(),
                    "rewrite could not read {:?}",
                    outcome.failed
                );
                Ok(())
            }
            Err(error) => {
                self.note_full(&error);
                self.after_error("rewrite", &error)
            }
        }
    }

    pub(crate) fn audit(&mut self) -> Check {
        let store = self.store()?;
        let references = self.model.references();
        let expected = |tell: &mut dyn FnMut(ChunkId, i64)| {
            for (id, blocks) in &references {
                tell(*id, *blocks);
            }
            Ok(())
        };
        match store.audit(Some(&expected)) {
            Ok(report) => {
                ensure!(
                    report.discrepancies.is_empty() || self.is_explained(),
                    "the audit found: {}",
                    report
                        .discrepancies
                        .iter()
                        .take(5)
                        .cloned()
                        .collect::<Vec<_>>()
                        .join("; ")
                );
            }
            Err(error) => return self.after_error("audit", &error),
        }
        self.check_copies()
    }
}
