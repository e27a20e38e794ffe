//! `Key`: a key in memory, inline when it is short (nearly all are), so that a search touches no other cache line, and a
//! batch of operations takes no allocation for each.
//!
//! Invariants: ordered as the byte string it stands for; what an inline key does not use is zero, so that two of them are
//! compared as words, eight bytes at a time.

use std::{borrow::Borrow, cmp::Ordering};

use bytes::Bytes;

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 1024;
const INLINE_BYTES: usize = 30;

/// A key that owns its bytes.
#[derive(Clone)]
pub struct Key {
    bytes: Held,
}

#[derive(Clone)]
enum Held {
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Box<[u8]>),
}

impl Key {
    /// A copy of `source`.
    #[inline]
    pub fn new(source: &[u8]) -> Self {
        let bytes = if source.len() <= INLINE_BYTES {
            let mut bytes = [0; INLINE_BYTES];
            bytes[..source.len()].copy_from_slice(source);
            Held::Inline {
                length: source.len() as u8,
                bytes,
            }
        } else {
            Held::Heap(source.into())
        };
        Self { bytes }
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.bytes {
            Held::Inline { length, bytes } => &bytes[..usize::from(*length).min(INLINE_BYTES)],
            Held::Heap(bytes) => bytes,
        }
    }

    /// Whether `source` is looked for without an allocation.
    pub(crate) fn is_short(source: &[u8]) -> bool {
        source.len() <= INLINE_BYTES
    }

    /// Bytes held outside of the key itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.bytes {
            Held::Inline { .. } => 0,
            Held::Heap(bytes) => bytes.len() + 16,
        }
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl From<&[u8]> for Key {
    fn from(source: &[u8]) -> Self {
        Self::new(source)
    }
}

impl<const LENGTH: usize> From<[u8; LENGTH]> for Key {
    #[inline]
    fn from(source: [u8; LENGTH]) -> Self {
        Self::new(&source)
    }
}

impl From<Vec<u8>> for Key {
    fn from(source: Vec<u8>) -> Self {
        match Self::is_short(&source) {
            true => Self::new(&source),
            false => Self {
                bytes: Held::Heap(source.into()),
            },
        }
    }
}

impl From<Bytes> for Key {
    fn from(source: Bytes) -> Self {
        Self::new(&source)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

/// The bytes as numbers in the same order; the last overlaps the one before.
#[inline]
fn words(bytes: &[u8; INLINE_BYTES]) -> [u64; 4] {
    let (whole, _) = bytes.as_chunks::<8>();
    let last = bytes.last_chunk::<8>().copied().unwrap_or_default();
    let word = |at: usize| whole.get(at).copied().map_or(0, u64::from_be_bytes);
    [word(0), word(1), word(2), u64::from_be_bytes(last)]
}

impl Borrow<[u8]> for Key {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.bytes, &other.bytes) {
            (
                Held::Inline { length, bytes },
                Held::Inline {
                    length: other_length,
                    bytes: other_bytes,
                },
            ) => {
                let pairs = words(bytes).into_iter().zip(words(other_bytes));
                let unequal = pairs.map(|(a, b)| a.cmp(&b)).find(|order| order.is_ne());
                // Where one is the start of the other, zeroes stand against what is longer, or against its zeroes.
                unequal.unwrap_or_else(|| length.cmp(other_length))
            }
            _ => self.as_slice().cmp(other.as_slice()),
        }
    }
}

impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_their_bytes() {
        let mut keys: Vec<Vec<u8>> = vec![
            vec![],
            vec![0],
            vec![0, 0],
            vec![255; 40],
            vec![255; 30],
            vec![255; 31],
        ];
        for length in 1..=33 {
            for at in 0..length {
                for byte in [0, 1, 127, 128, 255] {
                    let mut key = vec![7; length];
                    key[at] = byte;
                    keys.push(key);
                }
            }
        }
        for a in &keys {
            for b in &keys {
                assert_eq!(Key::new(a).cmp(&Key::new(b)), a.cmp(b), "{a:?} and {b:?}");
            }
        }
    }
}
