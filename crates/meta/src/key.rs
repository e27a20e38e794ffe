//! `Key`: a key in memory, inline when it is short (nearly all are), so that a search touches no other cache line.
//!
//! Invariant: ordered as the byte string it stands for.

use std::borrow::Borrow;
use std::cmp::Ordering;

const INLINE_BYTES: usize = 30;

#[derive(Clone)]
pub(crate) enum Key {
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Box<[u8]>),
}

impl Key {
    pub(crate) fn new(source: &[u8]) -> Self {
        if source.len() <= INLINE_BYTES {
            let mut bytes = [0; INLINE_BYTES];
            bytes[..source.len()].copy_from_slice(source);
            Key::Inline {
                length: source.len() as u8,
                bytes,
            }
        } else {
            Key::Heap(source.into())
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Key::Inline { length, bytes } => &bytes[..usize::from(*length).min(INLINE_BYTES)],
            Key::Heap(bytes) => bytes,
        }
    }

    /// Bytes held outside of the key itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Key::Inline { .. } => 0,
            Key::Heap(bytes) => bytes.len() + 16,
        }
    }
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
        self.as_slice().cmp(other.as_slice())
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
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Key {}
