//! `Random`: all chance of a run, from its seed.
//!
//! Invariant: the same seed gives the same numbers on every machine and with every version of every crate, so that a
//! kept seed stays meaningful: the generator (xoshiro256**, seeded by splitmix64) is written out here.

use std::sync::Arc;

use parking_lot::Mutex;
use terrace_device::Randomness;

/// A stream of pseudo-random numbers.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut mix = seed;
        Self {
            state: std::array::from_fn(|_| splitmix(&mut mix)),
        }
    }

    /// An independent stream, named by `label`, so that one part of a run can change without disturbing the others.
    pub fn fork(&mut self, label: u64) -> Self {
        Self::new(self.next() ^ label.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        let result = self.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = self.state[1] << 17;
        self.state[2] ^= self.state[0];
        self.state[3] ^= self.state[1];
        self.state[1] ^= self.state[2];
        self.state[0] ^= self.state[3];
        self.state[2] ^= t;
        self.state[3] = self.state[3].rotate_left(45);
        result
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
        }
    }

    /// An index in `0..length`.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A number in `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True `numerator` times out of `denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// One of several things.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// A small number more often than a large one, at most `most`: for lengths and counts.
    pub fn skewed(&mut self, most: u64) -> u64 {
        let bits = 64 - most.leading_zeros();
        let width = self.below(u64::from(bits) + 1);
        self.below(1u64.checked_shl(width as u32).unwrap_or(u64::MAX))
            .min(most)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            part.copy_from_slice(&number[..part.len()]);
        }
    }
}

/// The engine's seam to chance.
#[derive(Debug, Clone)]
pub struct SharedRandom(Arc<Mutex<Random>>);

impl SharedRandom {
    /// Hands `random` to the engine.
    pub fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(random)))
    }
}

impl Randomness for SharedRandom {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().fill(bytes);
    }
}
