//! `NumberHasher`: hashes numbers and sums for tables in memory.
//!
//! Invariant: the same on every machine, in every run and with every version of every crate, so that a simulation finds the same in
//! its caches again and a kept seed stays meaningful. What it hashes are the store's own numbers, or sums that spread by themselves, so
//! no secret is needed.

use std::hash::Hasher;

/// Spreads the bits of a number (one step of SplitMix64).
#[inline]
pub fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Mixes what is written to it, eight bytes at a time.
#[derive(Clone, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_spread() {
        let hash = |write: &dyn Fn(&mut NumberHasher)| {
            let mut hasher = NumberHasher::default();
            write(&mut hasher);
            hasher.finish()
        };
        let mut low = [0u32; 256];
        for number in 0..25_600u64 {
            low[(hash(&|hasher| hasher.write_u64(number)) & 255) as usize] += 1;
        }
        assert!(low.iter().all(|count| (50..150).contains(count)), "{low:?}");
        assert_ne!(
            hash(&|hasher| hasher.write(&[1; 9])),
            hash(&|hasher| hasher.write(&[1; 10]))
        );
    }
}
