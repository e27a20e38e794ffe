//! `Content`: data that can be made again from a few numbers, so that a model needs to keep only those.

use crate::hardware::Random;

/// A recipe for bytes: never empty, never all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Content {
    /// How well it compresses, 0 (not at all) to 3 (very well).
    pub texture: u8,
    /// Which one.
    pub seed: u64,
    /// Bytes.
    pub length: u32,
}

impl Content {
    /// Bytes when encoded.
    pub const ENCODED_BYTES: usize = 13;

    /// Some content of at most `most` bytes; one in three comes from a small set, so that equal ones turn up.
    pub fn choose(random: &mut Random, most: u64) -> Self {
        let length = match random.below(4) {
            0 => random.between(1, most.min(200)),
            1 => (random.between(1, most.div_ceil(4096)) * 4096).min(most),
            _ => random.skewed(most).max(1),
        };
        let texture = random.below(4) as u8;
        if random.chance(1, 3) {
            let length = *random.pick(&[4096, 4096, 8192, 20_000]);
            return Self {
                texture,
                seed: random.below(6),
                length: length.min(most as u32),
            };
        }
        Self {
            texture,
            seed: random.next(),
            length: length as u32,
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length as usize];
        let mut random = Random::new(self.seed ^ u64::from(self.texture) << 56);
        match self.texture {
            0 => random.fill(&mut bytes),
            1 => {
                random.fill(&mut bytes);
                for byte in &mut bytes {
                    *byte &= 0x13;
                }
            }
            2 => {
                let mut word = [0; 96];
                random.fill(&mut word);
                for (index, byte) in bytes.iter_mut().enumerate() {
                    *byte = word[index % word.len()] ^ (index >> 12) as u8;
                }
            }
            _ => {
                for part in bytes.chunks_mut(512) {
                    part[0] = random.next() as u8;
                }
            }
        }
        if let Some(first) = bytes.first_mut() {
            *first |= 1;
        }
        bytes
    }

    /// In a few bytes.
    pub fn encode(&self, into: &mut Vec<u8>) {
        into.push(self.texture);
        into.extend_from_slice(&self.seed.to_le_bytes());
        into.extend_from_slice(&self.length.to_le_bytes());
    }

    /// The reverse of [`encode`](Self::encode); `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            texture: *bytes.first()?,
            seed: u64::from_le_bytes(bytes.get(1..9)?.try_into().ok()?),
            length: u32::from_le_bytes(bytes.get(9..13)?.try_into().ok()?),
        })
    }
}
