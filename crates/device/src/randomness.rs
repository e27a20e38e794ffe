//! The seam to chance, so that a simulation replays exactly from its seed.

use rand::{
    Rng, SeedableRng,
    rand_core::UnwrapErr,
    rngs::{StdRng, SysRng},
};
use terrace_sync::{Mutex, rank};

/// A source of random bytes.
pub trait Randomness: Send + Sync {
    /// Fills `bytes` with random ones.
    fn fill(&self, bytes: &mut [u8]);

    /// A random number, all 64 bits.
    fn number(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A random 128-bit identifier.
    fn identifier(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        bytes
    }
}

/// Unpredictable numbers, seeded by the operating system.
#[derive(Debug, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        UnwrapErr(SysRng).fill_bytes(bytes);
    }
}

/// The same numbers for the same seed.
#[derive(Debug)]
pub struct SeededRandomness {
    generator: Mutex<StdRng, rank::Leaf>,
}

impl SeededRandomness {
    /// The sequence that `seed` names.
    pub fn new(seed: u64) -> Self {
        Self {
            generator: Mutex::new(StdRng::seed_from_u64(seed)),
        }
    }
}

impl Randomness for SeededRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        self.generator.lock().fill_bytes(bytes);
    }
}
