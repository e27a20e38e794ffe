//! Properties of the pool as a whole: read, set, and put in force.
//!
//! Invariant: what was set is in force at once, and again after the next opening.

use std::{sync::atomic::Ordering, time::Duration};

use super::open::shares_of_store;
use crate::engine::Engine;
use terrace_device::parse_duration;

use super::pool_properties;
use crate::EngineError;

/// How long a device may answer nothing, unless it is set.
pub(crate) const DEVICE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

impl Engine {
    /// A property of the pool.
    ///
    /// # Errors
    /// `Invalid` if there is none of this name.
    pub fn property(&self, name: &str) -> Result<String, EngineError> {
        let default = pool_properties::default_of(name)?;
        Ok(self.pool.property(name).unwrap_or_else(|| default.to_owned()))
    }

    /// All properties of the pool: name, value, whether it was set.
    pub fn properties(&self) -> Vec<(String, String, bool)> {
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
    ///
    /// # Errors
    /// `Invalid` for names and values that there are not.
    pub fn set_property(&self, name: &str, value: &str) -> Result<(), EngineError> {
        self.check_open()?;
        let value = pool_properties::canonical(name, value)?;
        self.pool.set_property(name, Some(&value))?;
        self.apply_properties();
        Ok(())
    }

    /// Whether the mover may move data.
    pub fn migration(&self) -> bool {
        self.pool.property("migration").as_deref() != Some("off")
    }

    /// How often datasets without a `commit_interval` of their own are committed.
    pub fn commit_interval(&self) -> Duration {
        Duration::from_millis(self.commit_interval_milliseconds.load(Ordering::Relaxed))
    }

    /// How long a device may answer nothing of what it is asked for.
    pub fn device_timeout(&self) -> Duration {
        Duration::from_millis(self.device_timeout_milliseconds.load(Ordering::Relaxed))
    }

    pub(crate) fn apply_properties(&self) {
        let interval = self
            .pool
            .property("commit_interval")
            .and_then(|text| parse_duration(&text).ok());
        let interval = interval.unwrap_or(Duration::from_secs(5));
        self.commit_interval_milliseconds
            .store(interval.as_millis() as u64, Ordering::Relaxed);
        let timeout = self
            .pool
            .property("device_timeout")
            .and_then(|text| parse_duration(&text).ok());
        let timeout = timeout.unwrap_or(DEVICE_TIMEOUT_DEFAULT);
        self.device_timeout_milliseconds
            .store(timeout.as_millis() as u64, Ordering::Relaxed);
        self.mover.set_enabled(self.migration());
        terrace_device::allow_polling(self.pool.property("polling").as_deref() != Some("off"));
        if self.memory_override.is_none() {
            let memory = pool_properties::memory_bytes(&self.pool.property("memory").unwrap_or_default());
            let before = self.environment.budget.limit_bytes();
            if memory != before {
                self.environment.budget.set_limit(memory);
                self.datasets.size_caches();
                let (memtable_bytes, block_cache_bytes) = shares_of_store(&self.environment.budget);
                self.chunks.set_memory(memtable_bytes, block_cache_bytes);
                if memory < before {
                    terrace_device::give_spare_memory_back();
                }
            }
        }
    }
}
