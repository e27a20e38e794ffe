//! Pools of older format versions: some runs begin with one, and at some time somebody upgrades it, whatever goes wrong meanwhile.
//!
//! What must hold: a pool keeps its version until then; from the moment when the upgrade was acknowledged it has the newest, also
//! after every opening.

use terrace_chunk::{FORMAT_NEWEST, FORMAT_OLDEST};

use super::Run;
use crate::{ensure, run::Check, trace};

/// What is known of the version of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upgrade {
    /// It has an older one, and nobody asked for another.
    Unasked,
    /// It was asked for, and that failed or was cut off.
    Begun,
    /// It has the newest.
    Done,
}

impl Run {
    /// Makes some pools with an earlier version; before the pool is made.
    pub(super) fn choose_version(&mut self) {
        if self.upgrading.chance(1, 6) {
            let (oldest, newest) = (u64::from(FORMAT_OLDEST), u64::from(FORMAT_NEWEST));
            self.rig.format_version = self.upgrading.between(oldest, newest - 1) as u8;
            trace!(self.trace, "a pool of version {}", self.rig.format_version);
            self.upgrade = Upgrade::Unasked;
        }
    }

    /// Upgrades a pool, in the mean after some fifty turns.
    pub(super) fn upgrade_now_and_then(&mut self) -> Check {
        if self.upgrade == Upgrade::Done || self.lying || self.broken || self.store.is_none() {
            return Ok(());
        }
        self.check_version()?;
        if !self.upgrading.chance(1, 50) {
            return Ok(());
        }
        trace!(self.trace, "upgrade");
        self.upgrade = Upgrade::Begun;
        match self.store()?.upgrade_format() {
            Ok(()) => self.upgrade = Upgrade::Done,
            Err(error) => self.after_error("an upgrade", &error)?,
        }
        Ok(())
    }

    /// The pool has the version that is known.
    pub(super) fn check_version(&mut self) -> Check {
        let version = self.store()?.format_version();
        match self.upgrade {
            Upgrade::Unasked => ensure!(
                version == self.rig.format_version,
                "version {version}, and nobody asked for that"
            ),
            Upgrade::Done => ensure!(version == FORMAT_NEWEST, "version {version} after an upgrade"),
            // A checkpoint or an opening finds out.
            Upgrade::Begun if version == FORMAT_NEWEST => self.upgrade = Upgrade::Done,
            Upgrade::Begun => {}
        }
        Ok(())
    }
}
