//! `World`: what acts work on.

use std::sync::Arc;

use crate::{
    fs::{models::Models, rig::Rig},
    hardware::{Coverage, Random},
    trace::Trace,
    violation::{Check, Violation},
};

/// The rig, and what must be true of it.
pub(crate) struct World {
    pub(crate) rig: Rig,
    pub(crate) models: Models,
    /// Chance of what cannot be read while the pool is opened.
    pub(super) misreading: Random,
}

impl World {
    /// A machine with a pool that has no datasets.
    pub(crate) fn new(seed: u64, coverage: Arc<Coverage>, trace: Trace) -> Check<Self> {
        let mut rig = Rig::new(seed, coverage, trace);
        let engine = rig.create();
        rig.engine = Some(engine.map_err(|error| Violation(format!("cannot create: {error}")))?);
        Ok(Self {
            rig,
            models: Models::default(),
            misreading: Random::new(seed ^ 0x3158_EAD0_0000),
        })
    }
}
