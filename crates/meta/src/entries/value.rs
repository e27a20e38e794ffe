//! `Value`: a value in memory, inline when it is short (counts, hints and the like), so that it takes no allocation.
//!
//! Invariant: clones are cheap, whatever the length.

use std::sync::Arc;

use bytes::Bytes;

/// Longest value, bytes.
pub const VALUE_BYTES_MAX: usize = 160 * 1024;
const INLINE_BYTES: usize = 22;

/// A value that is cheap to clone.
#[derive(Clone)]
pub struct Value {
    bytes: Held,
}

#[derive(Clone)]
enum Held {
    Inline {
        length: u8,
        bytes: [u8; INLINE_BYTES],
    },
    Shared(Arc<[u8]>),
    /// Of a larger buffer: a block.
    Part(Box<Bytes>),
}

impl Value {
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
            Held::Shared(source.into())
        };
        Self { bytes }
    }

    /// The value that stands for a count (see [`encode_count`](crate::encode_count)).
    pub fn of_count(count: i64) -> Self {
        let mut bytes = [0; INLINE_BYTES];
        let mut rest = ((count << 1) ^ (count >> 63)) as u64;
        let mut length = 0;
        while rest >= 0x80 {
            bytes[length] = rest as u8 | 0x80;
            rest >>= 7;
            length += 1;
        }
        bytes[length] = rest as u8;
        Self {
            bytes: Held::Inline {
                length: length as u8 + 1,
                bytes,
            },
        }
    }

    /// One that keeps the buffer alive of which `part` is a slice.
    pub(crate) fn part_of(part: Bytes) -> Self {
        Self {
            bytes: Held::Part(Box::new(part)),
        }
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.bytes {
            Held::Inline { length, bytes } => &bytes[..usize::from(*length).min(INLINE_BYTES)],
            Held::Shared(bytes) => bytes,
            Held::Part(bytes) => bytes,
        }
    }

    /// The same for a caller.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self.bytes {
            Held::Part(bytes) => *bytes,
            _ => Bytes::copy_from_slice(&self),
        }
    }

    /// Bytes held outside of the value itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.bytes {
            Held::Inline { .. } => 0,
            Held::Shared(bytes) => bytes.len() + 24,
            Held::Part(bytes) => bytes.len() + 56,
        }
    }
}

impl std::ops::Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl From<&[u8]> for Value {
    #[inline]
    fn from(source: &[u8]) -> Self {
        Self::new(source)
    }
}

impl From<Vec<u8>> for Value {
    fn from(source: Vec<u8>) -> Self {
        Self::new(&source)
    }
}

impl From<Bytes> for Value {
    fn from(source: Bytes) -> Self {
        Self::new(&source)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Value {}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_the_codecs_signed_number() {
        for count in [0, 1, -1, 63, 64, -64, -65, 8191, 8192, i64::MAX, i64::MIN] {
            let mut writer = terrace_codec::Writer::new();
            writer.signed_varint(count);
            let value = Value::of_count(count);
            assert_eq!(value.as_slice(), writer.as_bytes());
            assert_eq!(crate::decode_count(&value), Some(count));
        }
    }

    #[test]
    fn a_value_comes_back_whatever_holds_it() {
        for length in 0..64 {
            let bytes: Vec<u8> = (0..length).collect();
            let value = Value::new(&bytes);
            let part = Value::part_of(Bytes::from(bytes.clone()));
            assert_eq!(value, part);
            assert_eq!(value.heap_bytes() == 0, bytes.len() <= INLINE_BYTES);
            assert_eq!(
                (value.into_bytes(), part.into_bytes()),
                (bytes.clone().into(), bytes.into())
            );
        }
        assert_eq!(size_of::<Value>(), 24);
    }
}
