//! `OpenOptions`: what differs between a daemon, a test and the simulator.

use std::sync::Arc;

use terrace_device::{Clock, SystemClock};

/// How an engine is run; none of it is written to the pool.
#[derive(Clone)]
pub struct OpenOptions {
    /// Whether the engine starts its own threads. Without them nothing happens but by [`Engine::step`] and
    /// [`Engine::tick`](crate::Engine::tick), in a fixed order.
    ///
    /// [`Engine::step`]: crate::Engine::step
    pub threads: bool,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Overrides the `memory` property, bytes.
    pub memory_bytes: Option<u64>,
    /// A number that differs at each opening; `None`: random.
    pub nonce: Option<u64>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            threads: true,
            clock: Arc::new(SystemClock::new()),
            memory_bytes: None,
            nonce: None,
        }
    }
}

impl OpenOptions {
    /// No threads, the given clock, a small fixed budget: for tests and the simulator.
    pub fn driven(clock: Arc<dyn Clock>, nonce: u64) -> Self {
        Self {
            threads: false,
            clock,
            memory_bytes: Some(64 << 20),
            nonce: Some(nonce),
        }
    }
}
