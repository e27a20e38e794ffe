//! Judging an error: whether something explains it, and whether the pool must be opened again.

use terrace_dataset::FsError;

use super::world::World;
use crate::{
    act::Act,
    ensure,
    fs::checks::{Compared, Invariant, Trouble},
    hardware::FaultKind,
    trace, violation,
    violation::Check,
};

/// What an operation that failed means for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// Nothing changed; go on.
    GoOn,
    /// The engine must be opened again; what failed may have happened.
    Reopen,
}

impl World {
    /// What an error means; a violation if nothing explains it.
    pub(crate) fn judge(&mut self, doing: &str, error: &FsError) -> Check<Consequence> {
        trace!(self.rig.trace, "{doing}: {error}");
        if !self.rig.is_powered() {
            return Ok(Consequence::Reopen);
        }
        match error {
            FsError::NoSpace => {
                self.rig.coverage.hit(FaultKind::PoolFull);
                self.rig.condition.filled = true;
                Ok(Consequence::GoOn)
            }
            FsError::QuotaExceeded => Ok(Consequence::GoOn),
            FsError::Io(_) if self.rig.condition.is_failing() => {
                self.rig.condition.hurt = true;
                Ok(Consequence::Reopen)
            }
            other => violation!("{doing} failed although nothing was wrong: {other}"),
        }
    }

    /// The same, and opens again if it must.
    pub(crate) fn after_error(&mut self, doing: &str, error: &FsError) -> Check {
        match self.judge(doing, error)? {
            Consequence::GoOn => Ok(()),
            Consequence::Reopen => self.recover(false),
        }
    }

    /// An error of the engine or of an administrative call, in words: the power, a storm or a full pool explain it.
    pub(crate) fn excuse(&mut self, doing: &str, words: &str) -> Check {
        trace!(self.rig.trace, "{doing}: {words}");
        let condition = &mut self.rig.condition;
        // On a full pool an earlier commit may fail, and the next call says so.
        let late = condition.filled && words.contains("made up for only now");
        // Of what would have to be set aside. A pool that stopped has refused nothing: what became of it shows at the next opening.
        let stopped = words.contains("stopped accepting writes");
        let refused = !stopped && (words.contains("is full") || words.contains("set aside"));
        let is_powered = self.rig.machine.is_powered();
        if is_powered && (late || refused) {
            self.rig.coverage.hit(FaultKind::PoolFull);
            condition.filled = true;
            return Ok(());
        }
        ensure!(
            !is_powered || condition.is_failing(),
            "{doing} failed although nothing was wrong: {words}"
        );
        condition.hurt = true;
        self.recover(false)
    }

    /// Something must hold now.
    pub(crate) fn check(&mut self, invariant: &dyn Invariant) -> Check {
        let compared = invariant.check(&mut self.rig, &mut self.models);
        self.settle(compared)
    }

    /// What came of a comparison.
    pub(crate) fn settle(&mut self, compared: Compared) -> Check {
        match compared {
            Ok(()) => Ok(()),
            Err(Trouble::Violation(violation)) => Err(violation),
            Err(Trouble::Failed { doing, error }) => self.after_error(doing, &error),
            Err(Trouble::Refused { doing, words }) => self.excuse(doing, &words),
        }
    }
}

/// An invariant that is looked at as an act of its own.
pub(crate) struct Judged<I>(pub(crate) I);

impl<I: Invariant> Act<World> for Judged<I> {
    fn perform(&mut self, world: &mut World) -> Check {
        world.check(&self.0)
    }
}
