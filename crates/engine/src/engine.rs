//! `Engine`: an open pool.

use std::sync::Arc;

use terrace_device::Device;
use terrace_store::Store;

use crate::{EngineError, IoCounters, OpenOptions, PoolSpec, Status};

/// An open pool and everything that runs in it. All methods may be called from any thread.
pub struct Engine {
    store: Arc<dyn Store>,
}

#[allow(unused_variables)]
impl Engine {
    /// Makes a pool: opens or makes the devices of the spec, labels them, and opens it. Devices that hold a pool or
    /// other data are refused unless `force` is set.
    pub fn create(spec: &PoolSpec, force: bool, options: OpenOptions) -> Result<Arc<Self>, EngineError> {
        Err(EngineError::Closed)
    }

    /// Makes a pool on devices that are open already, one list per tier of the spec (whose own device lists are
    /// ignored): for the simulator.
    pub fn create_on(
        spec: &PoolSpec,
        devices: Vec<Vec<Arc<dyn Device>>>,
        options: OpenOptions,
    ) -> Result<Arc<Self>, EngineError> {
        Err(EngineError::Closed)
    }

    /// Opens the pool that these devices make up, given in any order.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Arc<Self>, EngineError> {
        Err(EngineError::Closed)
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// One commit interval: commits all datasets; returns the checkpoint.
    pub fn tick(&self) -> Result<u64, EngineError> {
        Err(EngineError::Closed)
    }

    /// One bounded step of background work (store, history, mover, scrub, in turn). Returns whether there was any.
    pub fn step(&self) -> Result<bool, EngineError> {
        Ok(false)
    }

    /// Commits and flushes everything, stops the threads, writes a last checkpoint. Later calls fail.
    pub fn close(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The pool as it is now.
    pub fn status(&self) -> Status {
        Status::default()
    }

    /// I/O counters of each device.
    pub fn io_counters(&self) -> Vec<IoCounters> {
        Vec::new()
    }

    /// A property of the pool.
    pub fn property(&self, name: &str) -> Result<String, EngineError> {
        Err(EngineError::Closed)
    }

    /// All properties of the pool with their values.
    pub fn properties(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Sets a property of the pool; it takes effect at once and is kept.
    pub fn set_property(&self, name: &str, value: &str) -> Result<(), EngineError> {
        Err(EngineError::Closed)
    }

    /// Starts a scrub in the background (or joins the running one).
    pub fn start_scrub(&self) -> Result<(), EngineError> {
        Err(EngineError::Closed)
    }
}
