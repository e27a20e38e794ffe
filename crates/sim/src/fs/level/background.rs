//! What the engine does beside its clients: some background steps, or all there are.
//!
//! What must hold: whatever fails, what the newest root needs is still held; the background comes to rest.

use super::Run;
use crate::{ensure, violation, violation::Check};

/// Steps of the background after which it must have come to rest.
const STEPS_MAX: u64 = 50_000;
impl Run {
    pub(super) fn background(&mut self) -> Check {
        let engine = self.engine()?;
        for _ in 0..self.random.between(1, 16) {
            match engine.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return self.excuse("step", &error.to_string()),
            }
        }
        self.look_at_members()?;
        self.audit_root()?;
        self.check_scrub()
    }

    /// What the newest root needs is still held, whatever fails.
    pub(super) fn audit_root(&mut self) -> Check {
        if !self.rig.machine.is_powered() {
            return Ok(());
        }
        match self.engine()?.chunks().audit_root() {
            Ok(wrong) => ensure!(wrong.is_empty(), "{}", wrong.join("; ")),
            Err(error) => return self.excuse("audit of the root", &error.to_string()),
        }
        Ok(())
    }

    pub(crate) fn rest(&mut self) -> Check {
        let engine = self.engine()?;
        let mut idle = 0;
        for _ in 0..STEPS_MAX {
            match engine.step() {
                Ok(true) => idle = 0,
                Ok(false) => idle += 1,
                Err(error) => return self.excuse("step", &error.to_string()),
            }
            if idle == 4 {
                return self.look_at_members();
            }
        }
        violation!("the background found no rest in {STEPS_MAX} steps")
    }
}
