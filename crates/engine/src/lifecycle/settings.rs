//! Properties of the pool as a whole: read, set, and put in force.
//!
//! Invariant: what was set is in force at once, and again after the next opening.

use std::time::Duration;

use terrace_device::parse_duration;

use super::lifecycle::Lifecycle;
use crate::{EngineError, floors::shares_of_store, pool_properties};

/// How often datasets are committed, unless it is set.
const COMMIT_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
/// How long a device may answer nothing, unless it is set.
const DEVICE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

impl Lifecycle {
    /// A property of the pool.
    pub(crate) fn property(&self, name: &str) -> Result<String, EngineError> {
        let default = pool_properties::default_of(name)?;
        Ok(self.pool.property(name).unwrap_or_else(|| default.to_owned()))
    }

    /// All properties of the pool: name, value, whether it was set.
    pub(crate) fn properties(&self) -> Vec<(String, String, bool)> {
        let all = pool_properties::DEFINITIONS.iter();
        all.map(|definition| {
            let value = self.pool.property(definition.name);
            let set = value.is_some();
            (
                definition.name.to_owned(),
                value.unwrap_or_else(|| definition.default.to_owned()),
                set,
            )
        })
        .collect()
    }

    /// Sets a property of the pool; it takes effect at once and is kept.
    pub(crate) fn set_property(&self, name: &str, value: &str) -> Result<(), EngineError> {
        self.open.check()?;
        let value = pool_properties::canonical(name, value)?;
        self.pool.set_property(name, Some(&value))?;
        self.apply_properties();
        Ok(())
    }

    /// Puts them in force.
    pub(super) fn apply_properties(&self) {
        let time = |name: &str, default: Duration| {
            let value = self.pool.property(name);
            value
                .and_then(|text| parse_duration(&text).ok())
                .unwrap_or(default)
        };
        self.clockwork.set_intervals(
            time("commit_interval", COMMIT_INTERVAL_DEFAULT),
            time("device_timeout", DEVICE_TIMEOUT_DEFAULT),
        );
        self.mover
            .set_enabled(pool_properties::allows_migration(&self.pool));
        terrace_device::allow_polling(self.pool.property("polling").as_deref() != Some("off"));
        if self.memory_override.is_none() {
            let memory = pool_properties::memory_bytes(&self.pool.property("memory").unwrap_or_default());
            let before = self.environment.budget.limit_bytes();
            if memory != before {
                self.environment.budget.set_limit(memory);
                self.datasets.environment().size_cache();
                let (memtable_bytes, block_cache_bytes) = shares_of_store(&self.environment.budget);
                self.chunks.set_memory(memtable_bytes, block_cache_bytes);
                if memory < before {
                    terrace_device::give_spare_memory_back();
                }
            }
        }
    }
}
