//! `OpenOptions`: what differs between a daemon, a test and the simulator.

use std::sync::Arc;

use terrace_device::{Clock, Randomness, SeededRandomness, SystemClock, SystemRandomness};

use crate::reporting::KeepEvents;

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
    /// Randomness, for identities.
    pub randomness: Arc<dyn Randomness>,
    /// Overrides the `memory` property, bytes.
    pub memory_bytes: Option<u64>,
    /// A number that differs at each opening; `None`: random.
    pub nonce: Option<u64>,
    /// Open although devices are missing.
    pub degraded: bool,
    /// Where the log cannot be read to its end, open the last state that can be, and give up what came later.
    pub rewind: bool,
    /// Open an exported pool, and make it active.
    pub exported: bool,
    /// Open a destroyed pool, and make it active.
    pub destroyed: bool,
    /// User and group that own the root directories of new filesystems.
    pub owner: (u32, u32),
    /// Whether the process serves this pool alone, and what it holds is to stay within the pool's memory.
    pub owns_process: bool,
    /// Keeps what happens once the pool takes no writes any more; `None`: that is told as long as it is open.
    pub events: Option<Arc<dyn KeepEvents>>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            threads: true,
            clock: Arc::new(SystemClock::new()),
            randomness: Arc::new(SystemRandomness),
            memory_bytes: None,
            nonce: None,
            degraded: false,
            rewind: false,
            exported: false,
            destroyed: false,
            owner: (0, 0),
            owns_process: false,
            events: None,
        }
    }
}

impl OpenOptions {
    /// No threads, the given clock, everything random from a seed, a small fixed budget: for tests and the simulator.
    pub fn driven(clock: Arc<dyn Clock>, seed: u64) -> Self {
        clock.drive_with(Arc::new(|| {}));
        Self {
            threads: false,
            clock,
            randomness: Arc::new(SeededRandomness::new(seed)),
            memory_bytes: Some(64 << 20),
            nonce: Some(seed),
            ..Self::default()
        }
    }
}
